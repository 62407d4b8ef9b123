"""`aliquot resize`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.keys import INTERRUPTED
from aliquot.cli.tables import console
from aliquot.devices import parse_shape
from aliquot.model import format_bytes, format_share, parse_amount
from aliquot.model.errors import InvalidValueError
from aliquot.slices.grant_resize import lower, resize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.model import Grant, GrantChange, Slice
    from aliquot.slices import LocalMachine
    from aliquot.slices.control import Resized
    from aliquot.slices.grant_resize import ResizeProgress


def resize_grant(
    name: str, change: GrantChange, *, wait: bool, dry_run: bool, simulate: str | None
) -> int:
    """Change a grant and print the new settings; return the exit code."""
    name = slices.check_address(name)
    if wait and change.memory is None:
        raise InvalidValueError(
            "--wait is only for --memory", "Give --memory too, or leave --wait out."
        )
    machine, grant = slices.find_grant(_machines(simulate), name)
    if dry_run and wait:
        raise InvalidValueError("--dry-run does not wait", "Leave --wait out.")
    if not wait:
        done = resize(machine, grant, change, dry_run=dry_run)
        _print_changes(machine, grant, change, done)
        return _without_effect(grant, change)
    return _wait(machine, grant, change) or _without_effect(grant, change)


def _without_effect(grant: Grant, change: GrantChange) -> int:
    """Say which programs the change of the share does not reach; the exit code."""
    if change.compute_percent is None and change.policy is None and change.priority is None:
        return 0
    lost = [process for process in grant.processes if process.ungated is not None]
    for process in lost:
        sys.stderr.write(
            f"aliquot: the share of {process.name} ({process.pid}) is not held: {process.ungated}\n"
        )
    return 1 if lost else 0


def _machines(simulate: str | None) -> list[LocalMachine]:
    if simulate is None:
        return slices.local_machines()
    shape = parse_shape(simulate)
    return [machine for machine in slices.local_machines() if machine.state.shape == shape]


def _wait(machine: LocalMachine, grant: Grant, change: GrantChange) -> int:
    """Lower the limits as the programs free memory; after Ctrl-C they stay as they are."""
    done: tuple[Resized, ...] = ()
    try:
        for progress in _shown(lower(machine, grant, change), grant):
            done = progress.slices
    except KeyboardInterrupt:
        where = _present_limits(machine, grant, done)
        sys.stderr.write(f"aliquot: no longer waiting: {where}\n  {_how_to_undo(grant)}\n")
        return INTERRUPTED
    _print_changes(machine, grant, change, done)
    return 0


def _present_limits(machine: LocalMachine, grant: Grant, done: tuple[Resized, ...]) -> str:
    limits = ", ".join(
        f"{format_bytes(part.memory_bytes)} of {_gpu_name(machine, part.gpu_uuid)}"
        for part in done or grant.slices
    )
    return f"grant {slices.shown_name(grant.name)} keeps its present limit, {limits}"


def _how_to_undo(grant: Grant) -> str:
    """How to restore the earlier limits; all slices of a grant get the same."""
    limits = {part.memory_bytes for part in grant.slices}
    amount = _written(limits.pop()) if len(limits) == 1 else "AMOUNT"
    return f"To undo: aliquot resize {slices.shown_name(grant.name)} --memory {amount}"


def _written(count: int) -> str:
    """Exactly these bytes as the value of an option."""
    short = format_bytes(count).replace(" ", "")
    return short if parse_amount(short).bytes == count else str(count)


def _shown(progress: Iterator[ResizeProgress], grant: Grant) -> Iterator[ResizeProgress]:
    """The same; shows a progress bar on a terminal, otherwise one line."""
    if not console().is_terminal:
        yield from _announced(progress, grant)
        return
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - imported when needed
    from rich.progress import Progress as Display  # noqa: PLC0415

    text = TextColumn("{task.description}", markup=False)
    with Display(text, BarColumn(), console=console(), transient=True) as display:
        start = sum(part.memory_bytes for part in grant.slices)
        task = display.add_task("", total=None)
        for one in progress:
            display.update(
                task,
                description=f"grant {slices.shown_name(grant.name)}:"
                f" {format_bytes(one.remaining_bytes)} to go",
                total=max(start - one.goal_bytes, 1),
                completed=start - one.limit_bytes,
            )
            yield one


def _announced(progress: Iterator[ResizeProgress], grant: Grant) -> Iterator[ResizeProgress]:
    for number, one in enumerate(progress):
        if number == 0 and one.remaining_bytes:
            sys.stderr.write(f"aliquot: grant {slices.shown_name(grant.name)}: waiting,")
            sys.stderr.write(f" {format_bytes(one.remaining_bytes)} to go\n")
            sys.stderr.flush()
        yield one


def _print_changes(
    machine: LocalMachine, grant: Grant, change: GrantChange, done: tuple[Resized, ...]
) -> None:
    """Print one line for each slice: its old and new settings."""
    limits = {part.gpu_uuid: part.memory_bytes for part in done}
    for part in grant.slices:
        now = limits.get(part.gpu_uuid, part.memory_bytes)
        text = "; ".join(_differences(part, change, now)) or "unchanged"
        console().print(
            f"grant {slices.shown_name(grant.name)}, {_gpu_name(machine, part.gpu_uuid)}: {text}"
        )


def _differences(part: Slice, change: GrantChange, memory_bytes: int) -> Iterator[str]:
    if memory_bytes != part.memory_bytes:
        yield f"memory {format_bytes(part.memory_bytes)} → {format_bytes(memory_bytes)}"
    if change.compute_percent not in {None, part.compute_percent}:
        now = format_share(change.compute_percent or 0)
        yield f"compute {format_share(part.compute_percent)} → {now}"
    if change.policy not in {None, part.policy}:
        yield f"policy {part.policy} → {change.policy}"
    if change.priority not in {None, part.priority}:
        yield f"priority {part.priority} → {change.priority}"


def _gpu_name(machine: LocalMachine, uuid: str) -> str:
    kind = "" if machine.state.shape is None else "simulated "
    for one in machine.status.gpus:
        if one.gpu.uuid == uuid:
            return f"{kind}{one.gpu}"
    return uuid
