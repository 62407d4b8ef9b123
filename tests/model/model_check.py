"""An explicit-state model check of `lifecycle` for small jobs.

A point of the search is the job's state, the world, and at most one late message. From each point
the search tries everything that can happen:

- The controller does one round: it observes (before or after a deadline), writes its state and does
  what is due. Between observing and acting something else may happen. Each action may be lost, late
  or repeated; a controller that dies loses the rest of its actions.
- A worker reports that it is ready, finishes or fails.
- A user or a scheduler makes a request, possibly for an old generation.

Times are only "before" or "after" a deadline, so the search ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from aliquot.model import Request
from aliquot.model.actions import Action, Verb, due_actions
from aliquot.model.job import Desired, Job, JobPhase, Sizes
from aliquot.model.job_state import (
    JobState,
    ObservedJob,
    ObservedWorker,
    Slot,
    Stage,
    Stopping,
    WorkerPhase,
)
from aliquot.model.lifecycle import abandon, advance, migrate, resize, set_desired, start

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
}  # done by the controller itself, so never late


@dataclass(frozen=True, slots=True)
class FreezeRequest:
    """A generation's request to freeze or thaw a worker, or its result."""

    slot: Slot
    generation: int
    frozen: bool
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """How many events of each kind may still happen. It bounds the search."""

    generations: int = 3
    failures: int = 1
    refusals: int = 1
    requests: int = 2
    late: int = 1
    stuck: int = 0  # workers that cannot be frozen or thawed
    freezes: bool = False
    limited: bool = False  # the job has a time limit, which is reached after the deadline


@dataclass(frozen=True, slots=True)
class ModelWorld:
    """Everything outside the controller. It keeps the guarantees that `lifecycle` relies on."""

    slots: frozenset[tuple[Slot, ObservedWorker]] = frozenset()
    allocated: frozenset[Slot] = frozenset()
    parked: frozenset[Slot] = frozenset()
    termed: frozenset[Slot] = frozenset()
    asked: frozenset[FreezeRequest] = frozenset()  # of freezers, one per slot
    answers: frozenset[FreezeRequest] = frozenset()  # their results

    def worker(self, slot: Slot) -> ObservedWorker | None:
        return dict(self.slots).get(slot)

    def alive(self) -> list[Slot]:
        return [slot for slot, worker in self.slots if worker.phase is WorkerPhase.ALIVE]

    def frozen(self) -> list[Slot]:
        alive = set(self.alive())
        return [one.slot for one in self.answers if one.frozen and one.slot in alive]

    def ask(self, slot: Slot, generation: int, *, frozen: bool) -> ModelWorld:
        others = (one for one in self.asked if one.slot != slot)
        return replace(
            self, asked=frozenset([*others, FreezeRequest(slot, generation, frozen=frozen)])
        )

    def answer(self, one: FreezeRequest, *, stuck: bool = False) -> ModelWorld:
        """A freezer finishes. It thaws only workers with GPUs and never freezes parked ones."""
        if one.slot not in self.alive():
            return replace(self, asked=self.asked - {one})
        if one in self.answers or replace(one, frozen=not one.frozen, stuck=True) in self.answers:
            return replace(self, asked=self.asked - {one})  # another freezer was faster
        stuck = stuck and not (one.frozen and one.slot in self.parked)
        if not one.frozen and one.slot not in self.allocated:
            return self
        done = replace(one, frozen=one.frozen is not stuck, stuck=stuck)
        others = (other for other in self.answers if other.slot != one.slot)
        return replace(self, asked=self.asked - {one}, answers=frozenset([*others, done]))

    def workers(self, generation: int) -> dict[Slot, ObservedWorker]:
        """The workers as a controller observes them."""
        seen = dict(self.slots)
        for one in self.answers:
            if one.slot in seen and not seen[one.slot].closed:
                confirmed = one.generation == generation
                error = "unsupported" if one.stuck and confirmed else None
                worker = replace(
                    seen[one.slot], frozen=one.frozen, confirmed=confirmed, freeze_error=error
                )
                seen[one.slot] = worker
        return seen

    @cache  # noqa: B019 - a few thousand worlds, for one search
    def put(self, slot: Slot, worker: ObservedWorker) -> ModelWorld:
        others = (pair for pair in self.slots if pair[0] != slot)
        return replace(self, slots=frozenset([*others, (slot, worker)]))

    def deliver(self, verb: Verb, slots: tuple[Slot, ...]) -> ModelWorld:
        if verb is Verb.RESERVE:
            closed = any(self._closed(slot) for slot in slots)
            allocated, parked = self.allocated | frozenset(slots), self.parked - frozenset(slots)
            return self if closed else replace(self, allocated=allocated, parked=parked)
        (slot,) = slots
        worker, after = self.worker(slot), self
        alive = worker is not None and worker.phase is WorkerPhase.ALIVE
        match verb:
            case Verb.START if worker is None and slot in self.allocated:
                after = self.put(slot, ObservedWorker(WorkerPhase.ALIVE))
            case Verb.VOID if worker is None:
                after = self.put(slot, ObservedWorker(WorkerPhase.VOID))
            case Verb.TERM if alive:
                after = replace(self, termed=self.termed | {slot})
            case Verb.KILL if worker is not None and alive:
                after = self.put(
                    slot, ObservedWorker(WorkerPhase.ENDED, code=-9, ready=worker.ready)
                )
            case Verb.RELEASE if self._closed(slot):
                after = replace(
                    self, allocated=self.allocated - {slot}, parked=self.parked - {slot}
                )
            case Verb.PARK if alive and slot in self.allocated:
                allocated, parked = self.allocated - {slot}, self.parked | {slot}
                after = replace(self, allocated=allocated, parked=parked)
        return after

    def _closed(self, slot: Slot) -> bool:
        worker = self.worker(slot)
        return worker is not None and worker.closed


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the search."""

    state: JobState = field(default_factory=JobState)
    world: ModelWorld = field(default_factory=ModelWorld)
    late: Message | None = None
    refused: int = 0  # the generation that was refused its GPUs
    budget: Budget = field(default_factory=Budget)


def small_job(*, live: bool, retries: int, limited: bool = False) -> Job:
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
        time_seconds=DEADLINE if limited else None,
    )


def explore(job: Job, budget: Budget) -> dict[Point, Point | None]:
    """Every reachable point, with the point before it."""
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
    """The same point without what makes no difference: how workers ended that the job dropped."""
    named = point.late[1] if point.late else ()
    world = _plain_world(point.world, point.state.slots, named)
    return Point(point.state, world, point.late, point.refused, point.budget)


@cache
def _plain_world(world: ModelWorld, ours: tuple[Slot, ...], named: tuple[Slot, ...]) -> ModelWorld:
    slots = frozenset(
        (slot, worker if slot in ours else ObservedWorker(WorkerPhase.VOID))
        for slot, worker in world.slots
        if slot in ours or slot in named or not worker.closed
    )
    alive = {slot for slot, worker in slots if not worker.closed}
    return replace(
        world,
        slots=slots,
        termed=world.termed & alive,
        asked=frozenset(one for one in world.asked if one.slot in alive),
        answers=frozenset(one for one in world.answers if one.slot in alive),
    )


def follow(job: Job, point: Point) -> Iterator[Point]:
    yield from _rounds(job, point)
    yield from _events(point)
    yield from _asks(job, point)
    if point.refused:  # the controller dies and another one starts
        yield replace(point, refused=0)


def observe(job: Job, point: Point, now: float) -> tuple[Point, tuple[Message, ...]]:
    """Observe and write; return the actions that are due then."""
    refused = point.refused == point.state.generation
    freezes = point.budget.freezes
    state, messages = _round(job, point.state, point.world, now, refused=refused, freezes=freezes)
    return replace(point, state=state), messages


@cache
def _round(
    job: Job, state: JobState, world: ModelWorld, now: float, *, refused: bool, freezes: bool
) -> tuple[JobState, tuple[Message, ...]]:
    seen = ObservedJob(
        world.workers(state.generation),
        world.allocated,
        world.parked,
        refused="no GPUs" if refused else None,
        unfreezable=None if freezes else "",
    )
    state = timeless(job, advance(job, state, seen, now))
    messages = tuple(message for action in due_actions(state, seen) for message in _split(action))
    return state, messages


def timeless(job: Job, state: JobState) -> JobState:
    """The same state without times and reasons; of a time limit, whether it was reached."""
    reached = job.time_seconds is not None and state.used_seconds >= job.time_seconds
    stopping = state.stopping
    return replace(
        state,
        stopping=None if stopping is None else _timeless_stopping(stopping),
        resizes=0,
        since=0.0,
        resized_at=0.0,
        not_before=0.0,
        reason="",
        started=None,
        active_since=None if state.active_since is None else 0.0,
        used_seconds=AFTER if reached else 0.0,
        exit_code=None,
    )


def _timeless_stopping(stopping: Stopping) -> Stopping:
    return replace(stopping, until=0.0 if stopping.stage is Stage.KILL else DEADLINE)


def _split(action: Action) -> list[Message]:
    if action.verb is Verb.RESERVE:
        return [(action.verb, action.slots)]
    return [(action.verb, (slot,)) for slot in action.slots]


def _rounds(job: Job, point: Point) -> Iterator[Point]:
    for now in (BEFORE, AFTER):
        written, messages = observe(job, point, now)
        for meanwhile in (written, *(_events(written) if messages else ())):
            yield from _act(meanwhile, messages)


def _act(point: Point, messages: tuple[Message, ...]) -> Iterator[Point]:
    if not messages:
        yield point
        return
    message, rest = messages[0], messages[1:]
    yield from _act(point, rest)  # lost
    yield from _act(replace(point, world=_deliver(point, message)), rest)
    budget = point.budget
    if message[0] is Verb.RESERVE and budget.refusals:
        less = replace(budget, refusals=budget.refusals - 1)
        yield from _act(replace(point, refused=point.state.generation, budget=less), rest)
    if budget.late and message[0] not in AT_ONCE:
        later = replace(point, late=message, budget=replace(budget, late=budget.late - 1))
        yield from _act(later, rest)
        yield from _act(replace(later, world=point.world.deliver(*message)), rest)  # twice


def _deliver(point: Point, message: Message) -> ModelWorld:
    verb, slots = message
    if verb in {Verb.FREEZE, Verb.THAW}:
        (slot,) = slots
        return point.world.ask(slot, point.state.generation, frozen=verb is Verb.FREEZE)
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
        worker = point.world.worker(slot)
        assert worker is not None
        yield _with(point, slot, ObservedWorker(WorkerPhase.ENDED, code=0, ready=worker.ready))
        if point.state.stopping is not None and not worker.ready:
            yield _with(point, slot, replace(worker, ready=True))
        if slot in point.world.termed:
            yield _with(point, slot, ObservedWorker(WorkerPhase.ENDED, code=-9, ready=worker.ready))
        elif point.budget.failures:
            failed = _with(
                point, slot, ObservedWorker(WorkerPhase.ENDED, code=1, ready=worker.ready)
            )
            less = replace(point.budget, failures=point.budget.failures - 1)
            yield replace(failed, budget=less)


def _with(point: Point, slot: Slot, worker: ObservedWorker) -> Point:
    return replace(point, world=point.world.put(slot, worker))


def _asks(job: Job, point: Point) -> Iterator[Point]:
    """Requests of a user and a scheduler. Writes of the state are serialised."""
    state, budget = point.state, point.budget
    if budget.requests:
        less = replace(budget, requests=budget.requests - 1)
        for desired in Desired:
            yield replace(point, state=set_desired(state, desired), budget=less)
        yield replace(point, state=timeless(job, abandon(state, BEFORE, "")), budget=less)
    if state.generation >= budget.generations:
        return
    for generation in {state.generation, state.generation - 1}:
        asked = [
            *(start(job, state, generation, size, AFTER) for size in job.sizes.allowed),
            *(resize(job, state, generation, size, BEFORE, "") for size in job.sizes.allowed),
            migrate(job, state, generation, BEFORE, ""),
        ]
        for one in asked:
            assert generation == state.generation or one == state, "an old request took effect"
            yield replace(point, state=timeless(job, one))


# --- invariants -----------------------------------------------------------------------------------


def check(point: Point, given: Budget) -> None:
    """The invariants that hold at every point."""
    state, world = point.state, point.world
    alive = world.alive()
    ranks = [slot.rank for slot in alive]
    assert len(ranks) == len(set(ranks)), "a rank has two workers"
    assert set(alive) <= set(state.slots), "a worker in no slot of the job"
    frozen = set(world.frozen())
    assert set(alive) - frozen <= world.allocated, "a worker without its GPUs"
    assert set(alive) <= world.allocated | world.parked, "a frozen worker without a grant"
    assert not world.allocated & world.parked, "a slot that is both allocated and parked"
    assert [slot.rank for slot in state.slots] == list(range(state.size)), "a rank is missing"
    if state.phase.inactive:
        assert not set(alive) - frozen, f"a worker of a job that is {state.phase}"
        assert not world.allocated - _given_back_next(point), (
            f"a job that is {state.phase} has GPUs"
        )
        assert state.frozen or not state.slots, f"a job that is {state.phase} has slots"
        assert not state.phase.final or not state.slots, "a finished job has slots"
    else:
        assert state.size, f"a job that is {state.phase} has no workers"
    failures = given.failures - point.budget.failures
    assert state.retries <= failures, "a retry for something that is not the job's fault"
    assert state.phase is not JobPhase.FAILED or failures or given.limited, (
        "failed although no worker failed"
    )
    assert (state.active_since is None) == state.phase.inactive, "its time runs without workers"


def _given_back_next(point: Point) -> set[Slot]:
    """Slots whose GPUs are about to be given back: of frozen and of dead workers."""
    if not point.state.frozen:
        return set()
    dead = (slot for slot, worker in point.world.slots if worker.closed)
    return {*point.world.frozen(), *dead}


def fair(job: Job, point: Point) -> Point:
    """The point one round later if nothing goes wrong and nobody requests anything."""
    state = point.state
    if point.late is not None:
        return replace(point, world=point.world.deliver(*point.late), late=None)
    if state.phase is JobPhase.PENDING and state.desired is Desired.RUN:
        begun = timeless(job, start(job, state, state.generation, state.size or 1, AFTER))
        if begun != state:
            return replace(point, state=begun, refused=0)
    inactive = state.phase is JobPhase.SUSPENDED and state.stopping is None
    if inactive and state.desired is Desired.SUSPEND:
        return replace(point, state=set_desired(state, Desired.RUN))
    if state.phase is JobPhase.RUNNING and state.stopping is None:
        for slot in point.world.alive():
            point = _with(point, slot, ObservedWorker(WorkerPhase.ENDED, code=0))
    point, messages = observe(job, point, AFTER)
    for message in messages:
        point = replace(point, world=_deliver(point, message))
    for one in point.world.asked:
        point = replace(point, world=point.world.answer(one))
    return point
