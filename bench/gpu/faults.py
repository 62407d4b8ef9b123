"""What a fault of one program does to its neighbour: nothing, but for a bounded wait.

The neighbour multiplies matrices in half of the GPU all the while and stamps each pair of products;
a program in the other half does the same until something happens to it. Told is the longest time in
which the neighbour got nothing done, before and after; whether its products are still right; and
what the arbiter said of the other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cases import Case, Context
from programs import PATIENCE_SECONDS, Share, Spec, Stage, TenantError, arbiter_processes
from witness import LEAD_SECONDS, Sample, Sampler, Seen, together

from aliquot.model.errors import AliquotError
from aliquot.slices import control

NEIGHBOUR = Spec("mm2", 1)
OTHER = Spec("mm2", 6)
RUN_SECONDS = 5.0
FAULT_SECONDS = 1.5  # after the begin
MOST_WAIT_MS = 250.0
MOST_ARBITER_WAIT_MS = 150.0  # gates are open within 100 ms
ARBITER_SECONDS = 7.0
LAST_SECONDS = 2.0

Fault = Callable[[Context, Spec], None]
Loss = Callable[[Stage], None]


def cases(*, quick: bool) -> list[Case]:
    del quick  # they are short already

    def case(name: str, number: int, fault: Fault) -> Case:
        culprit = Spec("mm2", number)
        return Case(
            f"fault: {name}",
            "faults",
            RUN_SECONDS + 2,
            (NEIGHBOUR, culprit),
            lambda context: measure(context, culprit, fault),
        )

    def arbiter_case(
        name: str, lose: Loss, *, most_wait_ms: float | None = MOST_ARBITER_WAIT_MS
    ) -> Case:
        return Case(
            f"fault: {name}",
            "faults",
            ARBITER_SECONDS + 3,
            (NEIGHBOUR, OTHER),
            lambda context: measure_arbiter(context, lose, most_wait_ms),
        )

    return [
        case("an illegal access", 2, illegal_access),
        case("stopped by SIGSTOP", 3, stopped),
        case("killed in a window", 4, killed),
        case("a kernel that never ends", 5, never_ends),
        arbiter_case("the arbiter is killed", lambda stage: kill_arbiter(stage, 1)),
        arbiter_case("the arbiter and its parent are killed", lambda stage: kill_arbiter(stage, 2)),
        arbiter_case("all three are killed, then aliquot ps", kill_all, most_wait_ms=None),
        arbiter_case("aliquot restart", lambda stage: command(stage, "restart")),
    ]


def measure(context: Context, culprit: Spec, fault: Fault) -> None:
    stage = context.stage
    stage.set_shares({NEIGHBOUR: Share(50), culprit: Share(50)})
    begin = time.monotonic() + 0.1
    stage[NEIGHBOUR].tell(do="run", at=begin, seconds=RUN_SECONDS)
    with Sampler(stage) as sampler:
        fault_at = begin + FAULT_SECONDS
        length = FAULT_SECONDS - 0.1 if fault in {illegal_access, never_ends} else RUN_SECONDS
        stage[culprit].tell(do="run", at=begin, seconds=length)
        time.sleep(max(fault_at - time.monotonic(), 0))
        fault(context, culprit)
        said = stage[NEIGHBOUR].answer(RUN_SECONDS + PATIENCE_SECONDS)
    seen = Seen(begin, begin + RUN_SECONDS, {NEIGHBOUR: said}, sampler.samples)
    before, after = gaps_ms(seen, begin + 0.3, fault_at, begin + RUN_SECONDS)
    context.found |= {
        "before_ms": round(before, 2),
        "after_ms": round(after, 2),
        "right": said["right"],
        "shown": shown(sampler.samples, culprit),
        "fallbacks": seen.fallbacks(culprit),
        "neighbour_fallbacks": seen.fallbacks(NEIGHBOUR),
        "raw": seen.raw(),
    }
    context.holds("the neighbour's products are right", value=said["right"])
    context.at_most("the neighbour's longest wait", after, MOST_WAIT_MS, "ms")
    context.tell("its longest before the fault", before, "ms")
    stage.end([culprit])


def gaps_ms(seen: Seen, begin: float, fault_at: float, end: float) -> tuple[float, float]:
    progress = seen.progress(NEIGHBOUR)
    return (
        progress.longest_gap(begin, fault_at) * 1e3,
        progress.longest_gap(fault_at, end - 0.05) * 1e3,
    )


def shown(samples: list[Sample], culprit: Spec) -> list[str]:
    """The words the arbiter had for it, in the order in which they first came."""
    return list(dict.fromkeys(one.turn.get(culprit.name, "gone") for one in samples))


def illegal_access(context: Context, culprit: Spec) -> None:
    tenant = context.stage[culprit]
    tenant.answer(PATIENCE_SECONDS)
    tenant.tell(do="illegal")
    try:
        context.found["culprit"] = tenant.answer(2.0)["error"]
    except TenantError as error:
        context.found["culprit"] = f"ended: {error}"[-200:]


def stopped(context: Context, culprit: Spec) -> None:
    tenant = context.stage[culprit]
    tenant.signal(signal.SIGSTOP)
    time.sleep(RUN_SECONDS - FAULT_SECONDS - 1.5)
    tenant.signal(signal.SIGCONT)


def killed(context: Context, culprit: Spec) -> None:
    context.stage[culprit].kill()


def never_ends(context: Context, culprit: Spec) -> None:
    """It is killed in the end: also then the neighbour goes on."""
    tenant = context.stage[culprit]
    tenant.answer(PATIENCE_SECONDS)
    tenant.tell(do="forever")
    time.sleep(RUN_SECONDS - FAULT_SECONDS - 1.2)
    tenant.kill()


def kill_arbiter(stage: Stage, count: int) -> None:
    """Kill the arbiter; its parent too, and its guard. All stop first: none sees another die."""
    pids = arbiter_processes(stage.status())[-count:]
    for number in (signal.SIGSTOP, signal.SIGKILL) if count > 1 else (signal.SIGKILL,):
        for pid in pids:
            os.kill(pid, number)


def kill_all(stage: Stage) -> None:
    """Nothing is left that opens gates, until the next command starts an arbiter."""
    kill_arbiter(stage, 3)
    command(stage, "ps")


def command(stage: Stage, name: str) -> None:
    where = ["--simulate", stage.simulate] if stage.simulate and name == "restart" else []
    words = [sys.executable, "-m", "aliquot", name, *where]
    subprocess.run(words, stdout=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, check=True)


def measure_arbiter(context: Context, lose: Loss, most_wait_ms: float | None) -> None:
    """Both go on while it is away; afterwards each has its share again."""
    stage, told = context.stage, dict[str, Any]()
    alone = context.speeds.of(NEIGHBOUR).rate
    shares = {NEIGHBOUR: Share(30), OTHER: Share(70)}
    stage.set_shares(shares)
    before = arbiter_processes(stage.status())[-1]
    begin = time.monotonic()

    def lose_it() -> None:
        time.sleep(max(begin + FAULT_SECONDS - time.monotonic(), 0))
        told["lost_at"] = time.monotonic()
        lose(stage)
        told["back_after_ms"] = back_after_ms(stage.state.directory, before, told["lost_at"])

    loser = threading.Thread(target=lose_it, daemon=True)
    loser.start()
    seen = together(stage, shares, ARBITER_SECONDS - LEAD_SECONDS)
    loser.join()
    waits, earlier, last = dict[str, float](), list[float](), list[float]()
    for spec in shares:
        progress = seen.progress(spec)
        waits[spec.name] = progress.longest_gap(told["lost_at"], seen.end) * 1e3
        first = begin + FAULT_SECONDS - LEAD_SECONDS
        earlier.append(progress.grown(first, told["lost_at"]) / (told["lost_at"] - first))
        last.append(progress.grown(seen.end - LAST_SECONDS, seen.end) / LAST_SECONDS)
    part = 100 * last[0] / sum(last)
    context.found = {
        "waits_ms": {name: round(wait, 2) for name, wait in waits.items()},
        "back_after_ms": told["back_after_ms"],
        "rates_before": [round(rate, 1) for rate in earlier],
        "rates_in_the_end": [round(rate, 1) for rate in last],
        "summed_in_the_end": round(sum(last) / alone, 4),
        "share_in_the_end": round(part, 2),
        "right": [seen.answers[spec]["right"] for spec in shares],
        "raw": seen.raw(),
    }
    if most_wait_ms is None:
        context.tell("anybody's longest wait", max(waits.values()), "ms")
    else:
        context.at_most("anybody's longest wait", max(waits.values()), most_wait_ms, "ms")
    for rate_before, rate, spec in zip(earlier, last, shares, strict=True):
        context.tell(f"{shares[spec].compute} %: per second before", rate_before)
        context.tell(f"{shares[spec].compute} %: per second in the end", rate)
    context.holds("all products are right", value=all(context.found["right"]))
    context.at_most("30/70 in the end, off by", abs(part - 30), 1.5, "points")


def back_after_ms(directory: Path, dead: int, lost_at: float) -> float | None:
    """How long after the loss another one answers."""
    while time.monotonic() - lost_at < ARBITER_SECONDS:
        with suppress(AliquotError):
            if dead not in arbiter_processes(control.status(directory)):
                return round((time.monotonic() - lost_at) * 1e3, 1)
        time.sleep(0.005)
    return None
