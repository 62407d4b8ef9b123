"""`aliquot resize`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import console
from aliquot.devices import parse_shape
from aliquot.model import check_name, format_bytes, format_share, parse_amount
from aliquot.model.errors import InvalidValueError
from aliquot.slices.resize import lower, resize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.model import Change, Grant, Slice
    from aliquot.slices import Machine
    from aliquot.slices.control import Resized
    from aliquot.slices.resize import Progress

INTERRUPTED = 130  # as a shell says of what Ctrl-C ended


def resize_grant(name: str, change: Change, *, wait: bool, simulate: str | None) -> int:
    """Change a grant and say what it is now; the exit code."""
    check_name(name)
    if wait and change.memory is None:
        raise InvalidValueError("--wait waits for memory", "Give --memory too, or leave it out.")
    machine, grant = slices.find_grant(_machines(simulate), name)
    if not wait:
        _tell(machine, grant, change, resize(machine, grant, change))
        return 0
    return _wait(machine, grant, change)


def _machines(simulate: str | None) -> list[Machine]:
    if simulate is None:
        return slices.machines()
    shape = parse_shape(simulate)
    return [machine for machine in slices.machines() if machine.state.shape == shape]


def _wait(machine: Machine, grant: Grant, change: Change) -> int:
    """Lower the limits as the programs free; they stay where they are when a person has enough."""
    done: tuple[Resized, ...] = ()
    try:
        for progress in _shown(lower(machine, grant, change), grant):
            done = progress.slices
    except KeyboardInterrupt:
        where = _where_it_is(machine, grant, done)
        sys.stderr.write(f"aliquot: no longer waiting: {where}\n  {_way_back(grant)}\n")
        return INTERRUPTED
    _tell(machine, grant, change, done)
    return 0


def _where_it_is(machine: Machine, grant: Grant, done: tuple[Resized, ...]) -> str:
    limits = ", ".join(
        f"{format_bytes(part.memory_bytes)} of {_place(machine, part.gpu_uuid)}"
        for part in done or grant.slices
    )
    return f"grant {grant.name} keeps the limit that it has now, {limits}"


def _way_back(grant: Grant) -> str:
    """How to get the limits from before; all slices of a grant can only get the same."""
    limits = {part.memory_bytes for part in grant.slices}
    amount = _written(limits.pop()) if len(limits) == 1 else "AMOUNT"
    return f"The way back: aliquot resize {grant.name} --memory {amount}"


def _written(count: int) -> str:
    """Bytes as an option that means exactly them."""
    short = format_bytes(count).replace(" ", "")
    return short if parse_amount(short).bytes == count else str(count)


def _shown(progress: Iterator[Progress], grant: Grant) -> Iterator[Progress]:
    """The same, with the bytes to go on a terminal; else a line that says that it waits."""
    if not console().is_terminal:
        yield from _announced(progress, grant)
        return
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - imported when needed
    from rich.progress import Progress as Display  # noqa: PLC0415

    words = TextColumn("{task.description}", markup=False)
    with Display(words, BarColumn(), console=console(), transient=True) as display:
        start = sum(part.memory_bytes for part in grant.slices)
        task = display.add_task("", total=None)
        for one in progress:
            display.update(
                task,
                description=f"grant {grant.name}: {format_bytes(one.left_bytes)} to go",
                total=max(start - one.goal_bytes, 1),
                completed=start - one.limit_bytes,
            )
            yield one


def _announced(progress: Iterator[Progress], grant: Grant) -> Iterator[Progress]:
    for number, one in enumerate(progress):
        if number == 0 and one.left_bytes:
            sys.stderr.write(f"aliquot: grant {grant.name}: waiting,")
            sys.stderr.write(f" {format_bytes(one.left_bytes)} to go\n")
            sys.stderr.flush()
        yield one


def _tell(machine: Machine, grant: Grant, change: Change, done: tuple[Resized, ...]) -> None:
    """One line for each slice: what it was and what it is."""
    limits = {part.gpu_uuid: part.memory_bytes for part in done}
    for part in grant.slices:
        now = limits.get(part.gpu_uuid, part.memory_bytes)
        words = "; ".join(_differences(part, change, now)) or "as it was"
        console().print(f"grant {grant.name}, {_place(machine, part.gpu_uuid)}: {words}")


def _differences(part: Slice, change: Change, memory_bytes: int) -> Iterator[str]:
    if memory_bytes != part.memory_bytes:
        yield f"memory {format_bytes(part.memory_bytes)} → {format_bytes(memory_bytes)}"
    if change.compute_percent not in {None, part.compute_percent}:
        now = format_share(change.compute_percent or 0)
        yield f"compute {format_share(part.compute_percent)} → {now}"
    if change.policy not in {None, part.policy}:
        yield f"policy {part.policy} → {change.policy}"
    if change.priority not in {None, part.priority}:
        yield f"priority {part.priority} → {change.priority}"


def _place(machine: Machine, uuid: str) -> str:
    kind = "" if machine.state.shape is None else "simulated "
    for one in machine.seen.gpus:
        if one.gpu.uuid == uuid:
            return f"{kind}{one.gpu}"
    return uuid
