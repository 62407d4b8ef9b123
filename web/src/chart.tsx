// A line over time. Where nothing was measured there is a gap, not a zero.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, duration } from "./format";
import { t } from "./strings";

interface Props {
  label: string;
  times: number[];
  values: (number | null)[];
  step: number;
  since: number;
  until: number;
  most: number;
  limit: (number | null)[] | number | null;
  format: (value: number | null) => string;
}

type Values = (number | null)[];
const HEIGHT = 130;

/** The points with a gap wherever one is missing. */
export function withGaps(times: number[], columns: Values[], step: number): [number[], ...Values[]] {
  const at: number[] = [];
  const found: Values[] = columns.map(() => []);
  times.forEach((time, index) => {
    const before = at.at(-1);
    if (before !== undefined && time - before > 2.5 * step) {
      at.push(before + step);
      for (const one of found) one.push(null);
    }
    at.push(time);
    columns.forEach((column, number) => found[number]!.push(column[index] ?? null));
  });
  return [at, ...found];
}

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Chart({ label, times, values, step, since, until, most, limit, format }: Props) {
  const here = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const formatted = useRef(format);
  formatted.current = format;
  const [pointed, setPointed] = useState<string | null>(null);
  const [theme, setTheme] = useState(0);
  const known = values.filter((one): one is number => one !== null);
  const empty = known.length === 0;
  const limits: Values = times.map((_, index) => (Array.isArray(limit) ? (limit[index] ?? null) : limit));
  const data = withGaps(times, [values, limits], step);
  const range = useRef({ since, until, most });
  range.current = { since, until, most };

  useEffect(() => {
    const again = () => setTheme((n) => n + 1);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", again);
    const observer = new MutationObserver(again);
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      media.removeEventListener("change", again);
      observer.disconnect();
    };
  }, []);

  useEffect(() => {
    const box = here.current;
    if (box === null || empty) return;
    const accent = colour("--accent");
    const found = new uPlot(
      {
        width: box.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        padding: [6, 0, 0, 0],
        cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
        scales: {
          x: { range: () => [range.current.since, range.current.until] },
          y: { range: () => [0, range.current.most] },
        },
        axes: [{ show: false }, { show: true, size: 0, ticks: { show: false }, values: (_, splits) => splits.map(() => ""), grid: { stroke: colour("--line"), width: 1 } }],
        series: [
          {},
          { stroke: accent, width: 2, fill: `${accent}22`, spanGaps: false, points: { show: (plot, _, from, to) => to - from < 2 && plot.data[0].length < 4 } },
          { stroke: colour("--soft"), width: 1, dash: [4, 4], spanGaps: false, points: { show: false } },
        ],
        hooks: {
          setCursor: [
            (plot) => {
              const index = plot.cursor.idx;
              const time = index == null ? undefined : plot.data[0][index];
              setPointed(index == null || time === undefined || plot.cursor.left! < 0 ? null : `${clock(time)} · ${formatted.current(plot.data[1]?.[index] ?? null)}`);
            },
          ],
        },
      },
      data as uPlot.AlignedData,
      box,
    );
    plot.current = found;
    const observer = new ResizeObserver(() => found.setSize({ width: box.clientWidth, height: HEIGHT }));
    observer.observe(box);
    return () => {
      observer.disconnect();
      found.destroy();
      plot.current = null;
    };
  }, [empty, theme]);

  useEffect(() => {
    plot.current?.setData(data as uPlot.AlignedData);
  }, [times.length, times.at(-1), times[0], most]);

  if (empty) return <p class="muted empty-chart">{t("chartEmpty")}</p>;
  const span = t("lastTime", { time: duration(until - since) });
  const last = values.at(-1) ?? null;
  const words = `${format(Math.min(...known))} – ${format(Math.max(...known))}`;
  return (
    <figure class="chart">
      <div ref={here} role="img" aria-label={`${label}, ${span}: ${words}; ${t("now")} ${format(last)}`} />
      <figcaption class="muted">
        <span>{span}</span>
        <span class="figure">{pointed ?? t("now")}</span>
      </figcaption>
    </figure>
  );
}
