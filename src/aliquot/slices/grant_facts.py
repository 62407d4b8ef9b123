"""Facts about grants and GPUs for people: what a grant does, its command, what needs attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import (
    GrantState,
    Life,
    ParkingStep,
    format_bytes,
    format_count,
    format_duration,
)
from aliquot.model.errors import AliquotError
from aliquot.slices import mps
from aliquot.slices.procfs import command_line
from aliquot.slices.share_problems import share_problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aliquot.devices import Sensors, Telemetry
    from aliquot.model import Grant, MemoryTurns
    from aliquot.slices.arbiter_status import SharedGpu, Status
    from aliquot.slices.machines import LocalMachine

RUNNING = "running"

_PARKING = {
    ParkingStep.NONE: "is idle and was not parked",
    ParkingStep.LEAVING: "leaves its GPU",
    ParkingStep.AWAY: "waits to return to its GPU",
    ParkingStep.RETURNING: "returns to its GPU",
}


def telemetry(machine: LocalMachine, sensors: Sensors) -> dict[str, Telemetry]:
    """What the GPUs of a machine do now, by UUID; empty where the driver does not answer."""
    if machine.status.nvml_silent_seconds:
        return {}
    try:
        return sensors.read(machine.state.driver())
    except AliquotError:
        return {}


def state_of(grant: Grant) -> str:
    """What its programs do: running, stopped, unused, ended; or parked, switching, broken."""
    if grant.broken is not None:
        return "broken"
    if grant.state is not GrantState.ACTIVE:
        return str(grant.state)
    live = [process for process in grant.processes if process.state == "live"]
    if live and all(process.stopped for process in live):
        return "stopped"
    if not grant.owner_alive and grant.life is Life.OWNED:
        return "ending" if grant.processes else "ended"
    used = any(use.used_bytes for use in grant.use)  # all that is known of another user's
    return RUNNING if grant.processes or (grant.is_hidden and used) else "unused"


def command_of(grant: Grant) -> str:
    """The command that made the grant, or else the first program in it; empty if unknown."""
    if grant.owner_pid and grant.owner_alive and (command := command_line(grant.owner_pid)):
        return command
    for process in grant.processes:
        return command_line(process.pid) or process.name
    return ""


def notes(found: Iterable[LocalMachine]) -> Iterator[str]:
    """A sentence for everything about these machines that needs attention."""
    for machine in found:
        yield from share_problems(machine.status)
        for grant in machine.status.grants:
            yield from _about(grant)
        yield from strangers(machine.status.gpus)
        yield from _overcommitted(machine.status)
        yield from _thrashing(machine.status.gpus)
        yield from mps.failures(machine.state)


def _about(grant: Grant) -> Iterator[str]:
    if grant.broken is not None:
        yield f"grant {grant.name} is broken: {grant.broken}"
    if grant.state is GrantState.PARKED:
        whose = "another user's grant" if grant.is_hidden else f"grant {grant.name}"
        yield f"{whose} is parked{_idle_since(grant)}: {_held_by_parked(grant)}"
    if grant.turns is not None and not grant.is_hidden:
        yield from _about_turns(grant, grant.turns)
    elif grant.parking is not None and (why := grant.parking.reason) is not None:
        yield f"grant {grant.name} {_PARKING[grant.parking.step]}: {why}"
    for process in grant.processes:
        if process.moved is not None and (why := process.moved.why_failed) is not None:
            yield f"grant {grant.name}: process {process.pid} did not move its memory: {why}"
    for one in grant.unjoined:
        yield (
            f"grant {grant.name}: {one.name} ({one.pid}) uses {_bytes(one.bytes)} in its container"
            " and has not joined"
        )


def _about_turns(grant: Grant, turns: MemoryTurns) -> Iterator[str]:
    if turns.for_seconds is not None:
        longest = format_duration(turns.longest_seconds)
        yield (
            f"grant {grant.name} has been off its GPU for {format_duration(turns.for_seconds)}:"
            f" others have their turn ({longest} at most so far)"
        )
    if turns.why is not None:
        yield f"grant {grant.name} takes turns with memory: {turns.why}"


def _overcommitted(status: Status) -> Iterator[str]:
    for one in status.gpus:
        if (text := overcommit_of(one, status.grants)) is not None:
            yield f"{one.gpu}: {text}"


def overcommit_of(one: SharedGpu, grants: Sequence[Grant]) -> str | None:
    """What the slices of an over-committed GPU may use and do use; None: all fit together."""
    if all(grant.turns is None for grant in grants):
        return None
    from aliquot.slices.turn_room import (  # noqa: PLC0415 - loads placement
        describe_turns,
        load_of,
        working_set,
    )

    load = load_of(one, grants)
    if not load.excess:
        return None
    here = (grant for grant in grants if grant.slices_on(one.gpu.uuid))
    away = format_bytes(sum(grant.away_bytes for grant in here))
    used = format_bytes(working_set(one, grants))
    return f"{describe_turns(load)}; they use {used}, and {away} of it are on the host"


def _thrashing(gpus: Iterable[SharedGpu]) -> Iterator[str]:
    for one in gpus:
        if one.thrashes:
            yield (
                f"{one.gpu}: {one.moving:.0%} of the last minute went into moving memory: the"
                " slices that take turns are too large for it"
            )


def _idle_since(grant: Grant) -> str:
    """How long and how often it was parked because it is idle; empty if a user suspended it."""
    parking = grant.parking
    if parking is None or parking.for_seconds is None:
        return ""
    times = format_count(parking.times, "time")
    return f" because it is idle, for {format_duration(parking.for_seconds)} ({times} so far)"


def _held_by_parked(grant: Grant) -> str:
    """What a parked grant holds."""
    left = format_bytes(grant.staying_bytes)
    if grant.is_swappable and grant.is_hidden:
        return f"it has left {left} on its GPU"
    if grant.is_swappable:
        away = format_bytes(grant.away_bytes)
        return f"{away} of its memory are on the host now, and {left} are left on its GPU"
    held = format_bytes(sum(use.used_bytes for use in grant.use))
    return f"it holds {held} of host memory, and none of its GPUs"


def strangers(gpus: tuple[SharedGpu, ...]) -> list[str]:
    """A sentence for every process that uses a GPU outside all grants."""
    return [
        f"{one.gpu}: {stranger.name} ({stranger.pid}) uses {_bytes(stranger.bytes)} outside Aliquot"
        for one in gpus
        for stranger in one.strangers
    ]


def _bytes(count: int | None) -> str:
    return "memory" if count is None else format_bytes(count)
