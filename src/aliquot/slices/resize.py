"""Changing a grant while its programs run.

Compute, policy and priority count from the next window, memory at once. A memory limit below what
is in use is refused; or it is lowered step by step as the programs free: each step asks for the
goal again, and the arbiter goes as far as what is in use lets it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model import Change, Policy, format_bytes
from aliquot.model.errors import (
    AliquotError,
    InvalidValueError,
    MemoryInUseError,
    NoCapacityError,
    NoSuchGrantError,
    StateError,
)
from aliquot.slices import arbiter, control
from aliquot.slices.choose import compute_left, holders, left
from aliquot.slices.control import Resized, SliceChange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.model import Grant, Slice
    from aliquot.slices.control import SharedGpu, Status
    from aliquot.slices.machines import Machine

_STEP_SECONDS = 0.1
_RESTART_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the memory limits of a grant's slices have come."""

    slices: tuple[Resized, ...]
    goal_bytes: int  # of all slices

    @property
    def limit_bytes(self) -> int:
        """The limits as they are now."""
        return sum(part.memory_bytes for part in self.slices)

    @property
    def left_bytes(self) -> int:
        """What must be freed until they are what was asked for."""
        return max(0, self.limit_bytes - self.goal_bytes)


def resize(machine: Machine, grant: Grant, change: Change) -> tuple[Resized, ...]:
    """Change all slices of a grant at once, or none of them."""
    changes = _slice_changes(machine, grant, change)
    try:
        return control.resize(machine.state.directory, grant.name, changes)
    except (MemoryInUseError, NoCapacityError) as error:
        raise _with_figures(error, machine, grant, changes) from error


def _with_figures(
    error: AliquotError, machine: Machine, grant: Grant, changes: list[SliceChange]
) -> AliquotError:
    """A refusal in words for a person: who has what, as far as it is still so."""
    seen = control.status(machine.state.directory)
    told = _in_use if isinstance(error, MemoryInUseError) else _no_room
    lines = told(seen, grant, changes)
    ask_less = "Ask for less, or shrink another grant first: aliquot ps"
    return type(error)("\n".join(lines) or error.message, error.hint or ask_less)


def _in_use(seen: Status, grant: Grant, changes: list[SliceChange]) -> list[str]:
    goals = {change.gpu_uuid: change.memory_bytes for change in changes}
    places = {one.gpu.uuid: one.gpu for one in seen.gpus}
    return [
        f"grant {one.name} uses {format_bytes(use.used_bytes)} of {places[use.gpu_uuid]}: its limit"
        f" cannot be {format_bytes(goal)}"
        for one in seen.grants
        if one.name == grant.name
        for use in one.use
        if (goal := goals.get(use.gpu_uuid)) is not None and goal < use.used_bytes
    ]


def _no_room(seen: Status, grant: Grant, changes: list[SliceChange]) -> list[str]:
    others = [one for one in seen.grants if one.name != grant.name]
    gpus = {one.gpu.uuid: one for one in seen.gpus}
    lines = []
    for part, change in zip(grant.slices, changes, strict=True):
        one = gpus[part.gpu_uuid]
        beside = replace(one, granted_bytes=sum(x.bytes_on(one.gpu.uuid) for x in others))
        memory = _memory_short(beside, change.memory_bytes or 0)
        compute = _compute_short(compute_left(beside, others), part, change)
        if memory or compute:
            who = holders(beside, others, with_compute=bool(compute))
            lines.append(f"  {one.gpu}: {'; '.join([*memory, *compute])}{who}")
    return [f"no room for what grant {grant.name} should get:", *lines] if lines else []


def _memory_short(beside: SharedGpu, asked: int) -> list[str]:
    words = f"{format_bytes(asked)} asked"
    if asked > beside.gpu.memory_bytes:
        return [f"{words}, the GPU has {format_bytes(beside.gpu.memory_bytes)}"]
    return [f"{words}, {format_bytes(left(beside))} left"] if asked > left(beside) else []


def _compute_short(percent_left: int, part: Slice, change: SliceChange) -> list[str]:
    percent = part.compute_percent if change.compute_percent is None else change.compute_percent
    asked = replace(
        part, compute_percent=percent, priority=change.priority or part.priority
    ).reserved_percent
    return [f"{asked}% asked, {percent_left}% left"] if asked > percent_left else []


def lower(machine: Machine, grant: Grant, change: Change) -> Iterator[Progress]:
    """Change all slices, the memory as far as what is in use lets it; then go on until it is so.

    What else was asked for is asked once: somebody may change it again while this waits.
    """
    changes = _slice_changes(machine, grant, change)
    goal = sum(part.memory_bytes or 0 for part in changes)
    while True:
        done = _step(machine, grant, changes)
        yield Progress(done, goal)
        if all(part.reached for part in done):
            return
        time.sleep(_STEP_SECONDS)
        changes = _slice_changes(machine, grant, Change(memory=change.memory))


def _step(machine: Machine, grant: Grant, changes: list[SliceChange]) -> tuple[Resized, ...]:
    directory = machine.state.directory
    try:
        try:
            return control.resize(directory, grant.name, changes, gradual=True)
        except control.NoArbiterError:  # it died; it takes up the grants when it starts again
            _wait_for_arbiter(machine)
            return control.resize(directory, grant.name, changes, gradual=True)
    except NoSuchGrantError as error:
        raise NoSuchGrantError(f"the grant {grant.name} has ended") from error


def _wait_for_arbiter(machine: Machine) -> None:
    arbiter.revive(machine.state)
    deadline = time.monotonic() + _RESTART_SECONDS
    while not control.answers(machine.state.directory) and time.monotonic() < deadline:
        time.sleep(_STEP_SECONDS)


def _slice_changes(machine: Machine, grant: Grant, change: Change) -> list[SliceChange]:
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


def _check_share(grant: Grant, part: Slice, change: Change) -> None:
    """A hard slice needs a share: refuse a change that would leave it without one."""
    kept = part.compute_percent if change.compute_percent is None else change.compute_percent
    if change.policy is Policy.HARD and not kept:
        raise InvalidValueError("--policy hard needs a share: add --compute PERCENT")
    if change.compute_percent == 0 and (change.policy or part.policy) is Policy.HARD:
        raise InvalidValueError(
            f"grant {grant.name} has the policy hard, and that needs a share",
            "Add --policy elastic, or give --compute a percentage.",
        )


def _bytes(machine: Machine, part: Slice, change: Change) -> int | None:
    """The new limit of a slice: percent are of its own GPU."""
    if change.memory is None:
        return None
    for one in machine.seen.gpus:
        if one.gpu.uuid == part.gpu_uuid:
            return change.memory.of(one.gpu.memory_bytes)
    raise StateError(f"the GPU {part.gpu_uuid} is no longer there")
