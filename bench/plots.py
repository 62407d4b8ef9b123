"""Plots and tables from what bench/gpu wrote.

    uv run --group bench python bench/plots.py FILES... --into docs/plots
    python bench/plots.py FILES... --tables        the tables of docs/measured.md, as markdown

FILES are the shares.json and gaia.json of one or more runs; a case that is in several is taken from
the last. Only the plots need matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tables import Cases, all_tables, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1b6ca8", "#e07a1f", "#3a9d5d", "#a23b72", "#7a7a7a", "#c9a227", "#5b5ea6", "#9b2335")
CREDIT, OTHER, MUTED = COLOURS[0], COLOURS[1], COLOURS[4]
LATENCY_TICKS = (0.5, 1, 2, 4, 8)  # milliseconds


def new(width: float, height: float) -> tuple[Figure, Axes]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(width, height), dpi=130, layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, axis="both", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def legend_above(axes: Axes, labels: list[str]) -> None:
    """Where it hides no curve."""
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
    axes.legend(labels, fontsize=8, ncols=len(labels), frameon=False, **place)


def accuracy(cases: Cases) -> Figure | None:
    """How far each program's share is off what was asked, by both witnesses."""
    rows = [case for _, case in named(cases, "accuracy:")]
    if not rows:
        return None
    figure, axes = new(8, 1.2 + 0.24 * len(rows))
    furthest = 4.0
    for number, case in enumerate(rows):
        place = len(rows) - number
        worst = case["worst_second"]
        axes.plot([-worst, worst], [place, place], color=MUTED, linewidth=5, alpha=0.35)
        for values, colour, shape in (("got_by_speed", OTHER, "s"), ("got", CREDIT, "o")):
            off = [
                got - asked
                for got, asked in zip(case[values], case["asked"], strict=True)
                if got is not None
            ]
            axes.plot(off, [place] * len(off), shape, color=colour, markersize=4)
            furthest = max(furthest, *map(abs, off)) if off else furthest
    axes.plot([], [], "o", color=CREDIT, label="by the arbiter")
    axes.plot([], [], "s", color=OTHER, label="by the programs' speed")
    axes.plot([], [], color=MUTED, linewidth=5, alpha=0.35, label="worst second")
    axes.axvspan(-0.5, 0.5, color=CREDIT, alpha=0.08)
    axes.set_yticks(range(len(rows), 0, -1), [case["label"] for case in rows], fontsize=8)
    axes.set_xlim(-1.05 * furthest, 1.05 * furthest)
    axes.set_xlabel("percentage points off what was asked (band: ± 0.5)")
    axes.legend(loc="lower left", fontsize=8)
    return figure


def conserved(cases: Cases) -> Figure | None:
    rows = named(cases, "conserved:")
    if not rows:
        return None
    figure, axes = new(6.5, 3.4)
    for offset, way, colour in ((-0.2, "credit", CREDIT), (0.2, "time-slicing", OTHER)):
        places = [number + offset for number in range(len(rows))]
        values = [100 * case["summed"][way] for _, case in rows]
        bars = axes.bar(places, values, 0.38, color=colour, label=way)
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.axhline(100, color=MUTED, linewidth=1)
    axes.set_xticks(range(len(rows)), [label for label, _ in rows])
    axes.set_ylim(0, 120)
    axes.set_ylabel("summed speed, % of one alone")
    axes.legend(loc="lower right")
    return figure


def idle(cases: Cases) -> Figure | None:
    for _, case in named(cases, "idle:"):
        curves = case["curves"]
        figure, axes = new(8, 3)
        for name, colour in (("steady", CREDIT), ("moving", OTHER)):
            values = curves[name]
            seconds = [number * curves["bin_seconds"] for number in range(len(values))]
            axes.step(seconds, values, color=colour, linewidth=1, where="post", label=name)
        axes.set_xlabel("seconds")
        axes.set_ylabel("products per second, bins of 10 ms")
        legend_above(axes, ["works all the time", "comes and goes"])
        return figure
    return None


def latency(cases: Cases) -> Figure | None:
    for _, case in named(cases, "latency:"):
        figure, axes = new(7.5, 3.6)
        colours = iter(COLOURS)
        for way, values in case["latencies_ms"].items():
            ratios = [(number + 1) / len(values) for number in range(len(values))]
            training = case["ways"][way]["training"]
            beside = "" if training is None else f" (training at {100 * training:.0f} %)"
            axes.plot(values, ratios, color=next(colours), linewidth=1.4, label=f"{way}{beside}")
        axes.axhline(0.99, color=MUTED, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_xticks(LATENCY_TICKS, map(str, LATENCY_TICKS))
        axes.minorticks_off()
        axes.set_xlabel("milliseconds of an inference step (dotted: p99)")
        axes.set_ylabel("part of all steps")
        axes.legend(loc="lower right", fontsize=8)
        return figure
    return None


def overhead(cases: Cases) -> Figure | None:
    rows = named(cases, "overhead:")
    if not rows:
        return None
    figure, axes = new(6.5, 0.9 + 0.45 * len(rows))
    ratios = [[100 * (1 - ratio) for ratio in case["ratios"]] for _, case in rows]
    middle = {"color": CREDIT, "linewidth": 2}
    axes.boxplot(ratios, orientation="horizontal", widths=0.5, whis=(0, 100), medianprops=middle)
    axes.invert_yaxis()
    axes.set_yticks(range(1, len(rows) + 1), [label for label, _ in rows])
    axes.axvline(0.5, color=OTHER, linewidth=1)
    axes.axvline(0, color=MUTED, linewidth=1)
    axes.set_xlabel("% slower in a grant, pairs of runs (line: the bar of 0.5 %)")
    return figure


def faults(cases: Cases) -> Figure | None:
    rows = named(cases, "fault:")
    if not rows:
        return None
    figure, axes = new(7, 0.9 + 0.4 * len(rows))
    waits = [
        max(case["waits_ms"].values()) if "waits_ms" in case else case["after_ms"]
        for _, case in rows
    ]
    bars = axes.barh(range(len(rows)), waits, color=CREDIT)
    axes.bar_label(bars, fmt="%.0f ms", fontsize=8)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.set_xlabel("longest wait of the neighbour after it happened, ms")
    return figure


def partition(cases: Cases) -> Figure | None:
    rows = [case for _, case in named(cases, "partition:")]
    if not rows:
        return None
    figure, axes = new(6.5, 3.4)
    for number, workload in enumerate(dict.fromkeys(case["workload"] for case in rows)):
        mine = [case for case in rows if case["workload"] == workload]
        counts = [case["count"] for case in mine]
        axes.plot(counts, [100 * case["summed"] for case in mine], "o-", color=COLOURS[number],
                  label=f"{workload}: summed")  # fmt: skip
        for case in mine:
            axes.plot([case["count"]] * case["count"], [100 * one for one in case["speeds"]], "_",
                      color=COLOURS[number], markersize=9)  # fmt: skip
    axes.plot(range(1, 9), [100 / count for count in range(1, 9)], ":", color=MUTED, label="1/n")
    axes.set_ylim(0, 115)
    axes.set_xlabel("slices of one GPU")
    axes.set_ylabel("speed, % of one alone (dashes: each one)")
    axes.legend(fontsize=8)
    return figure


def isolation(cases: Cases) -> Figure | None:
    rows = named(cases, "isolation:")
    if not rows:
        return None
    figure, axes = new(5.5, 3.2)
    for number, (_, case) in enumerate(rows):
        beside = [100 * one for one in case["beside_others"]]
        axes.plot([number - 0.1], [100 * case["alone_in_slice"]], "s", color=CREDIT)
        axes.plot([number + 0.1] * len(beside), beside, "o", color=OTHER, markersize=4)
        asked = 100 * case["asked"]
        axes.plot([number - 0.3, number + 0.3], [asked, asked], ":", color=MUTED)
    axes.set_xticks(range(len(rows)), [label for label, _ in rows])
    axes.set_ylim(0, None)
    axes.set_ylabel("speed, % of the whole GPU")
    handles = axes.lines[:3]
    axes.legend(handles, ["alone in its slice", "beside the others", "asked"], fontsize=8)
    return figure


def curve(case: dict[str, Any], alone: float) -> Figure:
    """Both programs' speeds over time."""
    figure, axes = new(8, 3)
    raw = case["raw"]
    for number, (name, values) in enumerate(raw["rates"].items()):
        seconds = [raw["bin_seconds"] * one - raw["lead_seconds"] for one in range(len(values))]
        percents = [100 * value / alone for value in values]
        axes.step(seconds, percents, where="post", color=COLOURS[number], linewidth=1.2, label=name)
    axes.set_ylim(0, 110)
    axes.set_xlabel("seconds")
    axes.set_ylabel("speed, % of alone, bins of 100 ms")
    legend_above(axes, ["first program", "second program"])
    return figure


def elastic(cases: Cases) -> Figure | None:
    found = named(cases, "elastic:")
    return curve(found[0][1], found[0][1]["alone"]) if found else None


def resize(cases: Cases) -> Figure | None:
    for _, case in named(cases, "resize:"):
        figure = curve(case, case["alone"])
        axes = figure.axes[0]
        for when in case["changed"]:
            axes.axvline(when, color=MUTED, linewidth=0.8, linestyle=":")
        return figure
    return None


PLOTS: dict[str, Callable[[Cases], Figure | None]] = {
    "accuracy": accuracy,
    "conserved": conserved,
    "idle": idle,
    "latency": latency,
    "overhead": overhead,
    "faults": faults,
    "partition": partition,
    "isolation": isolation,
    "elastic": elastic,
    "resize": resize,
}


def merged(files: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of the same script as one, a case from the last that has it."""
    by_script: dict[str, dict[str, Any]] = {}
    for file in files:
        script = file["script"]
        known = by_script.setdefault(script, {"script": script, "cases": {}, "runs": []})
        known["cases"] |= file["cases"]
        known["runs"].append({key: file[key] for key in ("command", "date", "machine")})
    return list(by_script.values())


def draw(files: list[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        for name, plot in PLOTS.items():
            if (figure := plot(file["cases"])) is not None:
                path = folder / f"{file['script']}-{name}.png"
                figure.savefig(path, metadata={"Software": None})
                print(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, default=Path("docs/plots"))
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    files = merged(json.loads(path.read_text()) for path in options.files)
    if options.tables:
        print(all_tables(files))
    else:
        draw(files, options.into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
