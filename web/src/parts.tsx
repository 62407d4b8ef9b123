// Small parts that several pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "./api";
import { NOTHING, bytes, percent, share } from "./format";
import { hasMoved } from "./store";
import { stateWord, t } from "./strings";

const TONES: Record<string, string> = {
  running: "good", Running: "good", Succeeded: "good",
  Bound: "good", Reserved: "wait", Waiting: "wait", Gathering: "wait", starting: "wait", Refused: "bad",
  Pending: "wait", Starting: "wait", Growing: "wait", Shrinking: "wait", Suspending: "wait", switching: "wait", ending: "wait", Cancelling: "wait",
  parked: "calm", Suspended: "calm", unused: "calm", stopped: "calm", ended: "calm", Cancelled: "calm",
  broken: "bad", Failed: "bad",
};

export function Badge({ word }: { word: string }) {
  return <span class={`badge ${TONES[word] ?? "calm"}`}>{stateWord(word)}</span>;
}

const HUES = 6;

/** The colours of the slices of one GPU: each keeps its own while it can, and neighbours differ. */
export function huesOf(ids: string[]): Map<string, number> {
  const hues = new Map<string, number>();
  for (const id of ids) {
    let hue = 7;
    for (const one of id) hue = (hue * 31 + one.charCodeAt(0)) >>> 0;
    const taken = new Set(hues.values());
    while (taken.size < HUES && taken.has(hue % HUES)) hue += 1;
    hues.set(id, hue % HUES);
  }
  return hues;
}

export function Meter({ label, value, most, text }: { label: string; value: number | null; most: number; text: string }) {
  const ratio = value === null || most === 0 ? 0 : Math.min(1, value / most);
  return (
    <div class="meter">
      <div class="meter-words">
        <span class="muted">{label}</span>
        <span class="figure">{text}</span>
      </div>
      <div class={value === null ? "track absent" : "track"}>
        <div class={ratio > 0.95 ? "fill full" : "fill"} style={{ width: `${ratio * 100}%` }} />
      </div>
    </div>
  );
}

export function Refusal({ error }: { error: unknown }) {
  if (error === null) return null;
  const problem = error instanceof Problem ? error : new Problem(0, String(error), null);
  return (
    <div class="note bad" role="alert">
      <p class="pre">{problem.message}</p>
      {problem.hint && <p class="muted pre">{problem.hint}</p>}
    </div>
  );
}

/** Which kinds of object the user may not list; nothing of them is shown. */
export function Lacks({ kinds }: { kinds: string[] }) {
  return (
    <div class="note">
      <p>{t("lacks", { kinds: kinds.join(", ") })}</p>
      <p class="muted">{t("lacksHint")}</p>
    </div>
  );
}

export function CommandLine({ text }: { text: string }) {
  const [done, setDone] = useState(false);
  return (
    <div class="command">
      <code tabIndex={0}>{text}</code>
      <button
        type="button"
        class="quiet"
        onClick={() => void navigator.clipboard?.writeText(text).then(() => setDone(true))}
      >
        {done ? t("copied") : t("copy")}
      </button>
    </div>
  );
}

/** A command without the folder of its program. */
export function shortCommand(command: string | null): string {
  return command === null ? NOTHING : command.replace(/^\S*\//, "");
}

export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Sets the page's title, and moves the reader there when the page changes. */
export function Heading({ text, children }: { text: string; children?: ComponentChildren }) {
  const here = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${text} · ${t("title")}`;
  }, [text]);
  useEffect(() => {
    if (hasMoved()) here.current?.focus({ preventScroll: true });
  }, []);
  return (
    <div class="heading">
      <h1 ref={here} tabIndex={-1}>{text}</h1>
      {children}
    </div>
  );
}

export function memoryText(used: number | null, limit: number): string {
  const [part, whole] = [bytes(used), bytes(limit)];
  const unit = whole.split(" ")[1] ?? "";
  return t("memoryOf", { used: part.endsWith(` ${unit}`) ? part.split(" ")[0] ?? part : part, limit: whole });
}

export function computeText(got: number | null, points: number | null): string {
  return points === null ? t("computeEqual", { got: percent(got) }) : t("computeOf", { got: percent(got), share: share(points) });
}

export type Span = "recent" | "day" | "month";

const SPANS: Span[] = ["recent", "day", "month"];

export function Spans({ span, choose, spans = SPANS }: { span: Span; choose: (span: Span) => void; spans?: Span[] }) {
  return (
    <div class="tabs end" role="group" aria-label={t("span")}>
      {spans.map((one) => (
        <button key={one} type="button" aria-pressed={span === one} onClick={() => choose(one)}>{t(`span_${one}`)}</button>
      ))}
    </div>
  );
}
