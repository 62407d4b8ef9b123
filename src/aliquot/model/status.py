"""The words of `lifecycle`: what is remembered of a job, what is seen of it, what can be done."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from aliquot.model.job import State, Wish

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Slot(NamedTuple):
    """The place of one worker: the generation that made it, and its rank."""

    generation: int
    rank: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.rank}"


class Phase(StrEnum):
    """What the world knows of a slot; one it does not know may still be taken."""

    ALIVE = "alive"
    ENDED = "ended"
    VOID = "void"  # closed before a worker came


@dataclass(frozen=True, slots=True)
class Sight:
    """A slot as it is seen.

    `code` is how its worker ended: an exit code, a signal as a negative number, or None where
    nobody knows. `ready`: it said that it has saved. `unrunnable`: why the command cannot be run.
    `excused`: it went with its machine, or was taken away. `note`: what more is known of its end.
    `frozen`: its worker stands still, as far as was heard last, and what it had on its GPUs is with
    the host. `answered`: that is what came of what the record's generation asked, and nothing is on
    its way. `stuck`: why it could not be frozen, or thawed.
    """

    phase: Phase
    code: int | None = None
    ready: bool = False
    unrunnable: str | None = None
    excused: bool = False
    note: str = ""
    frozen: bool = False
    answered: bool = False
    stuck: str | None = None

    @property
    def closed(self) -> bool:
        """Whether there is no worker in it, and never will be."""
        return self.phase is not Phase.ALIVE


@dataclass(frozen=True, slots=True)
class Seen:
    """The world as one job's controller sees it.

    `held` are the slots for which GPUs are held, `parked` those whose frozen workers have given
    theirs back. `refused`: why the generation of the record could not get its GPUs. `stuck`: why
    its workers, which have them, do not come. `unfreezable`: why no worker can be frozen here, were
    it in an empty text; None where they can.
    """

    slots: Mapping[Slot, Sight] = field(default_factory=dict)
    held: frozenset[Slot] = frozenset()
    parked: frozenset[Slot] = frozenset()
    refused: str | None = None
    stuck: str | None = None
    unfreezable: str | None = ""

    def alive(self, slot: Slot) -> bool:
        """Whether a worker runs in it."""
        return slot in self.slots and not self.slots[slot].closed

    def closed(self, slot: Slot) -> bool:
        """Whether nothing runs in it, and nothing will."""
        return slot in self.slots and self.slots[slot].closed

    def frozen(self, slot: Slot) -> bool:
        """Whether its worker stands still; it may be on its way back."""
        return self.alive(slot) and self.slots[slot].frozen

    def at_rest(self, slot: Slot) -> bool:
        """Whether its worker stands still, and will."""
        return self.frozen(slot) and self.slots[slot].answered

    def gone(self, slot: Slot) -> bool:
        """Whether nothing is left of it."""
        return self.closed(slot) and slot not in self.held and slot not in self.parked

    def ready(self, slot: Slot) -> bool:
        """Whether its worker need not be waited for any more."""
        return slot in self.slots and (self.slots[slot].closed or self.slots[slot].ready)


class Stage(IntEnum):
    """How firmly workers are asked to go."""

    NOTICE = 0
    TERM = 1
    KILL = 2


@dataclass(frozen=True, slots=True)
class Leaving:
    """Workers from rank `keep` on are asked to go; then the job enters `then`, with `size` workers.

    `until` is when the stage ends, whatever they do.
    """

    then: State
    stage: Stage
    until: float
    keep: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """All that must be remembered of a job between two looks. Rank r runs in `slots[r]`.

    `still`: its workers are frozen, or are to be. `resized_at` is when it last got the workers it
    has; `not_before` when it may start again.
    """

    state: State = State.PENDING
    wish: Wish = Wish.RUN
    generation: int = 0
    slots: tuple[Slot, ...] = ()
    leaving: Leaving | None = None
    still: bool = False
    retries: int = 0
    resizes: int = 0
    since: float = 0.0
    resized_at: float = 0.0
    not_before: float = 0.0
    reason: str = "submitted"

    @property
    def size(self) -> int:
        """How many workers it has, or is about to."""
        return len(self.slots)

    @property
    def size_to_be(self) -> int:
        """How many it runs with, or is on its way to; frozen ones do not run."""
        if self.leaving is not None:
            return self.leaving.size
        return 0 if self.state.resting else self.size

    @property
    def settled(self) -> bool:
        """Whether it runs, and no change is on its way."""
        return self.state is State.RUNNING and self.leaving is None

    def takes_decisions(self, now: float) -> bool:
        """Whether its size is to be decided about: it wants to run, may, and holds nothing else."""
        if self.wish is not Wish.RUN or self.state.final:
            return False
        if self.state is State.PENDING and now < self.not_before:
            return False
        if self.still and self.state is not State.PENDING:
            return False
        return self.leaving is None or self.leaving.then is State.STARTING


class Verb(StrEnum):
    """What a controller does to the world."""

    RESERVE = "reserve"  # GPUs for all of these slots, or for none; parked ones get theirs again
    START = "start"
    NOTIFY = "notify"
    TERM = "term"
    KILL = "kill"
    VOID = "void"
    RELEASE = "release"
    FREEZE = "freeze"
    PARK = "park"  # give the GPUs of frozen workers back
    THAW = "thaw"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, which may be done any number of times."""

    verb: Verb
    slots: tuple[Slot, ...]


def slots_of(numbers: Iterable[Iterable[int]]) -> tuple[Slot, ...]:
    """Slots as they were written down."""
    return tuple(Slot(generation, rank) for generation, rank in numbers)
