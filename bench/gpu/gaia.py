"""The five experiments of the GaiaGPU paper, on one GPU. Needs an NVIDIA GPU and PyTorch.

    python bench/gpu/gaia.py --out DIR [--only partition] [--budget SECONDS] [--quick]

    overhead    what each framework's program pays for being in a grant
    partition   a GPU cut into 1, 2, 3, 4, 5 and 8 slices, with compute-bound and memory-bound work
    isolation   2, 4 and 8 hard slices: each as fast beside the others as alone in its slice
    elastic     a second program comes and goes: who has how much of the GPU when
    resize      shares changed while two programs run

Writes DIR/gaia.json after every case and prints each figure against its bar; exit code 0 if all are
met. `--list` says what there is and how long it takes; `--simulate h200:1` tries the logic.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from cases import Case, Context, run_benchmark
from overhead import compare_case
from programs import PLAIN, Share, Spec
from witness import LEAD_SECONDS, SOON_SECONDS, TAIL_SECONDS, Seen, together

from aliquot.model import Policy

AROUND = LEAD_SECONDS + TAIL_SECONDS + SOON_SECONDS

FRAMEWORKS = (
    Spec("mm"),
    Spec("train"),
    Spec("decode"),
    Spec("mm", framework="jax"),
    Spec("mm", framework="cupy"),
)
PAIRS, QUICK_PAIRS = 20, 6

SLICES = (1, 2, 3, 4, 5, 8)
BOUND_BY = {"compute": "mm", "memory": "memory"}
PARTITION_SECONDS, QUICK_PARTITION_SECONDS = 3.0, 1.5
LEAST_SUMMED = 0.96
POINTS = 1.5

TENANTS = (2, 4, 8)
ISOLATION_SECONDS = 3.0

CURVE_SECONDS = 12.0
COMES_SECONDS, STAYS_SECONDS = 4.0, 4.0

STEPS = ((30, 70), (50, 50), (80, 20), (10, 90))
STEP_SECONDS = 3.0
SETTLED_SECONDS = 0.5


def programs(workload: str, count: int) -> list[Spec]:
    return [Spec(workload, number) for number in range(1, count + 1)]


def all_cases(quick: bool) -> list[Case]:  # noqa: FBT001 - a callback's form
    return [
        *overhead_cases(quick=quick),
        *partition_cases(quick=quick),
        *map(isolation_case, TENANTS),
        curve_case("elastic: a second program comes and goes", CURVE_SECONDS, measure_elastic),
        curve_case("resize: while two programs run", len(STEPS) * STEP_SECONDS, measure_resize),
    ]


# --- overhead by framework


def overhead_cases(*, quick: bool) -> list[Case]:
    pairs = QUICK_PAIRS if quick else PAIRS
    return [
        compare_case("overhead", spec, replace(spec, where=PLAIN), pairs) for spec in FRAMEWORKS
    ]


# --- partition


def partition_cases(*, quick: bool) -> list[Case]:
    seconds = QUICK_PARTITION_SECONDS if quick else PARTITION_SECONDS

    def case(bound: str, count: int) -> Case:
        specs = programs(BOUND_BY[bound], count)
        return Case(
            f"partition: {count} slices, {bound}-bound",
            "slices",
            seconds + AROUND,
            tuple(specs),
            lambda context: measure_partition(context, specs, seconds),
        )

    return [case(bound, count) for bound in BOUND_BY for count in SLICES]


def measure_partition(context: Context, specs: list[Spec], seconds: float) -> None:
    alone = context.speeds.of(specs[0]).rate
    seen = together(context.stage, dict.fromkeys(specs, Share(100 // len(specs))), seconds)
    speeds = [seen.rate(spec) / alone for spec in specs]
    used = [seen.used_ratio(spec, seen.start, seen.end) for spec in specs]
    context.found = {
        "workload": specs[0].workload,
        "count": len(specs),
        "alone": alone,
        "speeds": speeds,
        "summed": sum(speeds),
        "used": used,
        "fallbacks": [seen.fallbacks(spec) for spec in specs],
        "raw": seen.raw(),
    }
    equal = sum(speeds) / len(specs)
    context.at_least("summed speed over one alone", sum(speeds), LEAST_SUMMED)
    off = max(100 * abs(speed - equal) / sum(speeds) for speed in speeds)
    context.at_most("furthest from an equal part", off, POINTS, "points")
    context.at_most("fallbacks", sum(context.found["fallbacks"]), 0)


# --- isolation


def isolation_case(count: int) -> Case:
    specs = programs("mm", count)
    return Case(
        f"isolation: {count} tenants",
        "slices",
        2 * (ISOLATION_SECONDS + AROUND),
        tuple(specs),
        lambda context: measure_isolation(context, specs),
    )


def measure_isolation(context: Context, specs: list[Spec]) -> None:
    """Each in a hard slice: one of them alone, then all of them."""
    whole = context.speeds.of(specs[0]).rate
    shares = dict.fromkeys(specs, Share(100 // len(specs), Policy.HARD))
    first = {specs[0]: shares[specs[0]]}
    idle = {spec: share for spec, share in shares.items() if spec not in first}
    with context.speeds.monitor() as monitor_of_one:
        one = together(context.stage, first, ISOLATION_SECONDS, idle=idle)
    alone = one.rate(specs[0]) / whole
    with context.speeds.monitor() as monitor_of_all:
        seen = together(context.stage, shares, ISOLATION_SECONDS)
    beside = [seen.rate(spec) / whole for spec in specs]
    context.found = {
        "count": len(specs),
        "asked": 100 // len(specs) / 100,
        "alone_in_slice": alone,
        "beside_others": beside,
        "sm_mhz": {
            "whole": context.speeds.of(specs[0]).sm_mhz,
            "alone_in_slice": monitor_of_one.sm_mhz(),
            "beside_others": monitor_of_all.sm_mhz(),
        },
        "fallbacks": [seen.fallbacks(spec) for spec in specs],
        "raw": seen.raw(),
    }
    off = max(100 * abs(speed - alone) for speed in beside)
    context.at_most("beside others, off its speed alone in the slice", off, POINTS, "points")
    context.tell("one alone in its slice, of the GPU", 100 * alone, "%")
    context.tell("all, mean", 100 * statistics.mean(beside), "%")


# --- over time


def curve_case(name: str, seconds: float, measure: Callable[[Context], None]) -> Case:
    pair = tuple(programs("mm", 2))
    return Case(name, "slices", seconds + AROUND, pair, measure)


def measure_elastic(context: Context) -> None:
    """The second one's work begins and ends while the first one works on."""
    first, second = programs("mm", 2)
    alone = context.speeds.of(first).rate
    begin = time.monotonic() + SOON_SECONDS + LEAD_SECONDS
    orders = {second: {"at": begin + COMES_SECONDS, "seconds": STAYS_SECONDS}}
    shares = {first: Share(50), second: Share(50)}
    seen = together(context.stage, shares, CURVE_SECONDS, orders=orders)
    came, went = seen.answers[second]["start"], seen.answers[second]["end"]
    windows = {
        "before": (seen.start, came),
        "both": (came + SETTLED_SECONDS, went - SETTLED_SECONDS),
        "after": (went + SETTLED_SECONDS, seen.end),
    }
    speeds = {
        when: [seen.progress(spec).grown(*window) / (window[1] - window[0]) / alone
               for spec in (first, second)]
        for when, window in windows.items()
    }  # fmt: skip
    context.found = {
        "alone": alone,
        "came": came - seen.start,
        "went": went - seen.start,
        "speeds": speeds,
        "raw": seen.raw(),
    }
    for when in ("before", "after"):
        context.at_least(f"the first one's speed {when}", speeds[when][0], 0.98)
    both = speeds["both"]
    context.at_most("50/50, off by", abs(100 * both[0] / sum(both) - 50), POINTS, "points")


def measure_resize(context: Context) -> None:
    """Shares change every few seconds; told is what each had in between, and how soon."""
    first, second = programs("mm", 2)
    alone = context.speeds.of(first).rate
    stage = context.stage
    begin = time.monotonic() + SOON_SECONDS + LEAD_SECONDS
    changed: list[float] = []

    def change() -> None:
        for number, (one, other) in enumerate(STEPS[1:], 1):
            time.sleep(max(begin + number * STEP_SECONDS - time.monotonic(), 0))
            stage.set_shares({first: Share(one), second: Share(other)})
            changed.append(time.monotonic())

    changer = threading.Thread(target=change, daemon=True)
    shares = dict(zip((first, second), map(Share, STEPS[0]), strict=True))
    stage.set_shares(shares)
    changer.start()
    seen = together(stage, shares, len(STEPS) * STEP_SECONDS)
    changer.join()
    edges = [seen.start, *changed, seen.end]
    steps = [
        told_step(seen, (first, second), (edges[number] + 0.1, edges[number + 1]))
        for number in range(len(STEPS))
    ]
    context.found = {
        "alone": alone,
        "asked": STEPS,
        "changed": [when - seen.start for when in changed],
        "got": steps,
        "raw": seen.raw(),
    }
    for (asked, _), got in zip(STEPS, steps, strict=True):
        context.at_most(f"{asked} asked, by speed off by", abs(got - asked), POINTS, "points")


def told_step(seen: Seen, pair: tuple[Spec, Spec], window: tuple[float, float]) -> float:
    """The first one's percent of what both did."""
    grown = [seen.progress(spec).grown(*window) for spec in pair]
    return round(100 * grown[0] / sum(grown), 3)


if __name__ == "__main__":
    sys.exit(run_benchmark("gaia", __doc__, all_cases))
