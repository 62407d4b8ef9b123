// A form that says where a job would go, then submits it, and shows the command that does the same.
import { useEffect, useState } from "preact/hooks";
import { ask, type Explained, type Submitted } from "../api";
import { bytes, clock } from "../format";
import { CommandLine, Heading, Refusal } from "../parts";
import { t, type Key } from "../strings";

const FIELDS: [string, Key, Key | null][] = [
  ["name", "name", "nameHelp"],
  ["memory", "memory", "memoryHelp"],
  ["compute", "compute", "computeHelp"],
  ["workers", "workers", "workersHelp"],
  ["gpus", "gpusEach", null],
  ["time", "timeLimit", "timeHelp"],
  ["queue", "queue", "queueHelp"],
  ["directory", "directory", "directoryHelp"],
];

type Values = Record<string, string>;

export function SubmitPage() {
  const [values, setValues] = useState<Values>({ command: "", workers: "1", gpus: "1" });
  const [found, setFound] = useState<Explained | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [refusal, setRefusal] = useState<unknown>(null);
  const body = bodyOf(values);
  const text = JSON.stringify(body);
  useEffect(() => {
    let current = true;
    const timer = setTimeout(() => {
      ask<Explained>("POST", "/explain", body)
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
  }, [text]);
  const submit = (event: Event) => {
    event.preventDefault();
    ask<Submitted>("POST", "/jobs", body)
      .then((job) => (location.hash = `#/jobs/${job.number}`))
      .catch(setRefusal);
  };
  const set = (name: string) => (event: { currentTarget: { value: string } }) => setValues({ ...values, [name]: event.currentTarget.value });
  return (
    <>
      <Heading text={t("submit")}><p class="muted">{t("submitText")}</p></Heading>
      <div class="columns">
        <form class="panel" onSubmit={submit} aria-label={t("submit")}>
          <div class="field">
            <label for="field-command">{t("command")}</label>
            <textarea id="field-command" name="command" rows={2} required spellcheck={false} placeholder="python train.py --epochs 3" value={values["command"]} onInput={set("command")} aria-describedby="help-command" />
            <small id="help-command" class="muted">{t("commandHelp")}</small>
          </div>
          <div class="fields">
            {FIELDS.map(([name, label, help]) => (
              <div class="field" key={name}>
                <label for={`field-${name}`}>{t(label)}</label>
                <input id={`field-${name}`} name={name} type={name === "gpus" ? "number" : "text"} min={name === "gpus" ? 1 : undefined} spellcheck={false} autocomplete="off" value={values[name] ?? ""} onInput={set(name)} aria-describedby={help === null ? undefined : `help-${name}`} />
                {help !== null && <small id={`help-${name}`} class="muted">{t(help)}</small>}
              </div>
            ))}
          </div>
          <Refusal error={refusal} />
          <button type="submit" class="main">{t("submitJob")}</button>
        </form>
        <section class="panel" aria-labelledby="explain" aria-live="polite">
          <h2 id="explain">{t("explain")}</h2>
          <Refusal error={error} />
          {found === null && error === null && <p class="muted">{t("loading")}</p>}
          {found && <Explanation found={found} several={values["workers"] !== "1"} />}
        </section>
      </div>
    </>
  );
}

function Explanation({ found, several }: { found: Explained; several: boolean }) {
  const chosen = new Set(found.slices.map((one) => one.index));
  const gpus = found.slices.map((one) => `GPU ${one.index}`).join(", ");
  const sorted = [...found.gpus].sort((a, b) => Number(chosen.has(b.index)) - Number(chosen.has(a.index)) || a.index - b.index);
  const waits = !found.fits && found.waiting !== null;
  return (
    <>
      {found.fits && <p class="verdict good">{t("explainStart", { gpus })}</p>}
      {waits && (
        <div class="note wait">
          <p>{t("explainWait", { reason: found.waiting?.reason ?? "" })}</p>
          <p class="muted">
            {t("place", { place: found.waiting?.place ?? 0, of: found.waiting?.of ?? 0 })} · {found.waiting?.expected_start ? t("planned", { time: clock(found.waiting.expected_start) }) : t("plannedUnknown")}
          </p>
        </div>
      )}
      {!found.fits && !waits && (
        <div class="note bad">
          <p>{t("explainNo")}</p>
          <p class="pre">{found.error}</p>
          {found.hint && <p class="muted pre">{found.hint}</p>}
        </div>
      )}
      <ul class="verdicts">
        {sorted.map((one) => (
          <li key={one.index}>
            <span class="who">GPU {one.index}</span>
            <span class={`badge ${chosen.has(one.index) ? "good" : one.fits ? "calm" : "bad"}`}>{chosen.has(one.index) ? t("chosen") : one.fits ? t("fits") : t("fitsNot")}</span>
            <span class="figure muted">{t("free", { bytes: bytes(one.free_bytes) })}</span>
            <span class="why muted">{one.why}</span>
          </li>
        ))}
      </ul>
      {several && <p class="muted">{t("explainEach")}</p>}
      <h3>{t("sameCommand")}</h3>
      <CommandLine text={found.command_line} />
    </>
  );
}

function bodyOf(values: Values): Record<string, string | number> {
  const body: Record<string, string | number> = {};
  for (const [name, value] of Object.entries(values)) {
    const text = value.trim();
    if (text === "") continue;
    if (name === "gpus") {
      if (text !== "1") body[name] = Number(text);
    } else if (name !== "workers" || text !== "1") body[name] = text;
  }
  return body;
}
