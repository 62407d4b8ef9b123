// All GPUs as fields of a map, for machines and clusters with many. Each field is cut into its slices.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Gpu } from "../api";
import { bytes, percent } from "../format";
import { ofCluster } from "../session";
import { holds, partsOf } from "../slices";
import { current, subscribe } from "../store";
import { t, type Key } from "../strings";

type Shown = "memory" | "compute" | "granted";
const SHOWN: [Shown, Key][] = ofCluster
  ? [["granted", "heatGranted"]] // all that Kubernetes knows
  : [["memory", "heatMemory"], ["compute", "heatCompute"], ["granted", "heatGranted"]];

const GAP = 3;
const LABELLED = 64; // fields of this height and more have room for a name
const STEPS = 24; // colours of the scale: few of them, so that most fields of an update stay as they are

interface Field {
  width: number;
  height: number;
  columns: number;
  scale: number;
}

function fieldOf(count: number, width: number): Field {
  const size = count > 400 ? 26 : count > 100 ? 40 : count > 16 ? LABELLED : 120;
  const columns = Math.max(1, Math.floor((width + GAP) / (size + GAP)));
  return { columns, width: (width + GAP) / columns - GAP, height: size, scale: Math.min(2, devicePixelRatio) };
}

/** What a field shows of a GPU: 0 to 1 for each of its slices; null where it is not known. */
function cutsOf(gpu: Gpu, shown: Shown): { width: number; value: number | null }[] {
  const machine = current().machine!;
  if (shown === "compute") return [{ width: 1, value: gpu.telemetry?.busy_ratio ?? null }];
  if (shown === "granted") return [{ width: 1, value: gpu.granted_bytes / gpu.memory_bytes }];
  return partsOf(machine, gpu.uuid)
    .filter((one) => holds(one.grant))
    .map(({ slice }) => ({ width: slice.memory_bytes / gpu.memory_bytes, value: slice.used_bytes === null ? null : slice.used_bytes / slice.memory_bytes }));
}

function colours(): string[] {
  const style = getComputedStyle(document.documentElement);
  const [from, to] = [style.getPropertyValue("--heat-low").trim(), style.getPropertyValue("--heat-high").trim()];
  const part = (colour: string, at: number) => parseInt(colour.slice(1 + 2 * at, 3 + 2 * at), 16);
  const mixed = (ratio: number) => `rgb(${[0, 1, 2].map((at) => Math.round(part(from, at) + (part(to, at) - part(from, at)) * ratio)).join(" ")})`;
  return [...Array.from({ length: STEPS }, (_, step) => mixed(step / (STEPS - 1))), style.getPropertyValue("--track").trim(), style.getPropertyValue("--bad").trim(), style.getPropertyValue("--soft").trim(), style.getPropertyValue("--front").trim(), style.getPropertyValue("--ink").trim()];
}
const [FREE, BAD, ABSENT, LABEL_BACK, LABEL] = [STEPS, STEPS + 1, STEPS + 2, STEPS + 3, STEPS + 4];

/** A field as a text: fields that show the same are not drawn again. */
function picture(gpu: Gpu, shown: Shown): string {
  if (!gpu.healthy) return "bad";
  return cutsOf(gpu, shown).map(({ width, value }) => `${width.toFixed(3)}:${value === null ? ABSENT : Math.round(Math.min(1, Math.max(0, value)) * (STEPS - 1))}`).join(" ");
}

export function HeatView() {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [shown, setShown] = useState<Shown>(SHOWN[0]![0]);
  const [pointed, setPointed] = useState<Gpu | null>(null);
  const [summary, setSummary] = useState("");
  const field = useRef<Field>(fieldOf(1, 1));

  useEffect(() => {
    const board = canvas.current!;
    const context = board.getContext("2d", { alpha: true })!;
    let palette = colours();
    let before: string[] = [];
    let told = 0;

    const label = (gpu: Gpu, x: number, y: number) => {
      context.font = "600 12px system-ui, sans-serif";
      context.fillStyle = palette[LABEL_BACK]!;
      context.fillRect(x + 5, y + 5, context.measureText(`${gpu.index}`).width + 10, 19);
      context.fillStyle = palette[LABEL]!;
      context.fillText(`${gpu.index}`, x + 10, y + 19);
    };
    const fit = () => {
      const gpus = current().machine?.gpus ?? [];
      const found = (field.current = fieldOf(gpus.length, board.parentElement!.clientWidth));
      const rows = Math.ceil(gpus.length / found.columns);
      const height = rows * (found.height + GAP) - GAP;
      board.style.height = `${height}px`;
      board.width = Math.round(board.parentElement!.clientWidth * found.scale);
      board.height = Math.round(height * found.scale);
      context.setTransform(found.scale, 0, 0, found.scale, 0, 0);
      palette = colours();
      before = [];
    };
    const draw = () => {
      const gpus = current().machine?.gpus ?? [];
      if (gpus.length !== before.length && before.length > 0) fit();
      const { columns, width, height } = field.current;
      for (let at = 0; at < gpus.length; at += 1) {
        const now = picture(gpus[at]!, shown);
        if (now === before[at]) continue;
        before[at] = now;
        const [x, y] = [(at % columns) * (width + GAP), Math.floor(at / columns) * (height + GAP)];
        context.fillStyle = palette[now === "bad" ? BAD : FREE]!;
        context.fillRect(x, y, width, height);
        let left = x;
        if (now !== "bad" && now !== "") {
          for (const cut of now.split(" ")) {
            const [part, step] = cut.split(":");
            const size = Number(part) * width;
            context.fillStyle = palette[Number(step)]!;
            context.fillRect(left, y, Math.max(1, size - (size > 3 ? 1 : 0)), height);
            left += size;
          }
        }
        if (height >= LABELLED) label(gpus[at]!, x, y);
      }
      if (Date.now() - told > 5000) {
        told = Date.now();
        const busy = gpus.filter((gpu) => gpu.granted_bytes > 0).length;
        setSummary(t("heatSummary", { gpus: gpus.length, busy, bad: gpus.filter((gpu) => !gpu.healthy).length }));
      }
    };
    const again = () => {
      fit();
      draw();
    };
    again();
    let waits = 0;
    const listener = () => {
      waits ||= requestAnimationFrame(() => {
        waits = 0;
        draw();
      });
    };
    const stop = subscribe(listener);
    const sizes = new ResizeObserver(again);
    sizes.observe(board.parentElement!);
    const theme = new MutationObserver(again);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", again);
    return () => {
      stop();
      cancelAnimationFrame(waits);
      sizes.disconnect();
      theme.disconnect();
      media.removeEventListener("change", again);
    };
  }, [shown]);

  const gpuAt = (event: MouseEvent) => {
    const { columns, width, height } = field.current;
    const at = Math.floor(event.offsetY / (height + GAP)) * columns + Math.min(columns - 1, Math.floor(event.offsetX / (width + GAP)));
    return current().machine?.gpus[at] ?? null;
  };
  return (
    <section class="panel" aria-labelledby="heat">
      <div class="heat-head">
        <h2 id="heat">{t("viewHeat")}</h2>
        <div class="tabs" role="group" aria-label={t("heatShows")}>
          {SHOWN.map(([one, word]) => <button key={one} type="button" aria-pressed={shown === one} onClick={() => setShown(one)}>{t(word)}</button>)}
        </div>
        <span class="scale muted" aria-hidden="true">0 % <i /> 100 %</span>
      </div>
      <div class="heat">
        <canvas ref={canvas} role="img" aria-label={summary}
          onMouseMove={(event) => setPointed(gpuAt(event))} onMouseLeave={() => setPointed(null)}
          onClick={(event) => { const gpu = gpuAt(event); if (gpu && !ofCluster) location.hash = `#/gpu/${gpu.index}`; }} />
      </div>
      <p class="muted figure heat-told">
        {pointed ? toldOf(pointed) : summary}
      </p>
    </section>
  );
}

/** One GPU in words. */
function toldOf(gpu: Gpu): string {
  const granted = gpu.healthy ? t("granted", { part: bytes(gpu.granted_bytes), whole: bytes(gpu.memory_bytes) }) : t("unhealthy");
  const busy = ofCluster ? [] : [t("busy", { percent: percent(gpu.telemetry?.busy_ratio) })];
  return [...(gpu.node === undefined ? [] : [gpu.node]), `GPU ${gpu.index}`, gpu.model, granted, ...busy].join(" · ");
}
