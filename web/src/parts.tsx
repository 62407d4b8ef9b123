// Small parts that several pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "./api";
import { NOTHING, bytes, duration, percent, share } from "./format";
import { hasMoved } from "./store";
import { stateWord, t } from "./strings";

const TONES: Record<string, string> = {
  running: "good", Running: "good", Succeeded: "good",
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

interface ChartProps {
  label: string;
  times: number[];
  values: (number | null)[];
  most: number;
  limit: number | null;
  format: (value: number | null) => string;
}

const WIDTH = 600;
const HEIGHT = 120;
const SHORTEST = 60;

/** A line over the last minutes, ten at most; a gap where nothing was measured. */
export function Chart({ label, times, values, most, limit, format }: ChartProps) {
  const end = times.at(-1) ?? 0;
  const span = Math.max(SHORTEST, end - (times[0] ?? end));
  const x = (at: number) => WIDTH - ((end - at) / span) * WIDTH;
  const y = (value: number) => HEIGHT - 2 - (Math.min(value, most) / (most || 1)) * (HEIGHT - 6);
  let line = "";
  let area = "";
  let before: number | null = null;
  values.forEach((value, index) => {
    const at = x(times[index] ?? 0);
    if (value !== null) {
      line += `${before === null ? "M" : "L"}${at.toFixed(1)} ${y(value).toFixed(1)}`;
      area += `${before === null ? `M${at.toFixed(1)} ${HEIGHT}` : ""}L${at.toFixed(1)} ${y(value).toFixed(1)}`;
    }
    const last = index === values.length - 1;
    if (before !== null && (value === null || last)) area += `L${(value === null ? before : at).toFixed(1)} ${HEIGHT}Z`;
    before = value === null ? null : at;
  });
  const known = values.filter((one): one is number => one !== null);
  const last = values.at(-1) ?? null;
  if (known.length < 2) return <p class="muted empty-chart">{t("chartEmpty")}</p>;
  const when = t("lastTime", { time: duration(span) });
  const range = `${format(Math.min(...known))} – ${format(Math.max(...known))}`;
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${label}, ${when}: ${range}; ${t("now")} ${format(last)}`}>
        {[0.25, 0.5, 0.75].map((one) => (
          <line key={one} x1="0" x2={WIDTH} y1={y(most * one)} y2={y(most * one)} class="grid" />
        ))}
        {limit !== null && <line x1="0" x2={WIDTH} y1={y(limit)} y2={y(limit)} class="limit" />}
        <path d={area} class="area" />
        <path d={line} class="line" />
      </svg>
      <figcaption class="muted">
        <span>{when}</span>
        <span>{t("now")}</span>
      </figcaption>
    </figure>
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
