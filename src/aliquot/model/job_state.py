"""The values of a job's state machine (`lifecycle`): its state, and what a controller observes.

`JobState` is what a controller stores between two steps: in a database on one machine, in the
object's status on Kubernetes. `ObservedJob` is what it reads from the machine or the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from aliquot.model.job import Desired, JobPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CANCELLED_CODE = 143  # as of a program that SIGTERM ended
TIMED_OUT_CODE = 124  # as of timeout(1)
UNRUNNABLE_CODE = 126


class Slot(NamedTuple):
    """The identity of one worker: the generation that created it, and its rank."""

    generation: int
    rank: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.rank}"


class WorkerPhase(StrEnum):
    """What became of a slot. A slot that was never observed may still get a worker."""

    ALIVE = "alive"
    ENDED = "ended"
    VOID = "void"  # closed before a worker started


@dataclass(frozen=True, slots=True)
class ObservedWorker:
    """A slot as a controller observes it.

    - `code`: how the worker ended: its exit code, a signal as a negative number, None if unknown.
    - `ready`: the worker reported that it has saved.
    - `unrunnable`: why its command cannot be run.
    - `ended_at`: when it ended, if that is known. A controller that was down is told late.
    - `disrupted`: it was evicted, deleted, or went down with its machine.
    - `note`: more about how it ended.
    - `frozen`: its process is frozen, and its GPU memory is on the host, as last reported.
    - `confirmed`: that report answers the job's current generation, and no change is under way.
    - `freeze_error`: why it could not be frozen or thawed.
    - `late`: why it is not thawed yet; that is tried again.
    """

    phase: WorkerPhase
    code: int | None = None
    ready: bool = False
    unrunnable: str | None = None
    disrupted: bool = False
    note: str = ""
    frozen: bool = False
    confirmed: bool = False
    freeze_error: str | None = None
    late: str | None = None
    ended_at: float | None = None

    @property
    def closed(self) -> bool:
        """Whether the slot has no worker and will never have one again."""
        return self.phase is not WorkerPhase.ALIVE


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """What a controller observes of one job.

    - `allocated`: the slots that have GPUs.
    - `parked`: the slots whose frozen workers have given their GPUs back.
    - `refused`: why the current generation could not get its GPUs.
    - `blocked`: why workers that have their GPUs do not start.
    - `unfreezable`: why freezing is unsupported (may be empty); None if it is supported.
    - `idle_seconds`: for how long none of its workers has used a GPU; None if that is not known.
    """

    slots: Mapping[Slot, ObservedWorker] = field(default_factory=dict)
    allocated: frozenset[Slot] = frozenset()
    parked: frozenset[Slot] = frozenset()
    refused: str | None = None
    blocked: str | None = None
    unfreezable: str | None = ""
    idle_seconds: float | None = None

    def alive(self, slot: Slot) -> bool:
        """Whether the slot has a worker, running or frozen."""
        return slot in self.slots and not self.slots[slot].closed

    def closed(self, slot: Slot) -> bool:
        """Whether the slot has no worker and will never have one again."""
        return slot in self.slots and self.slots[slot].closed

    def frozen(self, slot: Slot) -> bool:
        """Whether its worker is frozen; it may already be on its way back."""
        return self.alive(slot) and self.slots[slot].frozen

    def stays_frozen(self, slot: Slot) -> bool:
        """Whether its worker is frozen and no thaw is under way."""
        return self.frozen(slot) and self.slots[slot].confirmed

    def gone(self, slot: Slot) -> bool:
        """Whether the slot is closed and has no grant left."""
        return self.closed(slot) and slot not in self.allocated and slot not in self.parked

    def ready(self, slot: Slot) -> bool:
        """Whether there is no need to wait for its worker: it has saved or ended."""
        return slot in self.slots and (self.slots[slot].closed or self.slots[slot].ready)


class Stage(IntEnum):
    """How firmly workers are asked to stop."""

    NOTICE = 0
    TERM = 1
    KILL = 2


@dataclass(frozen=True, slots=True)
class Stopping:
    """Workers of rank `keep` and above are being stopped.

    When they are gone the job enters the phase `then`, with `size` workers. The stage ends at
    `until` at the latest.
    """

    then: JobPhase
    stage: Stage
    until: float
    keep: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class JobState:
    """All that a controller must store about a job. Rank r runs in `slots[r]`.

    - `frozen`: its workers are frozen or are being frozen.
    - `since`: when it entered its phase.
    - `resized_at`: when it last got the workers it has.
    - `not_before`: the earliest time at which it may start again.
    - `started`: when its workers first ran.
    - `active_since`: since when it has had workers that are not suspended; None if it has none.
    - `used_seconds`: how long it had such workers before that. Both count for its time limit.
    - `exit_code`: the exit code of a failed job.
    - `idle_reported`: when it was reported that it uses no GPU; None if it uses one.
    """

    phase: JobPhase = JobPhase.PENDING
    desired: Desired = Desired.RUN
    generation: int = 0
    slots: tuple[Slot, ...] = ()
    stopping: Stopping | None = None
    frozen: bool = False
    retries: int = 0
    resizes: int = 0
    since: float = 0.0
    resized_at: float = 0.0
    not_before: float = 0.0
    reason: str = "submitted"
    started: float | None = None
    active_since: float | None = None
    used_seconds: float = 0.0
    exit_code: int | None = None
    idle_reported: float | None = None

    @property
    def size(self) -> int:
        """How many workers it has or is about to have."""
        return len(self.slots)

    @property
    def target_size(self) -> int:
        """How many workers it runs with, or will when the current change is done."""
        if self.stopping is not None:
            return self.stopping.size
        return 0 if self.phase.inactive else self.size

    @property
    def settled(self) -> bool:
        """Whether it runs and no change is under way."""
        return self.phase is JobPhase.RUNNING and self.stopping is None

    @property
    def result(self) -> int | None:
        """The exit code of a finished job, as `aliquot wait` returns it; None before its end."""
        match self.phase:
            case JobPhase.SUCCEEDED:
                return 0
            case JobPhase.CANCELLED:
                return CANCELLED_CODE
            case JobPhase.FAILED:
                return self.exit_code or 1
        return None

    def used(self, now: float) -> float:
        """How many seconds of its time limit are used."""
        current = 0.0 if self.active_since is None else max(0.0, now - self.active_since)
        return self.used_seconds + current

    def is_schedulable(self, now: float) -> bool:
        """Whether a scheduler may decide its size now."""
        if self.desired is not Desired.RUN or self.phase.final:
            return False
        if self.phase is JobPhase.PENDING and now < self.not_before:
            return False
        if self.frozen and self.phase is not JobPhase.PENDING:
            return False
        return self.stopping is None or self.stopping.then is JobPhase.STARTING


def read_slots(pairs: Iterable[Iterable[int]]) -> tuple[Slot, ...]:
    """Slots from the pairs that were stored."""
    return tuple(Slot(generation, rank) for generation, rank in pairs)
