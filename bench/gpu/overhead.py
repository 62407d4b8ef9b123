"""What a program pays for being in a grant when it is alone, and what the arbiter costs meanwhile.

One program in a grant and the same on the bare GPU, both alive all the time, work by turns for
half a second while the other is idle; the order changes from pair to pair. Both launch from one and
the same core: some are bound by the CPU, and cores differ by more than what is looked for. Told is
the median of the pairs' ratios of speed, with the middle half of them.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from functools import partial

from cases import Case, Context
from programs import PATIENCE_SECONDS, PLAIN, Spec, Stage

WORKLOADS = ("mm", "train", "decode", "tiny", "four")
PAIRS, QUICK_PAIRS = 24, 6
PIECE_SECONDS = 0.5
MOST_PERCENT = 0.5
MOST_QUIET_CPU_PERCENT = 0.1
BETWEEN_SECONDS = 0.06
QUIET_SECONDS = 3.0


def cases(*, quick: bool) -> list[Case]:
    pairs = QUICK_PAIRS if quick else PAIRS

    def case(workload: str) -> Case:
        spec = Spec(workload)
        return compare_case("overhead", spec, replace(spec, where=PLAIN), pairs)

    quiet = Case(
        "arbiter: nobody contends",
        "overhead",
        2 * QUIET_SECONDS,
        (Spec("mm"), Spec("decode")),
        measure_quiet,
    )
    return [*map(case, WORKLOADS), quiet]


def compare_case(
    group: str, spec: Spec, other: Spec, pairs: int, most: float = MOST_PERCENT
) -> Case:
    """How much slower `spec` is than `other`, in percent: at most `most`."""
    name = f"{group}: {spec.kind}"
    length = 2 * pairs * (PIECE_SECONDS + BETWEEN_SECONDS)
    run = partial(measure, measured=spec, other=other, pairs=pairs, most=most)
    return Case(name, group, length, (spec, other), run)


def measure(context: Context, measured: Spec, other: Spec, pairs: int, most: float) -> None:
    context.stage.set_shares({})
    rates: dict[str, list[float]] = {measured.where: [], other.where: []}
    for number in range(pairs + 1):
        both = (measured, other) if number % 2 == 0 else (other, measured)
        pair = {spec.where: piece(context.stage, spec) for spec in both}
        if number:  # the first one warms up
            for where, rate in pair.items():
                rates[where].append(rate)
    ratios = [a / b for a, b in zip(rates[measured.where], rates[other.where], strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    percent = 100 * (1 - statistics.median(ratios))
    context.found = {
        "workload": measured.workload,
        "framework": measured.framework,
        "version": context.stage[measured].version,
        "rates": rates,
        "ratios": ratios,
        "overhead_percent": percent,
        "middle_half_percent": [100 * (1 - quarters[2]), 100 * (1 - quarters[0])],
    }
    words = f"slower in {measured.where} than in {other.where}, median"
    context.at_most(words, percent, most, "%")


def piece(stage: Stage, spec: Spec) -> float:
    """Its speed alone, from its first launch to the end of its last."""
    begin = time.monotonic() + BETWEEN_SECONDS
    core = max(os.sched_getaffinity(0))
    stage[spec].tell(do="run", at=begin, seconds=PIECE_SECONDS, core=core)
    rate: float = stage[spec].answer(PIECE_SECONDS + PATIENCE_SECONDS)["rate"]
    return rate


def measure_quiet(context: Context) -> None:
    """The credit thread's time when one program works, and when none does."""
    context.stage.set_shares({})
    stage, worker = context.stage, Spec("mm")
    before = stage.status()
    stage[worker].tell(do="run", at=time.monotonic(), seconds=QUIET_SECONDS)
    stage[worker].answer(QUIET_SECONDS + PATIENCE_SECONDS)
    between = stage.status()
    time.sleep(QUIET_SECONDS)
    after = stage.status()
    percents = {
        when: 100 * (b.credit_cpu_seconds - a.credit_cpu_seconds) / (b.now - a.now)
        for when, a, b in (("one at work", before, between), ("none at work", between, after))
    }
    context.found = {"credit_cpu_percent": percents}
    for when, percent in percents.items():
        context.at_most(f"arbiter's CPU, {when}", percent, MOST_QUIET_CPU_PERCENT, "%")
