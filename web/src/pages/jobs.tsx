// The queue and the jobs; one job with its history and its log.
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, type Job, type JobDetails, type Log } from "../api";
import { NOTHING, bytes, clock, duration, share } from "../format";
import { Badge, Facts, Heading, Refusal } from "../parts";
import { useStore } from "../store";
import { t } from "../strings";

const FINAL = new Set(["Succeeded", "Failed", "Cancelled"]);
const POLL = 1000;
const MOST_LOG = 200_000;

interface Page {
  items: Job[];
  next: string | null;
}

export function JobsPage() {
  const { jobs, machine } = useStore();
  const [all, setAll] = useState(false);
  const [page, setPage] = useState<Page | null>(null);
  const [error, setError] = useState<unknown>(null);
  const load = (after: string | null) =>
    ask<Page>("GET", `/jobs?which=all${after === null ? "" : `&after=${after}`}`)
      .then((found) => setPage((old) => (after === null || old === null ? found : { items: [...old.items, ...found.items], next: found.next })))
      .catch(setError);
  useEffect(() => {
    if (all) void load(null);
  }, [all]);
  if (jobs === null || machine === null) return <p class="muted">{t("loading")}</p>;
  const unfinished = jobs.items.filter((one) => !FINAL.has(one.phase));
  const items = all ? (page?.items ?? []) : unfinished;
  return (
    <>
      <Heading text={t("jobs")}>
        <div class="tabs" role="group" aria-label={t("jobs")}>
          <button type="button" aria-pressed={!all} onClick={() => setAll(false)}>{t("unfinished")}</button>
          <button type="button" aria-pressed={all} onClick={() => setAll(true)}>{t("all")}</button>
        </div>
      </Heading>
      {!jobs.up && <p class="note">{t("noPool")}</p>}
      <Refusal error={error} />
      {jobs.up && items.length === 0 && <p class="note">{t("noJobs")}</p>}
      {items.length > 0 && (
        <ul class="jobs panel">
          {items.map((one) => <JobRow key={one.number ?? `${one.user}-${one.name}-${one.submitted}`} job={one} now={machine.time} />)}
        </ul>
      )}
      {!all && jobs.left_out > 0 && <p class="muted">{t("leftOut", { n: jobs.left_out })}</p>}
      {all && page?.next && <button type="button" onClick={() => void load(page.next)}>{t("more")}</button>}
    </>
  );
}

function JobRow({ job, now }: { job: Job; now: number }) {
  const named = job.name ?? (job.hidden ? t("otherUser") : NOTHING);
  return (
    <li>
      <div class="job-name">
        {job.number !== null && !job.hidden ? <a href={`#/jobs/${job.number}`}>{named}</a> : <span>{named}</span>}
        <span class="muted">{job.number === null ? t("command") : `${t("number")} ${job.number}`} · {job.user}</span>
      </div>
      <Badge word={job.phase} />
      <div class="job-why">
        <span>{job.reason ?? NOTHING}</span>
        {job.place !== null && (
          <span class="muted">
            {t("place", { place: job.place, of: job.of ?? NOTHING })} · {job.expected_start === null ? t("plannedUnknown") : t("planned", { time: clock(job.expected_start) })}
          </span>
        )}
      </div>
      <div class="job-size muted">
        <span>{t("workers")} {job.workers}{job.next_workers !== null && job.next_workers !== job.workers ? ` → ${job.next_workers}` : ""} ({job.sizes})</span>
        <span>{t("ago", { age: duration(now - job.submitted) })}</span>
      </div>
    </li>
  );
}

export function JobPage({ number }: { number: string }) {
  const { jobs, machine } = useStore();
  const [job, setJob] = useState<JobDetails | null>(null);
  const [error, setError] = useState<unknown>(null);
  const live = jobs?.items.find((one) => `${one.number}` === number);
  useEffect(() => {
    ask<JobDetails>("GET", `/jobs/${encodeURIComponent(number)}`)
      .then((found) => {
        setJob(found);
        setError(null);
      })
      .catch(setError);
  }, [number, live?.phase, live?.reason, live?.workers]);
  const now = machine?.time ?? Date.now() / 1000;
  return (
    <>
      <a class="back" href="#/jobs">← {t("jobs")}</a>
      <Heading text={job?.name ?? number}>{job && <Badge word={live?.phase ?? job.phase} />}</Heading>
      <Refusal error={error} />
      {job && <Details job={{ ...job, ...live }} now={now} />}
    </>
  );
}

function Details({ job, now }: { job: JobDetails; now: number }) {
  const asked = job.request;
  const memory = asked.memory_bytes !== null ? bytes(asked.memory_bytes) : asked.memory_percent !== null ? `${asked.memory_percent} %` : t("wholeGpu");
  const several = job.worker_list.length > 1;
  const gpus = job.worker_list.map((one) => `${several ? `${t("rank")} ${one.rank}: ` : ""}${one.gpus.map((index) => index ?? NOTHING).join(", ") || NOTHING}`);
  return (
    <>
      {job.place !== null ? (
        <section class="note wait" aria-labelledby="waits">
          <h2 id="waits">{t("waitsFor")}</h2>
          <p>{job.reason}</p>
          <p class="muted">{t("place", { place: job.place, of: job.of ?? NOTHING })} · {job.expected_start === null ? t("plannedUnknown") : t("planned", { time: clock(job.expected_start) })}</p>
        </section>
      ) : (
        <p class="reason">{job.reason}</p>
      )}
      {!job.hidden && <Actions job={job} />}
      <div class="columns">
        <div>
          <section class="panel" aria-labelledby="log">
            <LogView job={job} />
          </section>
        </div>
        <div>
          <section class="panel" aria-labelledby="facts">
            <h2 id="facts">{t("request")}</h2>
            <Facts
              rows={[
                [t("command"), <code>{job.command ?? NOTHING}</code>],
                [t("directory"), <code>{job.directory ?? NOTHING}</code>],
                [t("request"), t("each", { n: asked.gpus, memory, compute: share(asked.compute_percent) })],
                [t("workers"), `${job.workers} (${job.sizes})`],
                ...(gpus.length > 0 ? ([["GPU", gpus.join(" · ")]] as [string, string][]) : []),
                [t("queue"), job.queue ?? NOTHING],
                [t("user"), job.user],
                [t("submitted"), `${clock(job.submitted)} (${t("ago", { age: duration(now - job.submitted) })})`],
                [t("started"), clock(job.started)],
                [t("timeLimit"), duration(job.time_seconds)],
                [t("exitCode"), job.exit_code ?? NOTHING],
              ]}
            />
          </section>
          <section class="panel" aria-labelledby="history">
            <h2 id="history">{t("history")}</h2>
            <ol class="history">
              {job.history.map((one, index) => (
                <li key={index}>
                  <time dateTime={new Date(one.at * 1000).toISOString()}>{clock(one.at)}</time>
                  <Badge word={one.phase} />
                  <span>{one.reason}</span>
                </li>
              ))}
            </ol>
          </section>
        </div>
      </div>
    </>
  );
}

function Actions({ job }: { job: JobDetails }) {
  const [error, setError] = useState<unknown>(null);
  const [message, setMessage] = useState("");
  const [sure, setSure] = useState(false);
  const send = (verb: string) => {
    setSure(false);
    ask<{ message: string }>("POST", `/jobs/${job.number}/${verb}`)
      .then((found) => {
        setMessage(found.message);
        setError(null);
      })
      .catch(setError);
  };
  if (FINAL.has(job.phase)) return null;
  const rests = job.phase === "Suspended" || job.phase === "Suspending";
  return (
    <div class="actions">
      {rests ? (
        <button type="button" onClick={() => send("resume")}>{t("resume")}</button>
      ) : (
        <button type="button" onClick={() => send("suspend")}>{t("suspend")}</button>
      )}
      {sure ? (
        <span class="sure" role="group" aria-label={t("cancelSure")}>
          <span>{t("cancelSure")}</span>
          <button type="button" class="danger" onClick={() => send("cancel")}>{t("cancelYes")}</button>
          <button type="button" onClick={() => setSure(false)}>{t("keep")}</button>
        </span>
      ) : (
        <button type="button" class="danger" onClick={() => setSure(true)}>{t("cancel")}</button>
      )}
      <span class="muted" aria-live="polite">{message}</span>
      <Refusal error={error} />
    </div>
  );
}

function LogView({ job }: { job: JobDetails }) {
  const [rank, setRank] = useState(0);
  const [follow, setFollow] = useState(true);
  const [text, setText] = useState("");
  const [cut, setCut] = useState(false);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    let at: number | null = null;
    let timer: number | undefined;
    let current = true;
    const read = async () => {
      let ended = false;
      try {
        const where: string = at === null ? "tail=1000" : `from=${at}`;
        const found = await ask<Log>("GET", `/jobs/${job.number}/log?rank=${rank}&${where}`);
        if (!current) return;
        if (at === null) setCut(found.start > 0);
        if (found.text) setText((old) => (old + found.text).slice(-MOST_LOG));
        ended = found.text === "" && found.phase !== null && FINAL.has(found.phase);
        at = found.end;
      } catch {
        // it is asked again
      }
      if (current && !ended) timer = window.setTimeout(() => void read(), POLL);
    };
    setText("");
    void read();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [job.number, rank, job.ranks.length]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, follow]);
  return (
    <>
      <div class="log-head">
        <h2 id="log">{t("log")}</h2>
        {job.ranks.length > 1 && (
          <label>
            {t("rank")}{" "}
            <select value={rank} onChange={(event) => setRank(Number(event.currentTarget.value))}>
              {job.ranks.map((one) => <option key={one} value={one}>{one}</option>)}
            </select>
          </label>
        )}
        <label class="check">
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {t("follow")}
        </label>
      </div>
      {cut && <p class="muted">{t("logCut")}</p>}
      {text === "" ? <p class="muted">{t("noLog")}</p> : <pre class="log" ref={box} tabIndex={0} aria-label={t("log")} role="log" aria-live="off">{text}</pre>}
    </>
  );
}
