"""`aliquot top`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.keys import waiting
from aliquot.cli.ps import grant_name, strangers
from aliquot.cli.tables import NOTHING, console, milliseconds, new_table, percent, rate, used_of
from aliquot.model import Gates, GrantState, Policy, Priority, format_bytes, format_share
from aliquot.slices.rates import Rates, credit_cpu_ratio, key, slice_rates
from aliquot.slices.share_problems import share_problems

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import RenderableType

    from aliquot.model import ComputeUse, Grant, Slice, SliceUse
    from aliquot.slices import LocalMachine
    from aliquot.slices.control import SharedGpu, Status

_COLUMNS = (
    "Grant", "Asked", "Got", "Memory", "Back-\nlog", "Hand-\novers/s", "Wait, ms\np50/p99",
    "Fall-\nbacks", "State",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice, and what it got since the last refresh."""

    grant: Grant
    part: Slice
    use: SliceUse
    compute: ComputeUse
    rates: Rates

    def cells(self) -> tuple[str, ...]:
        """Its values for _COLUMNS."""
        compute = self.compute
        waits = (compute.wait_p50_seconds, compute.wait_p99_seconds)
        return (
            grant_name(self.grant),
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
        """The state of its grant if that is not active, else its state in the turns."""
        if self.grant.state is not GrantState.ACTIVE:
            return str(self.grant.state)
        return "no gates" if self.compute.gates is Gates.FAIL else str(self.compute.turn)

    @property
    def asked(self) -> str:
        """The share, and the policy and the priority if they are not the defaults."""
        words = [format_share(self.part.compute_percent)]
        words += [str(self.part.policy)] if self.part.policy is not Policy.ELASTIC else []
        words += [str(self.part.priority)] if self.part.priority is not Priority.NORMAL else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class MachineView:
    """One machine at this refresh; `before` is its status at the last one, or None."""

    machine: LocalMachine
    before: Status | None

    @property
    def status(self) -> Status:
        """The status at this refresh."""
        return self.machine.status

    @property
    def credit_cpu(self) -> str:
        """The share of one processor core that the credit thread uses."""
        return percent(credit_cpu_ratio(self.before, self.status))

    def rows(self, gpu_uuid: str) -> list[SliceRow]:
        """The slices of a GPU, oldest grant first."""
        rates = slice_rates(self.before, self.status)
        return [
            SliceRow(grant, part, use, compute, rates[key(grant, part.gpu_uuid)])
            for grant in sorted(self.status.grants, key=lambda grant: (grant.created, grant.name))
            for part, use, compute in zip(grant.slices, grant.use, grant.compute, strict=True)
            if part.gpu_uuid == gpu_uuid
        ]


def show_top(interval: float, count: int | None) -> None:
    """Show every GPU and its slices, until `count` refreshes, a key or Ctrl-C."""
    try:
        if console().is_terminal:
            _live(interval, count)
        else:
            _lines(interval, count)
    except KeyboardInterrupt:
        return


def _live(interval: float, count: int | None) -> None:
    from rich.live import Live  # noqa: PLC0415 - imported when needed

    refreshes = _refreshes()
    first = next(refreshes)
    with (
        waiting() as wait,
        Live(console=console(), auto_refresh=False, screen=count is None) as live,
    ):
        if count is None:  # a counted refresh always shows a whole interval
            live.update(render(first), refresh=True)
        for _ in _times(count):
            if wait(interval):
                return
            live.update(render(next(refreshes)), refresh=True)


def _lines(interval: float, count: int | None) -> None:
    """For a file or a program: one line per slice and refresh."""
    refreshes = _refreshes()
    next(refreshes)
    for _ in _times(count):
        time.sleep(interval)
        for line in lines(next(refreshes), datetime.now().astimezone()):
            console().print(line, soft_wrap=True)


def _times(count: int | None) -> Iterator[None]:
    return repeat(None) if count is None else repeat(None, count)


def _refreshes() -> Iterator[list[MachineView]]:
    """Read all machines; each refresh has the status of the one before it."""
    before: dict[Path, Status] = {}
    while True:
        found = slices.machines()
        yield [MachineView(machine, before.get(machine.state.directory)) for machine in found]
        before = {machine.state.directory: machine.status for machine in found}


def render(views: list[MachineView]) -> RenderableType:
    """All machines, ready to print."""
    from rich.console import Group  # noqa: PLC0415 - imported when needed

    parts = [part for view in views for part in _machine(view)]
    return Group(*(parts or ["No grants: no arbiter runs here."]))


def _machine(view: MachineView) -> Iterator[RenderableType]:
    yield f"{view.machine} · arbiter {view.status.pid} · credit {view.credit_cpu} of a core"
    for one in view.status.gpus:
        rows = view.rows(one.gpu.uuid)
        if not rows:
            yield f"{_gpu(one)} · no slices"
            continue
        table = new_table(*_COLUMNS, title=_gpu(one), tight=True)
        for row in rows:
            table.add_row(*row.cells())
        yield table
    yield from share_problems(view.status)
    yield from strangers(view.status.gpus)


def _gpu(one: SharedGpu) -> str:
    used, total = format_bytes(one.gpu.used_bytes), format_bytes(one.gpu.memory_bytes)
    turns = "contended" if one.contended else "not contended"
    return f"{one.gpu} · {one.gpu.model} · {used} of {total} used · {turns}"


def lines(views: list[MachineView], now: datetime) -> Iterator[str]:
    """One line per slice: the time, then NAME=VALUE pairs; then the problems."""
    stamp = now.isoformat(timespec="milliseconds")
    for view in views:
        for one in view.status.gpus:
            for row in view.rows(one.gpu.uuid):
                yield " ".join([stamp, *_pairs(view.machine, one, row)])
        for sentence in share_problems(view.status):
            yield f"{stamp} {sentence}"


def _pairs(machine: LocalMachine, one: SharedGpu, row: SliceRow) -> Iterator[str]:
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
        "grant_state": row.grant.state,
        "gates": compute.gates,
        "contended": "yes" if one.contended else "no",
    }
    yield from (f"{name}={'-' if value == NOTHING else value}" for name, value in values.items())


def _seconds(time: float | None) -> str:
    return NOTHING if time is None else f"{time:.6f}"
