// One grant: what its slices use and get, its processes, and resizing it.
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, type Gpu, type Grant, type History, type Points, type Resized } from "../api";
import { Chart } from "../chart";
import { NOTHING, bytes, duration, milliseconds, percent, share } from "../format";
import { Badge, CommandLine, Facts, Heading, Meter, Refusal, Spans, computeText, memoryText, shortCommand, type Span } from "../parts";
import { useStore } from "../store";
import { t, type Key } from "../strings";

const GIB = 2 ** 30;
const KEPT = 600;
const AGAIN = 15_000;

export function SlicePage({ name }: { name: string }) {
  const { machine } = useStore();
  const [span, setSpan] = useState<Span>("recent");
  if (machine === null) return <p class="muted">{t("loading")}</p>;
  const grant = machine.grants.find((one) => one.name === name);
  return (
    <>
      <a class="back" href="#/">← {t("gpus")}</a>
      <Heading text={name}>
        {grant && <Badge word={grant.state} />}
        <Spans span={span} choose={setSpan} />
      </Heading>
      {grant ? <Details key={grant.id} grant={grant} gpus={machine.gpus} now={machine.time} span={span} /> : <Past name={name} now={machine.time} span={span} />}
    </>
  );
}

/** What an ended slice used, as far as it was recorded. */
function Past({ name, now, span }: { name: string; now: number; span: Span }) {
  const found = useStored(name, name, span === "recent" ? "day" : span, now);
  return (
    <>
      <p class="note">{t("gone")}</p>
      {found && found.slices.map((one) => (
        <section class="panel" key={one.gpu} aria-label={one.gpu}>
          <Lines points={one} history={found} now={now} limit={null} memory={Math.max(1, ...one.part_bytes.map((part) => part ?? 0))} />
        </section>
      ))}
    </>
  );
}

function Details({ grant, gpus, now, span }: { grant: Grant; gpus: Gpu[]; now: number; span: Span }) {
  const recent = useRecent(grant, now);
  const stored = useStored(grant.id, grant.name ?? "", span, now);
  const name = grant.name ?? "";
  return (
    <>
      {grant.broken && <p class="note bad">{grant.broken}</p>}
      <div class="columns">
        <div>
          {grant.slices.map((slice) => {
            const history = span === "recent" ? recent : stored;
            const points = history?.slices.find((one) => one.gpu === slice.gpu);
            return (
              <section class="panel" key={slice.gpu} aria-labelledby={`slice-${slice.gpu_index}`}>
                <h2 id={`slice-${slice.gpu_index}`}>GPU {slice.gpu_index ?? NOTHING}</h2>
                <Meter label={t("memory")} value={slice.used_bytes} most={slice.memory_bytes} text={memoryText(slice.used_bytes, slice.memory_bytes)} />
                <Meter label={t("compute")} value={slice.got_ratio} most={1} text={computeText(slice.got_ratio, slice.compute_percent)} />
                {history && points && <Lines points={points} history={history} now={now} limit={slice.compute_percent === null ? null : slice.compute_percent / 100} memory={slice.memory_bytes} />}
              </section>
            );
          })}
        </div>
        <div>
          {!grant.hidden && grant.slices[0] && <Resize name={name} grant={grant} gpus={gpus} />}
          <section class="panel" aria-labelledby="facts">
            <h2 id="facts">{t("slice")}</h2>
            <Facts
              rows={[
                [t("owner"), grant.user],
                [t("command"), <code title={grant.command ?? ""}>{shortCommand(grant.command)}</code>],
                [t("age"), duration(now - grant.created)],
                [t("policy"), grant.slices[0]?.policy ?? NOTHING],
                [t("priority"), grant.slices[0]?.priority ?? NOTHING],
                [t("idle"), duration(grant.slices[0]?.idle_seconds)],
                [t("waits"), milliseconds(grant.slices[0]?.wait_p99_seconds)],
                ...(grant.swappable ? ([[t("away"), bytes(grant.away_bytes)]] as [string, string][]) : []),
              ]}
            />
          </section>
          <section class="panel" aria-labelledby="processes">
            <h2 id="processes">{t("processes")}</h2>
            {grant.processes.length === 0 ? (
              <p class="muted">{t("noProcesses")}</p>
            ) : (
              <table>
                <thead>
                  <tr><th>{t("pid")}</th><th>{t("program")}</th><th class="right">{t("memory")}</th></tr>
                </thead>
                <tbody>
                  {grant.processes.map((one) => (
                    <tr key={one.pid}>
                      <td>{one.pid}</td>
                      <td>{one.name} {one.stopped && <Badge word="stopped" />}</td>
                      <td class="right figure">{bytes(one.used_bytes)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
          </section>
        </div>
      </div>
    </>
  );
}

export function Lines({ points, history, now, limit, memory }: { points: Points; history: History; now: number; limit: number | null; memory: number }) {
  const { times, used_bytes: used, part_bytes: part, got_ratio: got } = points;
  const common = { times, step: history.step, since: Math.min(now - 60, Math.max(history.since, history.step < 15 ? (times[0] ?? 0) : 0)), until: now };
  const limits = part.map((one) => one ?? memory);
  const most = Math.max(memory, ...limits) * 1.05;
  return (
    <>
      <h3>{t("memory")}</h3>
      <Chart {...common} label={t("memory")} values={used} most={most} limit={limits} format={bytes} />
      <h3>{t("compute")}</h3>
      <Chart {...common} label={t("compute")} values={got} most={1.02} limit={limit} format={percent} />
    </>
  );
}

/** A day or a month as the console has stored it, asked again as it grows. */
function useStored(id: string, name: string, span: Span, now: number): History | null {
  const [found, setFound] = useState<History | null>(null);
  const round = Math.floor((now * 1000) / AGAIN);
  useEffect(() => setFound(null), [id, span]);
  useEffect(() => {
    if (span === "recent") return;
    let current = true;
    void ask<History>("GET", `/grants/${encodeURIComponent(name)}/history?span=${span}`)
      .then((history) => current && setFound(history))
      .catch(() => undefined);
    return () => {
      current = false;
    };
  }, [id, span, round]);
  return found;
}

/** The last minutes as the console has them, and then what comes. */
function useRecent(grant: Grant, now: number): History {
  const history = useRef<History>({ step: 5, since: now - KEPT, slices: [] });
  const [, redraw] = useState(0);
  useEffect(() => {
    void ask<History>("GET", `/grants/${encodeURIComponent(grant.name ?? "")}/history`)
      .then((found) => {
        history.current = found;
        redraw((n) => n + 1);
      })
      .catch(() => undefined); // the lines begin now
  }, [grant.id]);
  const found = history.current;
  found.since = now - KEPT;
  for (const slice of grant.slices) {
    let known = found.slices.find((one) => one.gpu === slice.gpu);
    if (!known) found.slices.push((known = { gpu: slice.gpu, times: [], used_bytes: [], part_bytes: [], got_ratio: [] }));
    if ((known.times.at(-1) ?? 0) >= now) continue;
    known.times.push(now);
    known.used_bytes.push(slice.used_bytes);
    known.part_bytes.push(slice.memory_bytes);
    known.got_ratio.push(slice.got_ratio);
    while ((known.times[0] ?? now) < found.since) {
      known.times.shift();
      known.used_bytes.shift();
      known.part_bytes.shift();
      known.got_ratio.shift();
    }
  }
  return { ...found };
}

interface Wanted {
  memory: number;
  compute: number | null;
  policy: string;
  priority: string;
}

function Resize({ name, grant, gpus }: { name: string; grant: Grant; gpus: Gpu[] }) {
  const first = grant.slices[0]!;
  const own = gpus.filter((gpu) => grant.slices.some((one) => one.gpu === gpu.uuid));
  const present: Wanted = { memory: first.memory_bytes, compute: first.compute_percent, policy: first.policy, priority: first.priority };
  const [wanted, setWanted] = useState<Wanted | null>(null);
  const [effect, setEffect] = useState<Resized | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [message, setMessage] = useState("");
  const shown = wanted ?? present;
  const most = Math.min(...own.map((gpu) => gpu.free_bytes ?? 0)) + first.memory_bytes;
  const mostPercent = Math.min(100, Math.min(...own.map((gpu) => gpu.free_percent ?? 0)) + (first.compute_percent ?? 0));
  const body = wanted && changes(present, wanted);
  const text = JSON.stringify(body);

  useEffect(() => {
    setEffect(null);
    setError(null);
    if (body === null || Object.keys(body).length === 0) return;
    let current = true;
    const timer = setTimeout(() => {
      ask<Resized>("POST", `/grants/${encodeURIComponent(name)}/resize`, { ...body, dry_run: true })
        .then((found) => current && setEffect(found))
        .catch((problem: unknown) => current && setError(problem));
    }, 250);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [text]);

  const change = (some: Partial<Wanted>) => {
    setMessage("");
    setWanted({ ...shown, ...some });
  };
  const apply = async (event: Event) => {
    event.preventDefault();
    try {
      await ask<Resized>("POST", `/grants/${encodeURIComponent(name)}/resize`, body);
      setWanted(null);
      setMessage(t("applied"));
    } catch (problem) {
      setError(problem);
    }
  };
  const asks = body !== null && Object.keys(body).length > 0;
  return (
    <form class="panel" aria-labelledby="resize" onSubmit={(event) => void apply(event)}>
      <h2 id="resize">{t("resize")}</h2>
      <p class="muted">{t("resizeText")}</p>
      <label class="slider">
        <span class="slider-words">{t("memory")} <span class="figure">{bytes(shown.memory)}</span></span>
        <input type="range" name="memory" min={GIB / 4} max={Math.max(most, shown.memory)} step={GIB / 4} value={shown.memory}
          aria-valuetext={bytes(shown.memory)} onInput={(event) => change({ memory: Number(event.currentTarget.value) })} />
      </label>
      <label class="slider">
        <span class="slider-words">{t("compute")} <span class="figure">{share(shown.compute)}</span></span>
        <input type="range" name="compute" min={0} max={Math.max(mostPercent, shown.compute ?? 0)} step={1} value={shown.compute ?? 0}
          aria-valuetext={share(shown.compute)} onInput={(event) => change({ compute: Number(event.currentTarget.value) || null })} />
      </label>
      <div class="pair">
        <Choice label={t("policy")} value={shown.policy} words={["elastic", "hard"]} choose={(policy) => change({ policy })} />
        <Choice label={t("priority")} value={shown.priority} words={["latency", "normal", "background"]} choose={(priority) => change({ priority })} />
      </div>
      <div class="effect" aria-live="polite">
        <h3>{t("effect")}</h3>
        {!asks && <p class="muted">{message || t("effectNone")}</p>}
        {asks && effect === null && error === null && <p class="muted">{t("effectChecking")}</p>}
        {effect !== null && <Effect effect={effect} />}
        <Refusal error={error} />
      </div>
      <button type="submit" class="main" disabled={effect === null}>{t("apply")}</button>
      {effect !== null && <CommandLine text={effect.command_line} />}
    </form>
  );
}

function Choice({ label, value, words, choose }: { label: string; value: string; words: Key[]; choose: (word: string) => void }) {
  return (
    <label>
      <span>{label}</span>
      <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
        {words.map((one) => <option key={one} value={one}>{t(one)}</option>)}
      </select>
    </label>
  );
}

function Effect({ effect }: { effect: Resized }) {
  const lines = effect.slices.flatMap(({ gpu_index: index, before, after, free_bytes, free_percent }) => [
    ...(before.memory_bytes === after.memory_bytes ? [] : [t("effectMemory", { index, before: bytes(before.memory_bytes), after: bytes(after.memory_bytes) })]),
    ...(before.compute_percent === after.compute_percent ? [] : [t("effectCompute", { index, before: share(before.compute_percent), after: share(after.compute_percent) })]),
    ...(before.policy === after.policy ? [] : [t("effectWord", { what: t("policy"), before: before.policy, after: after.policy })]),
    ...(before.priority === after.priority ? [] : [t("effectWord", { what: t("priority"), before: before.priority, after: after.priority })]),
    t("effectFree", { index, bytes: bytes(free_bytes), percent: `${free_percent} %` }),
  ]);
  return <ul>{lines.map((one) => <li key={one}>{one}</li>)}</ul>;
}

function changes(present: Wanted, wanted: Wanted): Record<string, string> {
  const body: Record<string, string> = {};
  if (wanted.memory !== present.memory) body["memory"] = wanted.memory % (GIB / 4) ? `${wanted.memory}` : wanted.memory % GIB ? `${wanted.memory / 2 ** 20}MiB` : `${wanted.memory / GIB}GiB`;
  if (wanted.compute !== present.compute) body["compute"] = wanted.compute === null ? "equal" : `${wanted.compute}`;
  if (wanted.policy !== present.policy) body["policy"] = wanted.policy;
  if (wanted.priority !== present.priority) body["priority"] = wanted.priority;
  return body;
}

