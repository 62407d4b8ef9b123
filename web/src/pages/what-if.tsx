// What the pool would decide if something were different. It decides itself; nothing is changed.
import { useEffect, useState } from "preact/hooks";
import { ask, type Outcome, type WhatWould } from "../api";
import { NOTHING, clock } from "../format";
import { Heading, Refusal } from "../parts";
import { useStore } from "../store";
import { t, type Key } from "../strings";

const FINAL = new Set(["Succeeded", "Failed", "Cancelled"]);
const TONES: Record<Outcome["does"], string> = { starts: "good", grows: "good", runs: "good", waits: "wait", shrinks: "wait", rests: "calm", ends: "bad" };

interface Bound {
  kind: "user_limits" | "queue_limits" | "queue_quotas";
  name: string;
  gpus: string;
}
const KINDS: [Bound["kind"], Key][] = [["user_limits", "limitOfUser"], ["queue_limits", "limitOfQueue"], ["queue_quotas", "quotaOfQueue"]];

export function WhatIfPage() {
  const { machine, jobs } = useStore();
  const [asked, setAsked] = useState<Record<string, string> | null>({ memory: "", compute: "", workers: "1", gpus: "1" });
  const [gpus, setGpus] = useState<number[]>([]);
  const [gone, setGone] = useState<number[]>([]);
  const [bound, setBound] = useState<Bound>({ kind: "user_limits", name: "", gpus: "" });
  const [found, setFound] = useState<WhatWould | null>(null);
  const [error, setError] = useState<unknown>(null);
  const body = bodyOf(asked, gpus, gone, bound);
  const text = JSON.stringify(body);
  const shape = (jobs?.items ?? []).map((one) => `${one.number} ${one.phase} ${one.workers}`).join();
  useEffect(() => {
    let current = true;
    const timer = setTimeout(() => {
      ask<WhatWould>("POST", "/what-if", body)
        .then((answer) => {
          if (!current) return;
          setFound(answer);
          setError(null);
        })
        .catch((problem: unknown) => {
          if (!current) return;
          setFound(null);
          setError(problem);
        });
    }, 300);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [text, shape]);
  if (machine === null || jobs === null) return <p class="muted">{t("loading")}</p>;
  const running = jobs.items.filter((one) => one.number !== null && !FINAL.has(one.phase));
  const toggled = (list: number[], one: number) => (list.includes(one) ? list.filter((other) => other !== one) : [...list, one]);
  const set = (name: string) => (event: { currentTarget: { value: string } }) => setAsked({ ...asked, [name]: event.currentTarget.value });
  return (
    <>
      <Heading text={t("whatIf")}><p class="muted">{t("whatIfText")}</p></Heading>
      {!jobs.up && <p class="note">{t("noPool")}</p>}
      <div class="columns">
        <form class="panel" aria-label={t("whatIf")} onSubmit={(event) => event.preventDefault()}>
          <fieldset>
            <legend><label class="check"><input type="checkbox" checked={asked !== null} onChange={(event) => setAsked(event.currentTarget.checked ? { memory: "", compute: "", workers: "1", gpus: "1" } : null)} /> {t("ifAdded")}</label></legend>
            {asked !== null && (
              <div class="fields">
                {([["memory", "memory", "memoryHelp"], ["compute", "compute", "computeHelp"], ["workers", "workers", "workersHelp"], ["gpus", "gpusEach", null], ["queue", "queue", "queueHelp"]] as [string, Key, Key | null][]).map(([name, label, help]) => (
                  <div class="field" key={name}>
                    <label for={`if-${name}`}>{t(label)}</label>
                    <input id={`if-${name}`} value={asked[name] ?? ""} onInput={set(name)} autocomplete="off" spellcheck={false} type={name === "gpus" ? "number" : "text"} min={name === "gpus" ? 1 : undefined} aria-describedby={help === null ? undefined : `if-help-${name}`} />
                    {help !== null && <small id={`if-help-${name}`} class="muted">{t(help)}</small>}
                  </div>
                ))}
              </div>
            )}
          </fieldset>
          <Chips label={t("ifGpusGone")} items={machine.gpus.map((one) => [one.index, `GPU ${one.index}`])} chosen={gpus} toggle={(one) => setGpus(toggled(gpus, one))} />
          {running.length > 0 && <Chips label={t("ifJobsGone")} items={running.map((one) => [one.number!, one.name ?? `${t("number")} ${one.number}`])} chosen={gone} toggle={(one) => setGone(toggled(gone, one))} />}
          <fieldset>
            <legend>{t("ifLimit")}</legend>
            <div class="fields three">
              <label><span>{t("ifWhich")}</span>
                <select value={bound.kind} onChange={(event) => setBound({ ...bound, kind: event.currentTarget.value as Bound["kind"] })}>
                  {KINDS.map(([kind, word]) => <option key={kind} value={kind}>{t(word)}</option>)}
                </select>
              </label>
              <label><span>{t("name")}</span><input value={bound.name} placeholder={bound.kind === "user_limits" ? machine.user : ""} autocomplete="off" onInput={(event) => setBound({ ...bound, name: event.currentTarget.value })} /></label>
              <label><span>{t("gpus")}</span><input inputMode="decimal" value={bound.gpus} autocomplete="off" onInput={(event) => setBound({ ...bound, gpus: event.currentTarget.value })} /></label>
            </div>
          </fieldset>
        </form>
        <section class="panel" aria-labelledby="then" aria-live="polite">
          <h2 id="then">{t("then")}</h2>
          <Refusal error={error} />
          {found === null && error === null && <p class="muted">{t("loading")}</p>}
          {found && <Answer found={found} />}
        </section>
      </div>
    </>
  );
}

function Chips({ label, items, chosen, toggle }: { label: string; items: [number, string][]; chosen: number[]; toggle: (one: number) => void }) {
  return (
    <fieldset>
      <legend>{label}</legend>
      <div class="chips">
        {items.map(([one, word]) => <button key={one} type="button" class="chip" aria-pressed={chosen.includes(one)} onClick={() => toggle(one)}>{word}</button>)}
      </div>
    </fieldset>
  );
}

function Answer({ found }: { found: WhatWould }) {
  const changed = found.jobs.filter((one) => JSON.stringify(one.before) !== JSON.stringify(one.after));
  const same = found.jobs.length - changed.length;
  return (
    <>
      {found.asked && <div class={`note ${found.asked.does === "starts" ? "good" : "wait"}`}><p>{t("theAsked")}</p><Said outcome={found.asked} /></div>}
      {changed.length === 0 && <p class="muted">{t("nothingElse")}</p>}
      {changed.length > 0 && (
        <ul class="changes">
          {changed.map((one) => (
            <li key={one.number}>
              <span class="who"><span>{one.name ?? t("otherUser")}</span><span class="muted">{t("number")} {one.number} · {one.user}</span></span>
              <div><span class="muted">{t("now")}:</span> <Said outcome={one.before} /></div>
              <div><span class="muted">{t("then")}:</span> <Said outcome={one.after} /></div>
            </li>
          ))}
        </ul>
      )}
      {found.ended_grants.length > 0 && <p class="note bad">{t("endedGrants", { names: found.ended_grants.join(", ") })}</p>}
      {same > 0 && changed.length > 0 && <p class="muted">{t("sameJobs", { n: same })}</p>}
    </>
  );
}

function Said({ outcome }: { outcome: Outcome | null }) {
  if (outcome === null) return <span>{NOTHING}</span>;
  const gpus = outcome.gpus?.map((one) => `GPU ${one}`).join(", ");
  const turn = outcome.place === undefined ? "" : `${t("place", { place: outcome.place, of: outcome.of ?? NOTHING })} · ${outcome.expected_start ? t("planned", { time: clock(outcome.expected_start) }) : t("plannedUnknown")}`;
  return (
    <span class="said">
      <span class={`badge ${TONES[outcome.does]}`}>{t(`does_${outcome.does}`)}</span>{" "}
      {outcome.size !== undefined && outcome.size > 0 && <span class="figure">{t("workersAre", { n: outcome.size })}</span>} {gpus && <span>{gpus}</span>}
      {outcome.reason && <span class="block">{outcome.reason}</span>}
      {turn && <span class="block muted">{turn}</span>}
    </span>
  );
}

function bodyOf(asked: Record<string, string> | null, gpus: number[], gone: number[], bound: Bound): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  if (asked !== null) {
    const add: Record<string, string | number> = {};
    for (const [name, value] of Object.entries(asked)) {
      if (value.trim() !== "") add[name] = name === "gpus" ? Number(value) : value.trim();
    }
    body["add"] = add;
  }
  if (gpus.length > 0) body["without_gpus"] = gpus;
  if (gone.length > 0) body["without_jobs"] = gone;
  if (bound.name.trim() !== "") body[bound.kind] = [{ name: bound.name.trim(), gpus: bound.gpus.trim() === "" ? null : Number(bound.gpus.replace(",", ".")) }];
  return body;
}
