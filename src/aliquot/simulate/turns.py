"""Programs on the GPUs of one machine that may have more memory together than the GPUs have.

A program has a part of one GPU's memory and does work on the GPU with pauses in between: `steps`.
Programs that work at the same time share the GPU's time equally. What it costs that memory moves:

- One that wants to work, and whose memory has left, waits until that is back. What is missing
  leaves those first that have paused longest, and all of it moves at `BYTES_PER_SECOND`.
- If those that work do not fit together, they take turns, and moving takes `MOVING` of the time, as
  the arbiter's windows have it.

Programs come one by one. In the order in which they came, each begins as soon as it fits:
`placement` decides whether (`core.overcommit`) and where (`choose.machine`), as for a real one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.model import Amount, Gpu, Request
from aliquot.model.units import GIB
from aliquot.placement.choose.machine import GpuCapacity, choose_gpus
from aliquot.placement.core.overcommit import GpuLoad, TurnSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

HOUR = 3600.0
BYTES_PER_SECOND = 50e9
MOVING = 0.04
_NEVER = float("inf")
_TINY = 1e-6  # seconds


class Mix(StrEnum):
    """What programs do."""

    NOTEBOOKS = "notebooks"
    HALF = "half of each"
    TRAININGS = "trainings"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that comes at a time, with a limit of memory of which it uses `used`.

    Its `steps` are seconds of work on a GPU of its own and the pause after it.
    """

    came: float
    limit: int
    used: int
    steps: tuple[tuple[float, float], ...]

    @property
    def alone(self) -> float:
        """How long it takes on a GPU of its own."""
        return sum(work + pause for work, pause in self.steps)


@dataclass(frozen=True, slots=True)
class TurnMachine:
    """GPUs of one size, and the memory of the host for what leaves them; None: enough."""

    gpus: int
    gpu_bytes: int = 80 * GIB
    factor: float = 1.0
    host_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of the programs: means in seconds, and the most that was over-committed.

    `slowdown` is how many times as long they ran as they do alone on a GPU.
    """

    completion: float
    wait: float
    slowdown: float
    most_excess: int
    most_host_bytes: int


def programs(mix: Mix, machine: TurnMachine, seed: int, *, hours: float = 10.0) -> list[Program]:
    """Ten hours in which programs come that need more than the GPUs have; a seed has always one.

    A notebook has 20 to 50 % of a GPU's memory for half an hour to 3 hours and works 5 to 20 % of
    that time. A training has 55 to 87 %, so that no two fit a GPU, and works all the time, for 1 to
    4 hours.
    """
    chance = random.Random(seed)  # noqa: S311 - generated work, not a secret
    a_notebook, a_training = 2.4, 0.36  # come in an hour, for each GPU
    size, gpus = machine.gpu_bytes, machine.gpus
    parts = {Mix.NOTEBOOKS: (1.0, 0.0), Mix.HALF: (0.5, 0.5), Mix.TRAININGS: (0.0, 1.0)}[mix]
    found = [
        *(
            _notebook(chance, hours, size)
            for _ in range(round(parts[0] * a_notebook * gpus * hours))
        ),
        *(
            _training(chance, hours, size)
            for _ in range(round(parts[1] * a_training * gpus * hours))
        ),
    ]
    return sorted(found, key=lambda one: one.came)


def _notebook(chance: random.Random, hours: float, gpu_bytes: int) -> Program:
    came, left = chance.uniform(0, hours * HOUR), chance.uniform(0.5, 3.0) * HOUR
    busy, steps = chance.uniform(0.05, 0.20), []
    while left > 0:
        work = chance.uniform(5.0, 120.0)
        pause = work * (1 - busy) / busy * chance.uniform(0.5, 1.5)
        steps.append((work, pause))
        left -= work + pause
    limit = chance.randint(20, 50) * gpu_bytes // 100
    return Program(came, limit, int(limit * chance.uniform(0.4, 0.9)), tuple(steps))


def _training(chance: random.Random, hours: float, gpu_bytes: int) -> Program:
    limit = chance.randint(55, 87) * gpu_bytes // 100
    work = chance.uniform(1.0, 4.0) * HOUR
    return Program(chance.uniform(0, hours * HOUR), limit, int(limit * 0.95), ((work, 0.0),))


@dataclass(eq=False)
class _Running:
    """A program on a GPU: it works (`left` of the step's work), pauses, or waits for its memory."""

    program: Program
    began: float
    step: int = 0
    left: float = 0.0
    until: float | None = None  # a pause ends, or its memory is back
    pauses: bool = False
    paused_at: float = 0.0
    away: int = 0
    part: TurnSlice = field(init=False)
    stays: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.program.steps[0][0]
        self.part = TurnSlice(self.program.limit)
        self.stays = self.part.stays


@dataclass
class _Gpu:
    """One GPU with its programs."""

    number: int
    machine: TurnMachine
    running: list[_Running] = field(default_factory=list)

    @property
    def load(self) -> GpuLoad:
        parts = tuple(one.part for one in self.running)
        return GpuLoad(self.machine.gpu_bytes, 0, parts, self.machine.factor)

    def capacity(self, program: Program, host_left: int | None) -> GpuCapacity:
        load, memory = self.load, self.machine.gpu_bytes
        uuid = f"GPU-{self.number}"
        used = sum(one.program.used for one in self.running)
        excess = load.beside(TurnSlice(program.limit)).excess
        return GpuCapacity(
            Gpu(self.number, uuid, "", "", memory, 0),
            bytes_free=load.room(host_left).bytes,
            percent_free=100,
            unused_bytes=memory,
            holders=len(self.running),
            excess_bytes=excess,
            crowded_bytes=max(0, used + program.limit - memory) if excess else 0,
        )

    def rate(self) -> float:
        """How fast each program that works does so, against one alone."""
        working, needed = 0, 0
        for one in self.running:
            working += one.until is None
            needed += one.program.limit if one.until is None else one.stays
        fits = needed <= self.machine.gpu_bytes
        return (1.0 if fits else 1 - MOVING) / max(1, working)

    def next_event(self, now: float) -> float:
        rate = self.rate()
        times = (now + one.left / rate if one.until is None else one.until for one in self.running)
        return min(times, default=_NEVER)

    def advance(self, now: float, seconds: float) -> Iterator[_Running]:
        """Let the time pass until `now`; those that have ended."""
        rate = self.rate()
        for one in self.running:
            if one.until is None:
                one.left -= rate * seconds
        for one in list(self.running):
            if one.until is None and one.left <= _TINY:
                one.until = now + one.program.steps[one.step][1]
                one.pauses, one.paused_at = True, now
            if one.until is not None and one.until <= now + _TINY:
                if one.pauses and one.step + 1 == len(one.program.steps):
                    self.running.remove(one)
                    yield one
                elif one.pauses:
                    one.step += 1
                    one.left = one.program.steps[one.step][0]
                    self._bring_back(one, now)
                else:
                    one.until = None

    def begin(self, program: Program, now: float) -> None:
        one = _Running(program, now, away=program.limit)
        self.running.append(one)
        self._bring_back(one, now, new=True)

    def _bring_back(self, one: _Running, now: float, *, new: bool = False) -> None:
        """Its memory returns: what is missing leaves those that have paused longest."""
        here = sum(other.program.limit - other.away for other in self.running)
        missing, moved = here + one.away - self.machine.gpu_bytes, 0 if new else one.away
        for other in sorted(self.running, key=lambda other: other.paused_at):
            if missing > 0 and other.pauses and other is not one:
                leaves = min(missing, max(0, other.program.limit - other.stays - other.away))
                other.away += leaves
                missing, moved = missing - leaves, moved + leaves
        one.pauses, one.away = False, 0
        one.until = now + moved / BYTES_PER_SECOND if moved else None


def run(machine: TurnMachine, work: Sequence[Program]) -> Result:
    """What becomes of programs on this machine; those that never fit are left out."""
    gpus = [_Gpu(number, machine) for number in range(machine.gpus)]
    coming = [one for one in reversed(work) if one.limit <= machine.gpu_bytes]
    waiting: list[Program] = []
    ended: list[tuple[_Running, float]] = []
    now, excess, needed = 0.0, 0, 0
    while coming or waiting or any(gpu.running for gpu in gpus):
        after = min([gpu.next_event(now) for gpu in gpus] + [one.came for one in coming[-1:]])
        before = len(ended), len(coming)
        for gpu in gpus:
            ended += [(one, after) for one in gpu.advance(after, after - now)]
        now = after
        while coming and coming[-1].came <= now:
            waiting.append(coming.pop())
        if before == (len(ended), len(coming)):
            continue  # nothing fits that did not before
        waiting = list(_not_begun(waiting, gpus, machine, now))
        excess = max(excess, *(gpu.load.excess for gpu in gpus))
        needed = max(needed, sum(gpu.load.host_bytes for gpu in gpus))
    count = max(1, len(ended))
    return Result(
        sum(end - one.program.came for one, end in ended) / count,
        sum(one.began - one.program.came for one, _ in ended) / count,
        sum((end - one.began) / one.program.alone for one, end in ended) / count,
        excess,
        needed,
    )


def _not_begun(
    waiting: Iterable[Program], gpus: Sequence[_Gpu], machine: TurnMachine, now: float
) -> Iterator[Program]:
    """Begin all that fit, in their order; those that still wait."""
    for program in waiting:
        needed = {gpu.number: gpu.load.host_bytes for gpu in gpus}
        every = sum(needed.values())
        host = machine.host_bytes
        request = Request(memory=Amount(bytes=program.limit), swap=True)
        found = choose_gpus(
            request,
            [
                gpu.capacity(program, None if host is None else host - every + needed[gpu.number])
                for gpu in gpus
            ],
        )
        if found is None:
            yield program
        else:
            gpus[found[0].index].begin(program, now)


def compare(
    machine: TurnMachine, mix: Mix, factors: Sequence[float], seed: int
) -> dict[float, Result]:
    """The same programs with each factor."""
    work = programs(mix, machine, seed)
    return {factor: run(replace(machine, factor=factor), work) for factor in factors}
