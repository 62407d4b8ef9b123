"""Whether work is conserved: what sharing costs, and how soon an idle one's share is used.

The same programs in grants and on the bare GPU, by turns in one run, against one of them alone
on the bare GPU. Then one program stops and starts again and again beside another: how long the
other is still held back after a stop, and how long the first waits when it comes back.
"""

from __future__ import annotations

import statistics
from typing import Any

from cases import Case, Context
from programs import GRANT, PLAIN, Share, Spec
from witness import LEAD_SECONDS, SOON_SECONDS, TAIL_SECONDS, Seen, Series, together

SETS: dict[str, tuple[str, int]] = {
    "two mm": ("mm", 2),
    "two train": ("train", 2),
    "two decode": ("decode", 2),
    "eight mm": ("mm", 8),
}
ROUNDS = 2
WINDOW_SECONDS, ALONE_SECONDS = 5.0, 2.0
LEAST_OF_TWO, LEAST_OF_EIGHT = 0.97, 0.96

ON_SECONDS = OFF_SECONDS = 0.3
PULSE_SECONDS = 7.0
SOON_MS = 20.0
SETTLED_SECONDS, QUIET_SECONDS = 0.1, 0.25  # after a stop: when the other has all, and how long
LEAST_STAMPS = 50
FINE_SECONDS = 0.01
AROUND_SECONDS = 0.1


def programs(workload: str, count: int, where: str) -> list[Spec]:
    return [Spec(workload, number, where) for number in range(1, count + 1)]


def cases(*, quick: bool) -> list[Case]:
    rounds = 1 if quick else ROUNDS
    overhead = LEAD_SECONDS + TAIL_SECONDS + SOON_SECONDS
    length = rounds * (2 * WINDOW_SECONDS + ALONE_SECONDS + 3 * overhead)

    def case(label: str, workload: str, count: int) -> Case:
        specs = (*programs(workload, count, GRANT), *programs(workload, count, PLAIN))
        return Case(
            f"conserved: {label}",
            "conserved",
            length,
            specs,
            lambda context: measure(context, workload, count, rounds),
        )

    return [
        *(case(label, *what) for label, what in SETS.items()),
        pulse_case("mm beside mm", Spec("mm2", 2)),
        pulse_case("mm beside train", Spec("train")),
    ]


def measure(context: Context, workload: str, count: int, rounds: int) -> None:
    """Summed speed over one alone, by turns with credit and by the GPU's own time-slicing."""
    granted, plain = programs(workload, count, GRANT), programs(workload, count, PLAIN)
    ratios: dict[str, list[float]] = {"credit": [], "time-slicing": []}
    alone, fallbacks = [], 0
    for number in range(rounds):
        one = together(context.stage, {plain[0]: Share()}, ALONE_SECONDS, sampled=False)
        alone.append(one.rate(plain[0]))
        ways = [("credit", granted), ("time-slicing", plain)]
        for way, specs in ways if number % 2 == 0 else reversed(ways):
            seen = together(context.stage, dict.fromkeys(specs, Share()), WINDOW_SECONDS)
            ratios[way].append(sum(seen.rate(spec) for spec in specs))
            fallbacks += sum(seen.fallbacks(spec) for spec in granted) if way == "credit" else 0
    whole = statistics.mean(alone)
    summed = {way: statistics.mean(rates) / whole for way, rates in ratios.items()}
    context.found = {
        "workload": workload,
        "count": count,
        "alone": alone,
        "rates": ratios,
        "summed": summed,
        "fallbacks": fallbacks,
    }
    least = LEAST_OF_TWO if count == 2 else LEAST_OF_EIGHT
    context.at_least("summed speed over one alone", summed["credit"], least)
    context.at_least("the same over time-slicing's", summed["credit"] / summed["time-slicing"], 1.0)
    context.at_most("fallbacks", fallbacks, 0)


# --- one goes idle and comes back


def pulse_case(label: str, steady: Spec) -> Case:
    comes_and_goes = Spec("mm2", 1)
    return Case(
        f"idle: {label}",
        "conserved",
        PULSE_SECONDS + LEAD_SECONDS + TAIL_SECONDS + SOON_SECONDS,
        (comes_and_goes, steady),
        lambda context: measure_pulse(context, comes_and_goes, steady),
    )


def measure_pulse(context: Context, moving: Spec, steady: Spec) -> None:
    orders = {moving: {"on": ON_SECONDS, "off": OFF_SECONDS}}
    shares = {moving: Share(50), steady: Share(50)}
    alone = context.speeds.of(moving).rate
    seen = together(context.stage, shares, PULSE_SECONDS, orders=orders)
    turns = seen.answers[moving]["turns"]
    own_ms = 2 / alone * 1e3  # a step of two products
    back = [(turn["first"] - turn["began"]) * 1e3 - own_ms for turn in turns[1:]]
    given = [lost_ms(seen, steady, turn) for turn in turns[:-1]]
    context.found = {
        "turns": turns,
        "given_after_ms": [None if one is None else round(one, 2) for one in given],
        "back_after_ms": [round(one, 2) for one in back],
        "share_after_return": [round(one, 4) for one in shares_after(seen, moving, alone)],
        "curves": curves(seen, moving, steady),
    }
    known = [one for one in given if one is not None]
    if known:  # a training's own steps are too long to tell
        context.at_most("others have its share after", max(known), SOON_MS, "ms")
    context.at_most("it has its share again after", max(back), SOON_MS, "ms")


def lost_ms(seen: Seen, steady: Spec, turn: dict[str, float]) -> float | None:
    """The time the steady one lost after the other's end, by its own speed a little later.

    None: its steps are too long to tell.
    """
    times = seen.answers[steady]["times"]
    middle, end = turn["ended"] + SETTLED_SECONDS, turn["ended"] + QUIET_SECONDS
    later = [when for when in times if middle < when < end]
    if len(later) < LEAST_STAMPS:
        return None
    progress = seen.progress(steady)
    speed = progress.grown(middle, end) / (end - middle)
    return max(0.0, (SETTLED_SECONDS - progress.grown(turn["ended"], middle) / speed) * 1e3)


def shares_after(seen: Seen, moving: Spec, alone: float) -> list[float]:
    """Its speed over its speed alone in the first tenth of a second after each return."""
    progress = seen.progress(moving)
    return [
        progress.grown(turn["began"], turn["began"] + AROUND_SECONDS) / AROUND_SECONDS / alone
        for turn in seen.answers[moving]["turns"][1:]
    ]


def curves(seen: Seen, moving: Spec, steady: Spec) -> dict[str, Any]:
    """The first seconds, finely, for a plot."""
    begin = seen.start - LEAD_SECONDS
    end = begin + 3 * (ON_SECONDS + OFF_SECONDS)
    lines: dict[str, Series] = {"moving": seen.progress(moving), "steady": seen.progress(steady)}
    return {
        "bin_seconds": FINE_SECONDS,
        **{name: line.bins(begin, end, FINE_SECONDS) for name, line in lines.items()},
    }
