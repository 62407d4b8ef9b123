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

from cases import Case, Context
from programs import GRANT, PATIENCE_SECONDS, PLAIN, Spec, Stage

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
        return pairs_case(f"overhead: {workload}", "overhead", spec, pairs)

    quiet = Case(
        "arbiter: nobody contends",
        "overhead",
        2 * QUIET_SECONDS,
        (Spec("mm"), Spec("decode")),
        measure_quiet,
    )
    return [*map(case, WORKLOADS), quiet]


def pairs_case(name: str, group: str, spec: Spec, pairs: int) -> Case:
    plain = Spec(spec.workload, spec.number, PLAIN, spec.framework)
    length = 2 * pairs * (PIECE_SECONDS + BETWEEN_SECONDS)
    return Case(
        name, group, length, (spec, plain), lambda context: measure(context, spec, plain, pairs)
    )


def measure(context: Context, granted: Spec, plain: Spec, pairs: int) -> None:
    context.stage.set_shares({})
    rates: dict[str, list[float]] = {GRANT: [], PLAIN: []}
    for number in range(pairs + 1):
        both = (granted, plain) if number % 2 == 0 else (plain, granted)
        pair = {spec.where: piece(context.stage, spec) for spec in both}
        if number:  # the first one warms up
            for where, rate in pair.items():
                rates[where].append(rate)
    ratios = [a / b for a, b in zip(rates[GRANT], rates[PLAIN], strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    percent = 100 * (1 - statistics.median(ratios))
    context.found = {
        "workload": granted.workload,
        "framework": granted.framework,
        "version": context.stage[granted].version,
        "rates": rates,
        "ratios": ratios,
        "overhead_percent": percent,
        "middle_half_percent": [100 * (1 - quarters[2]), 100 * (1 - quarters[0])],
    }
    context.at_most("slower in a grant, median", percent, MOST_PERCENT, "%")


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
