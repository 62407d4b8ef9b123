"""Every way a small job can go: an explicit-state search over `lifecycle`.

A state is the record, the world, and one message that is late. From each state everything that can
happen does. The controller takes one round: it looks (before or after a deadline), writes, and does
what is due; between its look and its deeds something else may happen, and any of its deeds may be
lost, come late, or come twice; dying in mid-round is losing the rest. A worker says that it is
ready, finishes or fails. Its user and the scheduler ask for something, also for what they saw long
ago. Times do not count but as "before" and "after" a deadline, so the search ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from aliquot.model import Request
from aliquot.model.due import due
from aliquot.model.job import Job, Sizes, State, Wish
from aliquot.model.lifecycle import advance, migrate, resize, start, want
from aliquot.model.status import Action, Leaving, Phase, Record, Seen, Sight, Slot, Stage, Verb

if TYPE_CHECKING:
    from collections.abc import Iterator

BEFORE, AFTER = 0.0, 1e9
DEADLINE = 1.0

Message = tuple[Verb, tuple[Slot, ...]]
AT_ONCE = {
    Verb.NOTIFY,
    Verb.FREEZE,
    Verb.THAW,
    Verb.PARK,
}  # done by the one who looks, or not at all


@dataclass(frozen=True, slots=True)
class Still:
    """Whether a worker is to be frozen, or is, by the word of which generation."""

    slot: Slot
    generation: int
    frozen: bool
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of what may still happen: it bounds the search."""

    generations: int = 3
    failures: int = 1
    refusals: int = 1
    wishes: int = 2
    late: int = 1
    stuck: int = 0  # workers that cannot be frozen, or thawed
    freezes: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """What is outside the controller; it keeps the promises that `lifecycle` relies on."""

    slots: frozenset[tuple[Slot, Sight]] = frozenset()
    held: frozenset[Slot] = frozenset()
    parked: frozenset[Slot] = frozenset()
    termed: frozenset[Slot] = frozenset()
    asked: frozenset[Still] = frozenset()  # what freezers have yet to do: at most one for a slot
    answers: frozenset[Still] = frozenset()  # and what they have done

    def sight(self, slot: Slot) -> Sight | None:
        return dict(self.slots).get(slot)

    def alive(self) -> list[Slot]:
        return [slot for slot, sight in self.slots if sight.phase is Phase.ALIVE]

    def frozen(self) -> list[Slot]:
        alive = set(self.alive())
        return [one.slot for one in self.answers if one.frozen and one.slot in alive]

    def ask(self, slot: Slot, generation: int, *, frozen: bool) -> World:
        others = (one for one in self.asked if one.slot != slot)
        return replace(self, asked=frozenset([*others, Still(slot, generation, frozen=frozen)]))

    def answer(self, one: Still, *, stuck: bool = False) -> World:
        """A freezer is through. It thaws only who has its GPUs, and leaves alone who is parked."""
        if one.slot not in self.alive():
            return replace(self, asked=self.asked - {one})
        if one in self.answers or replace(one, frozen=not one.frozen, stuck=True) in self.answers:
            return replace(self, asked=self.asked - {one})  # another was quicker
        stuck = stuck and not (one.frozen and one.slot in self.parked)
        if not one.frozen and one.slot not in self.held:
            return self
        done = replace(one, frozen=one.frozen is not stuck, stuck=stuck)
        others = (other for other in self.answers if other.slot != one.slot)
        return replace(self, asked=self.asked - {one}, answers=frozenset([*others, done]))

    def sights(self, generation: int) -> dict[Slot, Sight]:
        """As a controller sees them."""
        seen = dict(self.slots)
        for one in self.answers:
            if one.slot in seen and not seen[one.slot].closed:
                answered = one.generation == generation
                stuck = "it cannot" if one.stuck and answered else None
                sight = replace(seen[one.slot], frozen=one.frozen, answered=answered, stuck=stuck)
                seen[one.slot] = sight
        return seen

    def put(self, slot: Slot, sight: Sight) -> World:
        others = (pair for pair in self.slots if pair[0] != slot)
        return replace(self, slots=frozenset([*others, (slot, sight)]))

    def deliver(self, verb: Verb, slots: tuple[Slot, ...]) -> World:
        if verb is Verb.RESERVE:
            closed = any(self._closed(slot) for slot in slots)
            held, parked = self.held | frozenset(slots), self.parked - frozenset(slots)
            return self if closed else replace(self, held=held, parked=parked)
        (slot,) = slots
        sight, after = self.sight(slot), self
        alive = sight is not None and sight.phase is Phase.ALIVE
        match verb:
            case Verb.START if sight is None and slot in self.held:
                after = self.put(slot, Sight(Phase.ALIVE))
            case Verb.VOID if sight is None:
                after = self.put(slot, Sight(Phase.VOID))
            case Verb.TERM if alive:
                after = replace(self, termed=self.termed | {slot})
            case Verb.KILL if sight is not None and alive:
                after = self.put(slot, Sight(Phase.ENDED, code=-9, ready=sight.ready))
            case Verb.RELEASE if self._closed(slot):
                after = replace(self, held=self.held - {slot}, parked=self.parked - {slot})
            case Verb.PARK if alive and slot in self.held:
                held, parked = self.held - {slot}, self.parked | {slot}
                after = replace(self, held=held, parked=parked)
        return after

    def _closed(self, slot: Slot) -> bool:
        sight = self.sight(slot)
        return sight is not None and sight.closed


@dataclass(frozen=True, slots=True)
class Point:
    """One state of the search."""

    record: Record = field(default_factory=Record)
    world: World = field(default_factory=World)
    late: Message | None = None
    refused: int = 0  # the generation that the controller remembers as refused
    budget: Budget = field(default_factory=Budget)


def small_job(*, live: bool, retries: int) -> Job:
    return Job(
        number=1,
        name="small",
        command=("true",),
        request=Request(),
        sizes=Sizes((1, 2)),
        live=live,
        retries=retries,
        notice_seconds=DEADLINE,
        grace_seconds=DEADLINE,
    )


def explore(job: Job, budget: Budget) -> dict[Point, Point | None]:
    """Every point that can be reached, with the one that led to it."""
    first = Point(budget=budget)
    seen: dict[Point, Point | None] = {first: None}
    waiting = deque([first])
    while waiting:
        point = waiting.popleft()
        for after in map(plain, follow(job, point)):
            if after not in seen:
                seen[after] = point
                waiting.append(after)
    return seen


def plain(point: Point) -> Point:
    """The same without what makes no difference: how those ended that are out of the books."""
    world, ours = point.world, point.record.slots
    named = set(point.late[1]) if point.late else set()
    slots = frozenset(
        (slot, sight if slot in ours else Sight(Phase.VOID))
        for slot, sight in world.slots
        if slot in ours or slot in named or not sight.closed
    )
    alive = {slot for slot, sight in slots if not sight.closed}
    world = replace(
        world,
        slots=slots,
        termed=world.termed & alive,
        asked=frozenset(one for one in world.asked if one.slot in alive),
        answers=frozenset(one for one in world.answers if one.slot in alive),
    )
    return replace(point, world=world)


def follow(job: Job, point: Point) -> Iterator[Point]:
    yield from _rounds(job, point)
    yield from _events(point)
    yield from _asks(job, point)
    if point.refused:  # the controller dies, and another one begins
        yield replace(point, refused=0)


def look(job: Job, point: Point, now: float) -> tuple[Point, tuple[Message, ...]]:
    """Look and write; and what is due then."""
    refused = point.refused == point.record.generation
    freezes = point.budget.freezes
    record, messages = _look(job, point.record, point.world, now, refused=refused, freezes=freezes)
    return replace(point, record=record), messages


@cache
def _look(
    job: Job, record: Record, world: World, now: float, *, refused: bool, freezes: bool
) -> tuple[Record, tuple[Message, ...]]:
    seen = Seen(
        world.sights(record.generation),
        world.held,
        world.parked,
        refused="no room" if refused else None,
        unfreezable=None if freezes else "",
    )
    record = timeless(advance(job, record, seen, now))
    messages = tuple(message for action in due(record, seen) for message in _split(action))
    return record, messages


def timeless(record: Record) -> Record:
    """The same with times and words left out."""
    leaving = record.leaving
    return replace(
        record,
        leaving=None if leaving is None else _timeless_leaving(leaving),
        resizes=0,
        since=0.0,
        resized_at=0.0,
        not_before=0.0,
        reason="",
    )


def _timeless_leaving(leaving: Leaving) -> Leaving:
    return replace(leaving, until=0.0 if leaving.stage is Stage.KILL else DEADLINE)


def _split(action: Action) -> list[Message]:
    if action.verb is Verb.RESERVE:
        return [(action.verb, action.slots)]
    return [(action.verb, (slot,)) for slot in action.slots]


def _rounds(job: Job, point: Point) -> Iterator[Point]:
    for now in (BEFORE, AFTER):
        written, messages = look(job, point, now)
        for meanwhile in (written, *(_events(written) if messages else ())):
            yield from _deeds(meanwhile, messages)


def _deeds(point: Point, messages: tuple[Message, ...]) -> Iterator[Point]:
    if not messages:
        yield point
        return
    message, rest = messages[0], messages[1:]
    yield from _deeds(point, rest)  # lost
    yield from _deeds(replace(point, world=_deliver(point, message)), rest)
    budget = point.budget
    if message[0] is Verb.RESERVE and budget.refusals:
        less = replace(budget, refusals=budget.refusals - 1)
        yield from _deeds(replace(point, refused=point.record.generation, budget=less), rest)
    if budget.late and message[0] not in AT_ONCE:
        later = replace(point, late=message, budget=replace(budget, late=budget.late - 1))
        yield from _deeds(later, rest)
        yield from _deeds(replace(later, world=point.world.deliver(*message)), rest)  # twice


def _deliver(point: Point, message: Message) -> World:
    verb, slots = message
    if verb in {Verb.FREEZE, Verb.THAW}:
        (slot,) = slots
        return point.world.ask(slot, point.record.generation, frozen=verb is Verb.FREEZE)
    return point.world.deliver(verb, slots)


def _events(point: Point) -> Iterator[Point]:
    if point.late is not None:
        yield replace(point, world=point.world.deliver(*point.late), late=None)
    for one in point.world.asked:
        yield replace(point, world=point.world.answer(one))
        if point.budget.stuck:
            less = replace(point.budget, stuck=point.budget.stuck - 1)
            yield replace(point, world=point.world.answer(one, stuck=True), budget=less)
    yield from _workers(point)


def _workers(point: Point) -> Iterator[Point]:
    for slot in point.world.alive():
        sight = point.world.sight(slot)
        assert sight is not None
        yield _with(point, slot, Sight(Phase.ENDED, code=0, ready=sight.ready))
        if point.record.leaving is not None and not sight.ready:
            yield _with(point, slot, replace(sight, ready=True))
        if slot in point.world.termed:
            yield _with(point, slot, Sight(Phase.ENDED, code=-9, ready=sight.ready))
        elif point.budget.failures:
            failed = _with(point, slot, Sight(Phase.ENDED, code=1, ready=sight.ready))
            less = replace(point.budget, failures=point.budget.failures - 1)
            yield replace(failed, budget=less)


def _with(point: Point, slot: Slot, sight: Sight) -> Point:
    return replace(point, world=point.world.put(slot, sight))


def _asks(job: Job, point: Point) -> Iterator[Point]:
    """A user and a scheduler: they and the controller write the record one after the other."""
    record, budget = point.record, point.budget
    if budget.wishes:
        less = replace(budget, wishes=budget.wishes - 1)
        for wish in Wish:
            yield replace(point, record=want(record, wish), budget=less)
    if record.generation >= budget.generations:
        return
    for generation in {record.generation, record.generation - 1}:
        asked = [
            *(start(job, record, generation, size, AFTER) for size in job.sizes.allowed),
            *(resize(job, record, generation, size, BEFORE, "") for size in job.sizes.allowed),
            migrate(job, record, generation, BEFORE, ""),
        ]
        for one in asked:
            assert generation == record.generation or one == record, "an old word was heeded"
            yield replace(point, record=timeless(one))


# --- what must be so ------------------------------------------------------------------------------


def check(point: Point, given: Budget) -> None:
    """What holds at every point."""
    record, world = point.record, point.world
    alive = world.alive()
    ranks = [slot.rank for slot in alive]
    assert len(ranks) == len(set(ranks)), "a rank has two workers"
    assert set(alive) <= set(record.slots), "a worker that nobody knows of"
    frozen = set(world.frozen())
    assert set(alive) - frozen <= world.held, "a worker without its GPUs"
    assert set(alive) <= world.held | world.parked, "a frozen worker that cannot come back"
    assert not world.held & world.parked, "GPUs that are held and given back"
    assert [slot.rank for slot in record.slots] == list(range(record.size)), "a rank is missing"
    if record.state.resting:
        assert not set(alive) - frozen, f"a worker of a job that is {record.state}"
        assert not world.held - _given_back_next(point), f"GPUs held: {record.state}"
        assert record.still or not record.slots, f"a job that is {record.state} has slots"
        assert not record.state.final or not record.slots, "a job that is over has slots"
    else:
        assert record.size, f"a job that is {record.state} has no workers"
    failures = given.failures - point.budget.failures
    assert record.retries <= failures, "a retry for what was not the job's fault"
    assert record.state is not State.FAILED or failures, "failed without a fault"


def _given_back_next(point: Point) -> set[Slot]:
    """What a late word has taken for frozen workers, or the dead have left."""
    if not point.record.still:
        return set()
    dead = (slot for slot, sight in point.world.slots if sight.closed)
    return {*point.world.frozen(), *dead}


def fair(job: Job, point: Point) -> Point:
    """The same one round later, if nothing more goes wrong and nobody asks for anything new."""
    record = point.record
    if point.late is not None:
        return replace(point, world=point.world.deliver(*point.late), late=None)
    if record.state is State.PENDING and record.wish is Wish.RUN:
        begun = timeless(start(job, record, record.generation, record.size or 1, AFTER))
        if begun != record:
            return replace(point, record=begun, refused=0)
    resting = record.state is State.SUSPENDED and record.leaving is None
    if resting and record.wish is Wish.SUSPEND:
        return replace(point, record=want(record, Wish.RUN))
    if record.state is State.RUNNING and record.leaving is None:
        for slot in point.world.alive():
            point = _with(point, slot, Sight(Phase.ENDED, code=0))
    point, messages = look(job, point, AFTER)
    for message in messages:
        point = replace(point, world=_deliver(point, message))
    for one in point.world.asked:
        point = replace(point, world=point.world.answer(one))
    return point
