"""Changing a grant while its programs run.

Compute, policy and priority change at the next window, memory at once. A memory limit below what is
in use is refused, or lowered step by step as the programs free memory: each step repeats the
request, and the arbiter lowers the limit to what is in use. A limit below what one CUDA context
takes is always refused.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model import GrantChange, Policy, format_bytes
from aliquot.model.errors import (
    AliquotError,
    InvalidValueError,
    MemoryInUseError,
    NoCapacityError,
    NoSuchGrantError,
    StateError,
)
from aliquot.slices import arbiter_process, control
from aliquot.slices.contexts import context_bytes, describe_too_small
from aliquot.slices.control import Resized, SliceChange
from aliquot.slices.gpu_choice import describe_users, free_bytes, free_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.model import Grant, Slice
    from aliquot.slices.arbiter_status import SharedGpu, Status
    from aliquot.slices.machines import LocalMachine

_STEP_SECONDS = 0.1
_RESTART_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ResizeProgress:
    """The memory limits of a grant while they are lowered."""

    slices: tuple[Resized, ...]
    goal_bytes: int  # sum over all slices

    @property
    def limit_bytes(self) -> int:
        """The sum of the limits now."""
        return sum(part.memory_bytes for part in self.slices)

    @property
    def remaining_bytes(self) -> int:
        """What programs must still free to reach the goal."""
        return max(0, self.limit_bytes - self.goal_bytes)


def resize(
    machine: LocalMachine, grant: Grant, change: GrantChange, *, dry_run: bool = False
) -> tuple[Resized, ...]:
    """Change all slices of a grant at once, or none of them; with `dry_run` none in any case."""
    changes = _slice_changes(machine, grant, change)
    try:
        return control.resize(machine.state.directory, grant.name, changes, dry_run=dry_run)
    except (MemoryInUseError, NoCapacityError) as error:
        raise _with_figures(error, machine, grant, changes) from error


def _with_figures(
    error: AliquotError, machine: LocalMachine, grant: Grant, changes: list[SliceChange]
) -> AliquotError:
    """The refusal with figures for a person: which grant has how much."""
    status = control.status(machine.state.directory)
    describe = _in_use if isinstance(error, MemoryInUseError) else _no_capacity
    lines = describe(status, grant, changes)
    request_less = "Request less, or shrink another grant first: aliquot ps"
    return type(error)("\n".join(lines) or error.message, error.hint or request_less)


def _in_use(status: Status, grant: Grant, changes: list[SliceChange]) -> list[str]:
    goals = {change.gpu_uuid: change.memory_bytes for change in changes}
    places = {one.gpu.uuid: one.gpu for one in status.gpus}
    return [
        f"grant {one.name} uses {format_bytes(use.used_bytes)} of {places[use.gpu_uuid]}: its limit"
        f" cannot be {format_bytes(goal)}"
        for one in status.grants
        if one.name == grant.name
        for use in one.use
        if (goal := goals.get(use.gpu_uuid)) is not None and goal < use.used_bytes
    ]


def _no_capacity(status: Status, grant: Grant, changes: list[SliceChange]) -> list[str]:
    others = [one for one in status.grants if one.name != grant.name]
    gpus = {one.gpu.uuid: one for one in status.gpus}
    lines = []
    for part, change in zip(grant.slices, changes, strict=True):
        one = gpus[part.gpu_uuid]
        without = replace(one, granted_bytes=sum(x.bytes_on(one.gpu.uuid) for x in others))
        memory = _memory_short(without, change.memory_bytes or 0)
        compute = _compute_short(free_percent(without, others), part, change)
        if memory or compute:
            users = describe_users(without, others, with_compute=bool(compute))
            lines.append(f"  {one.gpu}: {'; '.join([*memory, *compute])}{users}")
    return [f"not enough free capacity for grant {grant.name}:", *lines] if lines else []


def _memory_short(one: SharedGpu, asked: int) -> list[str]:
    requested, free = f"{format_bytes(asked)} requested", free_bytes(one)
    if asked > one.gpu.memory_bytes:
        return [f"{requested}, the GPU has {format_bytes(one.gpu.memory_bytes)}"]
    return [f"{requested}, {format_bytes(free)} free"] if asked > free else []


def _compute_short(free: int, part: Slice, change: SliceChange) -> list[str]:
    percent = part.compute_percent if change.compute_percent is None else change.compute_percent
    asked = replace(
        part, compute_percent=percent, priority=change.priority or part.priority
    ).reserved_percent
    return [f"{asked}% requested, {free}% free"] if asked > free else []


def lower(machine: LocalMachine, grant: Grant, change: GrantChange) -> Iterator[ResizeProgress]:
    """Change all slices, and lower the memory limits step by step until the goal is reached.

    Other settings are changed once, at the start: somebody may change them again meanwhile.
    """
    changes = _slice_changes(machine, grant, change)
    goal = sum(part.memory_bytes or 0 for part in changes)
    while True:
        done = _step(machine, grant, changes)
        yield ResizeProgress(done, goal)
        if all(part.reached for part in done):
            return
        time.sleep(_STEP_SECONDS)
        changes = _slice_changes(machine, grant, GrantChange(memory=change.memory))


def _step(machine: LocalMachine, grant: Grant, changes: list[SliceChange]) -> tuple[Resized, ...]:
    directory = machine.state.directory
    try:
        try:
            return control.resize(directory, grant.name, changes, gradual=True)
        except control.NoArbiterError:  # it died; it recovers the grants when it restarts
            _wait_for_arbiter(machine)
            return control.resize(directory, grant.name, changes, gradual=True)
    except NoSuchGrantError as error:
        raise NoSuchGrantError(
            f"the grant {grant.name} has ended", "See all with: aliquot ps"
        ) from error


def _wait_for_arbiter(machine: LocalMachine) -> None:
    arbiter_process.revive(machine.state)
    deadline = time.monotonic() + _RESTART_SECONDS
    while not control.answers(machine.state.directory) and time.monotonic() < deadline:
        time.sleep(_STEP_SECONDS)


def _slice_changes(machine: LocalMachine, grant: Grant, change: GrantChange) -> list[SliceChange]:
    for part in grant.slices:
        _check_share(grant, part, change)
    return [
        SliceChange(
            gpu_uuid=part.gpu_uuid,
            memory_bytes=_bytes(machine, part, change),
            compute_percent=change.compute_percent,
            policy=change.policy,
            priority=change.priority,
        )
        for part in grant.slices
    ]


def _check_share(grant: Grant, part: Slice, change: GrantChange) -> None:
    """Raise InvalidValueError if a hard slice would have no share."""
    percent = part.compute_percent if change.compute_percent is None else change.compute_percent
    if change.policy is Policy.HARD and not percent:
        raise InvalidValueError("--policy hard needs a share", "Add --compute PERCENT.")
    if change.compute_percent == 0 and (change.policy or part.policy) is Policy.HARD:
        raise InvalidValueError(
            f"grant {grant.name} has the policy hard, which needs a share",
            "Add --policy elastic, or give --compute a percentage.",
        )


def _bytes(machine: LocalMachine, part: Slice, change: GrantChange) -> int | None:
    """The new limit of a slice; a percentage is of its own GPU."""
    if change.memory is None:
        return None
    for one in machine.status.gpus:
        if one.gpu.uuid == part.gpu_uuid:
            return _enough(change.memory.of(one.gpu.memory_bytes), one)
    raise StateError(f"the GPU {part.gpu_uuid} is no longer there")


def _enough(size: int, one: SharedGpu) -> int:
    """The same size, or NoCapacityError if no program could run in it."""
    if size < context_bytes(one):
        raise NoCapacityError(
            describe_too_small(format_bytes(size), one), "Give more with --memory."
        )
    return size
