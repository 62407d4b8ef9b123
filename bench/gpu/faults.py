"""What a fault of one program does to its neighbour: nothing, but for a bounded wait.

The neighbour multiplies matrices in half of the GPU all the while and stamps each pair of products;
a program in the other half does the same until something happens to it. Told is the longest time in
which the neighbour got nothing done, before and after; whether its products are still right; and
what the arbiter said of the other.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cases import Case, Context
from programs import PATIENCE_SECONDS, Share, Spec, TenantError, arbiter_processes
from witness import LEAD_SECONDS, Sample, Sampler, Seen, together

from aliquot.model.errors import AliquotError
from aliquot.slices import control

NEIGHBOUR = Spec("mm2", 1)
RUN_SECONDS = 5.0
FAULT_SECONDS = 1.5  # after the begin
MOST_WAIT_MS = 250.0
MOST_ARBITER_WAIT_MS = 150.0  # gates are open within 100 ms
ARBITER_SECONDS = 7.0
LAST_SECONDS = 2.0

Fault = Callable[[Context, Spec], None]


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

    other = Spec("mm2", 6)
    return [
        case("an illegal access", 2, illegal_access),
        case("stopped by SIGSTOP", 3, stopped),
        case("killed in a window", 4, killed),
        case("a kernel that never ends", 5, never_ends),
        Case(
            "fault: the arbiter is killed",
            "faults",
            ARBITER_SECONDS + 3,
            (NEIGHBOUR, other),
            lambda context: measure_arbiter(context, other),
        ),
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


def measure_arbiter(context: Context, other: Spec) -> None:
    """Both go on while it is away; afterwards each has its share again."""
    stage, told = context.stage, dict[str, Any]()
    alone = context.speeds.of(NEIGHBOUR).rate
    shares = {NEIGHBOUR: Share(30), other: Share(70)}
    stage.set_shares(shares)
    _, pid = arbiter_processes(stage.status())
    begin = time.monotonic()

    def kill_it() -> None:
        time.sleep(max(begin + FAULT_SECONDS - time.monotonic(), 0))
        told["killed_at"] = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        told["back_after_ms"] = answers_again_ms(stage.state.directory, pid)

    killer = threading.Thread(target=kill_it, daemon=True)
    killer.start()
    seen = together(stage, shares, ARBITER_SECONDS - LEAD_SECONDS)
    killer.join()
    waits = {
        spec.name: seen.progress(spec).longest_gap(told["killed_at"], seen.end) * 1e3
        for spec in shares
    }
    last = [
        seen.progress(spec).grown(seen.end - LAST_SECONDS, seen.end) / LAST_SECONDS / alone
        for spec in shares
    ]
    part = 100 * last[0] / sum(last)
    context.found = {
        "waits_ms": {name: round(wait, 2) for name, wait in waits.items()},
        "back_after_ms": told["back_after_ms"],
        "share_in_the_end": round(part, 2),
        "right": [seen.answers[spec]["right"] for spec in shares],
        "raw": seen.raw(),
    }
    context.at_most("anybody's longest wait", max(waits.values()), MOST_ARBITER_WAIT_MS, "ms")
    context.holds("all products are right", value=all(context.found["right"]))
    context.at_most("30/70 in the end, off by", abs(part - 30), 1.5, "points")


def answers_again_ms(directory: Path, dead: int) -> float | None:
    """How long until another one answers."""
    began = time.monotonic()
    while time.monotonic() - began < ARBITER_SECONDS:
        with suppress(AliquotError):
            if dead not in arbiter_processes(control.status(directory)):
                return round((time.monotonic() - began) * 1e3, 1)
        time.sleep(0.005)
    return None
