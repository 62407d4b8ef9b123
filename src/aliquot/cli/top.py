"""`aliquot top`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.keys import waiting
from aliquot.cli.ps import strangers
from aliquot.cli.tables import NOTHING, console, milliseconds, new_table, percent, rate, used_of
from aliquot.model import Gates, Hold, Policy, Priority, format_bytes, format_share
from aliquot.slices.culprits import culprits
from aliquot.slices.rates import Rates, credit_cpu_ratio, key, slice_rates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import RenderableType

    from aliquot.model import ComputeUse, Grant, Slice, SliceUse
    from aliquot.slices import Machine
    from aliquot.slices.control import SharedGpu, Status

_COLUMNS = (
    "Grant", "Asked", "Got", "Memory", "Back-\nlog", "Hand-\novers/s", "Wait, ms\np50/p99",
    "Fall-\nbacks", "State",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One slice, and what it got since the look before."""

    grant: Grant
    part: Slice
    use: SliceUse
    compute: ComputeUse
    rates: Rates

    def cells(self) -> tuple[str, ...]:
        """Its words under _COLUMNS."""
        compute = self.compute
        waits = (compute.wait_p50_seconds, compute.wait_p99_seconds)
        return (
            self.grant.name,
            self.asked,
            percent(self.rates.got_ratio),
            used_of(self.use.used_bytes, self.part.memory_bytes),
            str(compute.backlog_quanta),
            rate(self.rates.handovers_per_second),
            "/".join(map(milliseconds, waits)),
            str(compute.fallbacks),
            self.state,
        )

    @property
    def state(self) -> str:
        """Where it stands in the turns, or why it takes none."""
        if self.grant.hold is not Hold.TAKEN:
            return "suspended" if self.grant.hold is Hold.PARKED else "open"
        return "no gates" if self.compute.gates is Gates.FAIL else str(self.compute.turn)

    @property
    def asked(self) -> str:
        """The share, and the policy and the priority where they are not the ordinary ones."""
        words = [format_share(self.part.compute_percent)]
        words += [str(self.part.policy)] if self.part.policy is not Policy.ELASTIC else []
        words += [str(self.part.priority)] if self.part.priority is not Priority.NORMAL else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class View:
    """One machine, seen twice; `before` is None at the first look."""

    machine: Machine
    before: Status | None

    @property
    def seen(self) -> Status:
        """The later look."""
        return self.machine.seen

    @property
    def credit_cpu(self) -> str:
        """What part of one core the arbiter spends on giving credit."""
        return percent(credit_cpu_ratio(self.before, self.seen))

    def rows(self, gpu_uuid: str) -> list[Row]:
        """The slices of a GPU, the oldest grant's first."""
        rates = slice_rates(self.before, self.seen)
        return [
            Row(grant, part, use, compute, rates[key(grant, part.gpu_uuid)])
            for grant in sorted(self.seen.grants, key=lambda grant: (grant.created, grant.name))
            for part, use, compute in zip(grant.slices, grant.use, grant.compute, strict=True)
            if part.gpu_uuid == gpu_uuid
        ]


def show_top(interval: float, count: int | None) -> None:
    """Show every GPU and its slices again and again, until `count` times, a key or Ctrl-C."""
    try:
        if console().is_terminal:
            _live(interval, count)
        else:
            _lines(interval, count)
    except KeyboardInterrupt:
        return


def _live(interval: float, count: int | None) -> None:
    from rich.live import Live  # noqa: PLC0415 - imported when needed

    looks = _looks()
    first = next(looks)
    with (
        waiting() as wait,
        Live(console=console(), auto_refresh=False, screen=count is None) as live,
    ):
        if count is None:  # else every one that is counted shows what happened before it
            live.update(render(first), refresh=True)
        for _ in _times(count):
            if wait(interval):
                return
            live.update(render(next(looks)), refresh=True)


def _lines(interval: float, count: int | None) -> None:
    """For a file or a program: a line for each slice, each time."""
    looks = _looks()
    next(looks)
    for _ in _times(count):
        time.sleep(interval)
        for line in lines(next(looks), datetime.now().astimezone()):
            console().print(line, soft_wrap=True)


def _times(count: int | None) -> Iterator[None]:
    return repeat(None) if count is None else repeat(None, count)


def _looks() -> Iterator[list[View]]:
    """Look at all machines; each look with the one before it."""
    before: dict[Path, Status] = {}
    while True:
        found = slices.machines()
        yield [View(machine, before.get(machine.state.directory)) for machine in found]
        before = {machine.state.directory: machine.seen for machine in found}


def render(views: list[View]) -> RenderableType:
    """All machines as one thing to print."""
    from rich.console import Group  # noqa: PLC0415 - imported when needed

    parts = [part for view in views for part in _machine(view)]
    return Group(*(parts or ["No grants: no arbiter runs here."]))


def _machine(view: View) -> Iterator[RenderableType]:
    yield f"{view.machine} · arbiter {view.seen.pid} · credit {view.credit_cpu} of a core"
    for one in view.seen.gpus:
        rows = view.rows(one.gpu.uuid)
        if not rows:
            yield f"{_gpu(one)} · no slices"
            continue
        table = new_table(*_COLUMNS, title=_gpu(one), tight=True)
        for row in rows:
            table.add_row(*row.cells())
        yield table
    yield from culprits(view.seen)
    yield from strangers(view.seen.gpus)


def _gpu(one: SharedGpu) -> str:
    used, total = format_bytes(one.gpu.used_bytes), format_bytes(one.gpu.memory_bytes)
    turns = "contended" if one.contended else "not contended"
    return f"{one.gpu} · {one.gpu.model} · {used} of {total} used · {turns}"


def lines(views: list[View], now: datetime) -> Iterator[str]:
    """What is seen, in lines that each stand alone: the time, then words with a value each."""
    stamp = now.isoformat(timespec="milliseconds")
    for view in views:
        for one in view.seen.gpus:
            for row in view.rows(one.gpu.uuid):
                yield " ".join([stamp, *_words(view.machine, one, row)])
        for sentence in culprits(view.seen):
            yield f"{stamp} {sentence}"


def _words(machine: Machine, one: SharedGpu, row: Row) -> Iterator[str]:
    shape = machine.state.shape
    if shape is not None:
        yield f"simulated={shape}"
    compute, rates = row.compute, row.rates
    values = {
        "gpu": one.gpu.index,
        "grant": row.grant.name,
        "asked": format_share(row.part.compute_percent),
        "got": percent(rates.got_ratio),
        "memory_used_bytes": row.use.used_bytes,
        "memory_limit_bytes": row.part.memory_bytes,
        "backlog": compute.backlog_quanta,
        "handovers_per_second": rate(rates.handovers_per_second),
        "wait_p50_seconds": _seconds(compute.wait_p50_seconds),
        "wait_p99_seconds": _seconds(compute.wait_p99_seconds),
        "fallbacks": compute.fallbacks,
        "policy": row.part.policy,
        "priority": row.part.priority,
        "state": compute.turn,
        "hold": row.grant.hold,
        "gates": compute.gates,
        "contended": "yes" if one.contended else "no",
    }
    yield from (f"{name}={'-' if value == NOTHING else value}" for name, value in values.items())


def _seconds(time: float | None) -> str:
    return NOTHING if time is None else f"{time:.6f}"
