"""The tables of docs/measured.md from what bench/gpu wrote: no figure is typed by hand.

Each function makes one table from the cases of all files that were given, or nothing where their
cases were not run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Cases = dict[str, dict[str, Any]]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def named(cases: Cases, start: str) -> list[tuple[str, dict[str, Any]]]:
    """The cases of that kind, by what follows in their names."""
    return [
        (name.removeprefix(start).strip(), case)
        for name, case in cases.items()
        if name.startswith(start)
    ]


def figures(values: Iterable[float | None], digits: int = 2) -> str:
    return " / ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def percent(ratio: float | None, digits: int = 1) -> str:
    return "-" if ratio is None else f"{100 * ratio:.{digits}f} %"


def compact(values: Sequence[float | None]) -> str:
    """Many figures as their range."""
    known = [value for value in values if value is not None]
    if len(values) <= 3 or not known:
        return figures(values)
    return f"{min(known):.2f} to {max(known):.2f}"


def clocks(together: float | None, alone: Iterable[float | None]) -> str:
    """Of the GPU while all worked, and while each kind was alone."""
    kinds = dict.fromkeys(alone)
    return f"{figures([together], 0)} ({figures(kinds, 0)})"


def accuracy(cases: Cases) -> str:
    rows = [
        (
            case["label"],
            compact(case["got"]),
            f"{case['worst_second']:.2f}",
            compact(case["got_by_speed"]),
            clocks(case["sm_mhz"], case["sm_mhz_alone"]),
            percent(case["summed"]),
            f"{case['credit_cpu_percent']:.1f} %",
            str(sum(case["fallbacks"])),
        )
        for _, case in named(cases, "accuracy:")
    ]
    heads = (
        "programs, asked",
        "got, by the arbiter",
        "worst second off by",
        "got, by their speed",
        "SM clock, MHz (alone)",
        "summed speed",
        "arbiter's CPU",
        "fallbacks",
    )
    return markdown(heads, rows) if rows else ""


def conserved(cases: Cases) -> str:
    def spread(case: dict[str, Any], way: str) -> str:
        whole = statistics.mean(case["alone"])
        rounds = [rate / whole for rate in case["rates"][way]]
        return f"{percent(case['summed'][way])} ({percent(min(rounds))} to {percent(max(rounds))})"

    rows = [
        (label, spread(case, "credit"), spread(case, "time-slicing"))
        for label, case in named(cases, "conserved:")
    ]
    return markdown(("programs", "with credit", "time-slicing"), rows) if rows else ""


def idle(cases: Cases) -> str:
    def spread(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        if not known:
            return "-"
        return f"{statistics.median(known):.1f} ms (most: {max(known):.1f})"

    rows = [
        (
            label,
            spread(case["given_after_ms"]),
            spread(case["back_after_ms"]),
            percent(statistics.median(case["share_after_return"])),
        )
        for label, case in named(cases, "idle:")
    ]
    heads = (
        "who comes and goes",
        "the other has its share after",
        "it works again after",
        "its speed in the 100 ms after",
    )
    return markdown(heads, rows) if rows else ""


def latency(cases: Cases) -> str:
    rows = [
        (
            way,
            *(
                "-" if told[key] is None else f"{told[key]:.2f} ms"
                for key in ("p50_ms", "p99_ms", "max_ms")
            ),
            percent(told["training"]),
        )
        for _, case in named(cases, "latency:")
        for way, told in case["ways"].items()
    ]
    heads = ("way of sharing", "p50", "p99", "longest", "training over alone")
    return markdown(heads, rows) if rows else ""


def overhead(cases: Cases) -> str:
    rows = [
        (
            f"{label} ({case['version']})",
            f"{case['overhead_percent']:.2f} %",
            f"{case['middle_half_percent'][0]:.2f} to {case['middle_half_percent'][1]:.2f}",
            str(len(case["ratios"])),
        )
        for label, case in named(cases, "overhead:")
    ]
    return markdown(("program", "slower, median", "middle half", "pairs"), rows) if rows else ""


def arbiter(cases: Cases) -> str:
    contended = [case["credit_cpu_percent"] for _, case in named(cases, "accuracy:")]
    rows = [
        (when, f"{used:.3f} %")
        for _, case in named(cases, "arbiter:")
        for when, used in case["credit_cpu_percent"].items()
    ]
    if contended:
        median, most = statistics.median(contended), max(contended)
        rows.append(("turns are taken", f"{median:.2f} % (most: {most:.2f})"))
    return markdown(("the credit thread", "of one core"), rows) if rows else ""


def faults(cases: Cases) -> str:
    rows = []
    for label, case in named(cases, "fault:"):
        waits = case.get("waits_ms")
        after = case["after_ms"] if waits is None else max(waits.values())
        right = case["right"]
        rows.append(
            (
                label,
                "-" if waits is not None else f"{case['before_ms']:.1f} ms",
                f"{after:.1f} ms",
                "yes" if right is True or (right is not False and all(right)) else "NO",
                " → ".join(case.get("shown", [])) or "-",
            )
        )
    heads = ("what happened", "wait before", "wait after", "results right", "shown as")
    return markdown(heads, rows) if rows else ""


def partition(cases: Cases) -> str:
    rows = [
        (
            label,
            percent(1 / case["count"]),
            f"{percent(min(case['speeds']))} to {percent(max(case['speeds']))}",
            percent(case["summed"]),
        )
        for label, case in named(cases, "partition:")
    ]
    return markdown(("GPU cut into", "asked", "each one's speed", "summed"), rows) if rows else ""


def isolation(cases: Cases) -> str:
    rows = [
        (
            label,
            percent(case["asked"]),
            percent(case["alone_in_slice"], 2),
            f"{percent(min(case['beside_others']), 2)} to {percent(max(case['beside_others']), 2)}",
            figures(case["sm_mhz"].values(), 0),
        )
        for label, case in named(cases, "isolation:")
    ]
    heads = (
        "hard slices",
        "asked",
        "one alone in its slice",
        "each beside the others",
        "SM clock, MHz: whole GPU / one in its slice / all",
    )
    return markdown(heads, rows) if rows else ""


def elastic(cases: Cases) -> str:
    rows = [
        (f"the second {when}", *(percent(speed) for speed in speeds))
        for _, case in named(cases, "elastic:")
        for when, speeds in (
            ("is not there yet", case["speeds"]["before"]),
            ("is at work", case["speeds"]["both"]),
            ("has gone", case["speeds"]["after"]),
        )
    ]
    return markdown(("when", "first one's speed", "second one's"), rows) if rows else ""


def resize(cases: Cases) -> str:
    rows = [
        (f"{asked[0]}/{asked[1]}", f"{got:.2f} / {100 - got:.2f}")
        for _, case in named(cases, "resize:")
        for asked, got in zip(case["asked"], case["got"], strict=True)
    ]
    return markdown(("asked", "got, by their speed"), rows) if rows else ""


TABLES = {
    "Shares": accuracy,
    "Work conserved (summed speed over one alone)": conserved,
    "One goes idle and comes back": idle,
    "Latency": latency,
    "Overhead": overhead,
    "The arbiter": arbiter,
    "Faults": faults,
    "One GPU cut into slices": partition,
    "Isolation": isolation,
    "Elastic": elastic,
    "Resize": resize,
}


def missed(cases: Cases) -> str:
    """The bars that were missed."""
    rows = [
        (
            name,
            check["what"],
            f"{check['value']} {check['unit']}",
            f"{check['sense']} {check['bar']}",
        )
        for name, case in cases.items()
        for check in case["checks"]
        if not check["met"]
    ]
    return markdown(("case", "what", "measured", "bar"), rows) if rows else "All bars are met."


def about(run: dict[str, Any]) -> str:
    """Where the figures come from."""
    machine = run["machine"]
    place = f"{machine['gpu']}, driver {machine['driver']}, {machine['system']}"
    return f"`{run['command']}`, {run['date']}, {place}, Python {machine['python']}."


def all_tables(files: Sequence[dict[str, Any]]) -> str:
    parts = []
    for file in files:
        parts.append("\n".join(map(about, file["runs"])))
        for title, table in TABLES.items():
            if text := table(file["cases"]):
                parts.append(f"### {title}\n\n{text}")
        parts.append(f"### Bars missed\n\n{missed(file['cases'])}")
    return "\n\n".join(parts)
