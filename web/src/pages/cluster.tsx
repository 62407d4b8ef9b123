// The jobs and queues of a cluster: what waits and why, one job with its pods, events and logs.
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, type Amounts, type ClusterJob, type ClusterJobDetails, type ClusterPod, type Queue } from "../api";
import { NOTHING, bytes, clock, duration, share } from "../format";
import { Badge, CommandLine, Facts, Heading, Lacks, Meter, Refusal } from "../parts";
import { useStore } from "../store";
import { t, type Key } from "../strings";

const FINAL = new Set(["Succeeded", "Failed", "Cancelled"]);
const KINDS_OF_JOBS = ["pods", "gangs.aliquot.io", "elasticjobs.aliquot.io"];
const LOOK = 15_000; // between two looks without a change that the page heard of
const LOG_LOOK = 2000;

const rowsOf = (jobs: { items: unknown[] } | null) => (jobs?.items ?? []) as ClusterJob[];

export function ClusterJobsPage() {
  const { jobs, machine } = useStore();
  const [wanted, setWanted] = useState("");
  if (jobs === null || machine === null) return <p class="muted">{t("loading")}</p>;
  const words = wanted.toLowerCase().split(/\s+/);
  const all = rowsOf(jobs);
  const rows = all.filter((one) => {
    const text = [one.name, one.namespace, one.queue, one.phase, t(`is_${one.kind}` as Key)].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const lacks = KINDS_OF_JOBS.filter((one) => machine.lacks?.includes(one));
  return (
    <>
      <Heading text={t("jobs")}>
        {all.length > 0 && <input type="search" class="search" placeholder={t("search")} aria-label={t("search")} value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />}
      </Heading>
      {lacks.length > 0 && <Lacks kinds={lacks} />}
      {rows.length === 0 ? <p class="note">{t(all.length > 0 ? "nothingFound" : "noClusterJobs")}</p> : (
        <ul class="jobs panel">
          {rows.map((one) => <ClusterJobRow key={one.id} job={one} now={machine.time} />)}
        </ul>
      )}
      {jobs.left_out > 0 && <p class="muted">{t("leftOutCluster", { n: jobs.left_out })}</p>}
    </>
  );
}

function startText(job: ClusterJob): string {
  return job.expected_start === null ? t("plannedUnknown") : t("planned", { time: clock(job.expected_start) });
}

function ClusterJobRow({ job, now }: { job: ClusterJob; now: number }) {
  return (
    <li>
      <div class="job-name">
        <a href={`#/jobs/${job.id}`}>{job.name}</a>
        <span class="muted">{t(`is_${job.kind}` as Key)} · {job.namespace}</span>
      </div>
      {job.phase === null ? <span class="muted">{NOTHING}</span> : <Badge word={job.phase} />}
      <div class="job-why">
        <span>{job.reason ?? NOTHING}</span>
        {job.waits && <span class="muted">{startText(job)}</span>}
      </div>
      <div class="job-size muted">
        <span>{job.kind === "Pod" ? (job.node ?? NOTHING) : `${t("workers")} ${job.workers}${job.sizes === null ? "" : ` (${job.sizes})`}`}</span>
        <span>{job.created === null ? NOTHING : t("ago", { age: duration(now - job.created) })}</span>
      </div>
    </li>
  );
}

export function ClusterJobPage({ kind, namespace, name }: { kind: string; namespace: string; name: string }) {
  const { jobs, machine } = useStore();
  const [found, setFound] = useState<ClusterJobDetails | null>(null);
  const [error, setError] = useState<unknown>(null);
  const path = `/jobs/${kind}/${namespace}/${name}`;
  const live = rowsOf(jobs).find((one) => one.id === `${kind}/${namespace}/${name}`);
  const look = () =>
    ask<ClusterJobDetails>("GET", path)
      .then((details) => {
        setFound(details);
        setError(null);
      })
      .catch(setError);
  useEffect(() => {
    void look();
    const timer = setInterval(() => void look(), LOOK);
    return () => clearInterval(timer);
  }, [path, live?.phase, live?.reason, live?.workers]);
  const job = found?.job ?? null;
  return (
    <>
      <a class="back" href="#/jobs">← {t("jobs")}</a>
      <Heading text={name}>{job?.phase && <Badge word={job.phase} />}</Heading>
      <Refusal error={error} />
      {found && job && <Details found={found} job={{ ...job, ...live }} path={path} kind={kind} now={machine?.time ?? Date.now() / 1000} look={() => void look()} />}
    </>
  );
}

function Details({ found, job, path, kind, now, look }: { found: ClusterJobDetails; job: ClusterJob; path: string; kind: string; now: number; look: () => void }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const pods = found.pods ?? [];
  const pod = pods.find((one) => one.name === chosen) ?? pods[0] ?? null;
  return (
    <>
      {job.waits ? (
        <section class="note wait" aria-labelledby="waits">
          <h2 id="waits">{t("waitsFor")}</h2>
          <p>{job.reason ?? t("seeEvents")}</p>
          <p class="muted">{startText(job)}</p>
        </section>
      ) : (
        job.reason !== null && <p class="reason">{job.reason}</p>
      )}
      {kind !== "gangs" && !FINAL.has(job.phase ?? "") && <Actions job={job} path={path} kind={kind} look={look} />}
      <div class="columns">
        <div>
          {found.pods === null && <Lacks kinds={["pods"]} />}
          {pods.length > 0 && (
            <section class="panel" aria-labelledby="pods">
              <h2 id="pods">{t("pods")}</h2>
              <ul class="slices pods">
                {pods.map((one) => <PodRow key={one.name} pod={one} chosen={one === pod} choose={() => setChosen(one.name)} />)}
              </ul>
            </section>
          )}
          {pod && <PodLog key={pod.name} namespace={job.namespace} pod={pod} />}
          {pod && pod.phase === "Running" && <Resize key={`${pod.name}-size`} namespace={job.namespace} pod={pod} />}
        </div>
        <div>
          <section class="panel" aria-labelledby="facts">
            <h2 id="facts">{t(`is_${job.kind}` as Key)}</h2>
            <Facts
              rows={[
                [t("namespace"), job.namespace],
                [t("queue"), job.queue === null ? NOTHING : <a href="#/queues">{job.queue}</a>],
                [t("workers"), `${job.workers}${job.sizes === null ? "" : ` (${job.sizes})`}`],
                ...(job.ready === null ? [] : ([[t("ready"), `${job.ready}`]] as [string, string][])),
                [t("topology"), job.topology ?? NOTHING],
                [t("submitted"), job.created === null ? NOTHING : `${clock(job.created)} (${t("ago", { age: duration(now - job.created) })})`],
                [t("since"), clock(job.since)],
              ]}
            />
          </section>
          <Story found={found} />
        </div>
      </div>
    </>
  );
}

function Story({ found }: { found: ClusterJobDetails }) {
  return (
    <>
      {found.history.length > 0 && (
        <section class="panel" aria-labelledby="history">
          <h2 id="history">{t("history")}</h2>
          <ol class="history">
            {found.history.map((one, at) => (
              <li key={at}>
                <time>{clock(one.at)}</time>
                <Badge word={one.phase} />
                <span>{one.reason}</span>
              </li>
            ))}
          </ol>
        </section>
      )}
      <section class="panel" aria-labelledby="events">
        <h2 id="events">{t("events")}</h2>
        {found.events === null ? <Lacks kinds={["events"]} /> : found.events.length === 0 ? <p class="muted">{t("noEvents")}</p> : (
          <ol class="history">
            {found.events.map((one, at) => (
              <li key={at}>
                <time>{clock(one.at)}</time>
                <span class={one.type === "Warning" ? "badge bad" : "badge calm"}>{one.reason}</span>
                <span>{one.message} <span class="muted">{one.about}{one.count > 1 ? ` ×${one.count}` : ""}</span></span>
              </li>
            ))}
          </ol>
        )}
      </section>
    </>
  );
}

function PodRow({ pod, chosen, choose }: { pod: ClusterPod; chosen: boolean; choose: () => void }) {
  const parts = pod.plan.map((one) => `${one.gpus.length} × GPU, ${bytes(one.memory_bytes)}, ${share(one.compute_percent)}`);
  return (
    <li>
      <span class="who">
        <button type="button" class="quiet" aria-pressed={chosen} onClick={choose}>{pod.name}</button>
        <span class="muted">{pod.node ?? NOTHING}</span>
      </span>
      <Badge word={pod.phase} />
      <span class="muted">{[pod.reason, pod.exit_code === null ? null : `${t("exitCode")} ${pod.exit_code}`].filter(Boolean).join(" · ")}</span>
      <span class="figure">{parts.join(" · ") || NOTHING}</span>
    </li>
  );
}

function Actions({ job, path, kind, look }: { job: ClusterJob; path: string; kind: string; look: () => void }) {
  const [error, setError] = useState<unknown>(null);
  const [message, setMessage] = useState("");
  const [sure, setSure] = useState(false);
  const [workers, setWorkers] = useState("");
  const act = (answer: Promise<{ message: string }>) => {
    setSure(false);
    answer
      .then((found) => {
        setMessage(found.message);
        setError(null);
        look();
      })
      .catch(setError);
  };
  const send = (verb: string) => act(ask("POST", `${path}/${verb}`));
  const scale = (event: Event) => {
    event.preventDefault();
    act(ask("PUT", `/elasticjobs/${job.namespace}/${job.name}/workers`, { workers: Number(workers) }));
  };
  return (
    <div class="actions">
      {kind === "elasticjobs" && (
        <>
          <button type="button" onClick={() => send(job.suspended ? "resume" : "suspend")}>{t(job.suspended ? "resume" : "suspend")}</button>
          <form class="inline" onSubmit={scale}>
            <label>{t("mostWorkers")} <input type="number" min="1" max="10000" required value={workers} onInput={(event) => setWorkers(event.currentTarget.value)} /></label>
            <button type="submit">{t("apply")}</button>
          </form>
        </>
      )}
      {sure ? (
        <span class="sure" role="group" aria-label={t("cancelSure")}>
          <span>{t("cancelSure")}</span>
          <button type="button" class="danger" onClick={() => send("cancel")}>{t("cancelYes")}</button>
          <button type="button" onClick={() => setSure(false)}>{t("keep")}</button>
        </span>
      ) : (
        <button type="button" class="danger" onClick={() => setSure(true)}>{t(kind === "pods" ? "deletePod" : "cancel")}</button>
      )}
      <span class="muted" aria-live="polite">{message}</span>
      <Refusal error={error} />
    </div>
  );
}

/** Asks for other slices by the pod's annotations; its events say what came of it. */
function Resize({ namespace, pod }: { namespace: string; pod: ClusterPod }) {
  const [memory, setMemory] = useState(pod.memory ?? "");
  const [compute, setCompute] = useState(pod.compute ?? "");
  const [error, setError] = useState<unknown>(null);
  const [message, setMessage] = useState("");
  const changes = [["memory", memory, pod.memory ?? ""], ["compute", compute, pod.compute ?? ""]].filter(([, now, was]) => now !== was);
  const notes = changes.map(([key, value]) => (value ? `aliquot.io/${key}=${value}` : `aliquot.io/${key}-`));
  const submit = (event: Event) => {
    event.preventDefault();
    const body = Object.fromEntries(changes.map(([key, value]) => [key, value || null]));
    ask<{ message: string }>("POST", `/pods/${namespace}/${pod.name}/resize`, body)
      .then((found) => {
        setMessage(found.message);
        setError(null);
      })
      .catch(setError);
  };
  return (
    <section class="panel" aria-labelledby="resize">
      <h2 id="resize">{t("resize")}</h2>
      <p class="muted">{t("resizePod")}</p>
      <form class="fields" onSubmit={submit}>
        <label><span>{t("memory")}</span><input value={memory} placeholder="8GiB" onInput={(event) => setMemory(event.currentTarget.value)} /></label>
        <label><span>{t("compute")}</span><input value={compute} placeholder="30" onInput={(event) => setCompute(event.currentTarget.value)} /></label>
        <button type="submit" class="main" disabled={changes.length === 0}>{t("apply")}</button>
      </form>
      <Refusal error={error} />
      <p class="muted" aria-live="polite">{message}</p>
      {changes.length > 0 && <CommandLine text={`kubectl annotate --namespace ${namespace} pod ${pod.name} --overwrite ${notes.join(" ")}`} />}
    </section>
  );
}

function PodLog({ namespace, pod }: { namespace: string; pod: ClusterPod }) {
  const [container, setContainer] = useState(pod.containers[0] ?? "");
  const [follow, setFollow] = useState(true);
  const [text, setText] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);
  const box = useRef<HTMLPreElement>(null);
  const has = pod.node !== null;
  useEffect(() => {
    if (!has) return;
    let current = true;
    let timer: number | undefined;
    const read = async () => {
      try {
        const found = await ask<{ text: string }>("GET", `/pods/${namespace}/${pod.name}/log?container=${container}`);
        if (!current) return;
        setText(found.text);
        setError(null);
      } catch (problem) {
        if (current) setError(problem);
      }
      if (current) timer = window.setTimeout(() => void read(), LOG_LOOK);
    };
    void read();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [namespace, pod.name, container, has]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, follow]);
  return (
    <section class="panel" aria-labelledby="log">
      <div class="log-head">
        <h2 id="log">{t("log")}</h2>
        {pod.containers.length > 1 && (
          <label>
            {t("container")}{" "}
            <select value={container} onChange={(event) => setContainer(event.currentTarget.value)}>
              {pod.containers.map((one) => <option key={one} value={one}>{one}</option>)}
            </select>
          </label>
        )}
        <label class="check">
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {t("follow")}
        </label>
      </div>
      <Refusal error={error} />
      {text ? <pre class="log" ref={box} tabIndex={0} aria-label={t("log")} role="log" aria-live="off">{text}</pre> : <p class="muted">{t("noLog")}</p>}
    </section>
  );
}

export function QueuesPage() {
  const { jobs, machine } = useStore();
  if (jobs === null || machine === null) return <p class="muted">{t("loading")}</p>;
  const queues = jobs.queues ?? [];
  const hidden = machine.lacks?.includes("queues.aliquot.io");
  return (
    <>
      <Heading text={t("queues")} />
      {hidden ? <Lacks kinds={["queues.aliquot.io"]} /> : queues.length === 0 && <p class="note">{t("noQueues")}</p>}
      <div class="gpus">{queues.map((one) => <QueuePanel key={one.name} queue={one} now={machine.time} />)}</div>
    </>
  );
}

function amountsText(amounts: Amounts | null): string {
  if (amounts === null) return NOTHING;
  const parts = [
    amounts.gpus === null ? null : t("nGpus", { n: amounts.gpus }),
    amounts.memory_bytes === null ? null : bytes(amounts.memory_bytes),
    amounts.compute_percent === null ? null : `${amounts.compute_percent} %`,
  ];
  return parts.filter((one) => one !== null).join(", ") || NOTHING;
}

function QueuePanel({ queue, now }: { queue: Queue; now: number }) {
  const [quota, used] = [queue.quota?.gpus ?? null, queue.used?.gpus ?? null];
  const counts = (pods: number | null, gangs: number | null) => (pods === null ? NOTHING : t("podsAndGangs", { pods, gangs: gangs ?? 0 }));
  const waited = queue.waiting_since === null ? "" : ` · ${t("longest", { age: duration(now - queue.waiting_since) })}`;
  return (
    <section class="panel" aria-labelledby={`queue-${queue.name}`}>
      <h2 id={`queue-${queue.name}`}>{queue.name}</h2>
      {queue.problem && <p class="note bad">{queue.problem}</p>}
      {quota !== null && <Meter label={t("quotaUsed")} value={used} most={quota} text={t("gpusOf", { used: used ?? NOTHING, quota })} />}
      <Facts
        rows={[
          [t("quota"), amountsText(queue.quota)],
          [t("usedNow"), amountsText(queue.used)],
          [t("borrowed"), amountsText(queue.borrowed)],
          [t("unusedQuota"), amountsText(queue.unused)],
          [t("limit"), amountsText(queue.limit)],
          [t("parentQueue"), queue.parent ?? NOTHING],
          [t("running"), counts(queue.running_pods, queue.running_gangs)],
          [t("waiting"), counts(queue.waiting_pods, queue.waiting_gangs) + waited],
        ]}
      />
    </section>
  );
}
