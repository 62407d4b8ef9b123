"""A program of a benchmark: it stays alive, and works when it is told to.

    python worker.py FRAMEWORK WORKLOAD [PROCESSES]

Started once and used for many cases, so that no case pays for imports and contexts. It reads
commands, one JSON object per line, and answers each with one JSON line; the first line it writes
says that it is ready. Whatever else is printed in this process goes to standard error.

    {"do": "run", "at": T, "seconds": S}    work from T (CLOCK_MONOTONIC) on, for S seconds
    {..., "every": P}                       one step every P seconds; each one's latency is told
    {..., "every": P, "random": SEED}       the same, at random times, on average every P seconds
    {..., "on": A, "off": B}                by turns at work for A seconds and idle for B
    {..., "core": N}                        launch from this core
    {"do": "illegal"}, {"do": "forever"}    a kernel that faults, a kernel that never ends

What is told of a run is what this program saw on its own clock: how many units of work were known
to be finished at which time. Nothing here knows of Aliquot, and no CUDA event measures anything.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

Answer = dict[str, Any]

CLOSEST_SECONDS = 0.0005  # two stamps are no closer than this
SPIN_SECONDS = 0.002
LEAST_GAP_SECONDS = 0.002  # between the beginnings of two steps that come at random times


class Workload(Protocol):
    """Work that is done step by step; `step` and `finish` tell how many units came to their end."""

    version: str

    def step(self) -> int: ...
    def finish(self) -> int: ...
    def right(self) -> bool: ...
    def illegal(self) -> str: ...
    def forever(self) -> None: ...


class Stamps:
    """When how many units were finished."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.done: list[int] = []
        self.units = 0

    def add(self, units: int, *, last: bool = False) -> None:
        self.units += units
        now = time.monotonic()
        if last or not self.times or now - self.times[-1] >= CLOSEST_SECONDS:
            self.times.append(round(now, 6))
            self.done.append(self.units)


def wait_until(when: float) -> None:
    """Sleep, and spin at the end: a sleep ends late."""
    while (left := when - time.monotonic()) > 0:
        if left > SPIN_SECONDS:
            time.sleep(left - SPIN_SECONDS)


@contextlib.contextmanager
def launching_from(core: int | None) -> Iterator[None]:
    """This thread is on that core meanwhile; None: on any."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usual if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def run(workload: Workload, command: Answer) -> Answer:
    """Work for a while, in one of the three ways."""
    wait_until(command["at"])
    end = command["at"] + command["seconds"]
    stamps, told = Stamps(), Answer()
    started = time.monotonic()
    stamps.add(0, last=True)
    if "every" in command:
        told["latencies_ms"] = paced(workload, stamps, end, gaps(command))
    elif "on" in command:
        told["turns"] = by_turns(workload, stamps, end, command["on"], command["off"])
    else:
        while time.monotonic() < end:
            stamps.add(workload.step())
    stamps.add(workload.finish(), last=True)
    ended = time.monotonic()
    return {
        "start": started,
        "end": ended,
        "units": stamps.units,
        "rate": stamps.units / (ended - started),
        "times": stamps.times,
        "done": stamps.done,
        "right": workload.right(),
        **told,
    }


def gaps(command: Answer) -> Iterator[float]:
    """The times between two steps: always the same, or random ones with the same mean."""
    every, seed = command["every"], command.get("random")
    if seed is None:
        yield from itertools.repeat(every)
    source = random.Random(seed)  # noqa: S311 - the same for every way
    while True:
        yield LEAST_GAP_SECONDS + source.expovariate(1 / (every - LEAST_GAP_SECONDS))


def paced(workload: Workload, stamps: Stamps, end: float, between: Iterator[float]) -> list[float]:
    latencies = []
    due = time.monotonic()
    while due < end:
        wait_until(due)
        before = time.monotonic()
        stamps.add(workload.step())
        latencies.append(round((time.monotonic() - before) * 1e3, 4))
        due = max(due + next(between), time.monotonic())
    return latencies


def by_turns(
    workload: Workload, stamps: Stamps, end: float, on: float, off: float
) -> list[dict[str, float]]:
    """For each turn: when work began, when its first step was over, and when all of it was."""
    turns = []
    while time.monotonic() + on < end:
        began = time.monotonic()
        stamps.add(workload.step(), last=True)
        first = time.monotonic()
        while time.monotonic() < began + on:
            stamps.add(workload.step())
        stamps.add(workload.finish(), last=True)
        turns.append({"began": began, "first": first, "ended": time.monotonic()})
        time.sleep(off)
        stamps.add(0, last=True)
    return turns


def perform(workload: Workload, command: Answer) -> Answer:
    match command["do"]:
        case "run":
            with launching_from(command.get("core")):
                return run(workload, command)
        case "illegal":
            return {"error": workload.illegal()}
        case "forever":
            workload.forever()
            return {"error": "it ended"}
        case other:
            return {"error": f"unknown: {other}"}


def serve(answers: IO[str], act: Callable[[Answer], Answer]) -> None:
    """Answer commands until there are no more."""
    for line in sys.stdin:
        answers.write(json.dumps(act(json.loads(line)), separators=(",", ":")) + "\n")
        answers.flush()


class Pair:
    """Several processes in one grant, told the same and answering as one."""

    def __init__(self, arguments: list[str], count: int) -> None:
        command = [sys.executable, __file__, *arguments]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        ready = [self._read(process) for process in self.processes]
        self.version: str = ready[0]["version"]

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> Answer:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("one of the processes has ended")
        return dict(json.loads(line))

    def act(self, command: Answer) -> Answer:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        return merged([self._read(process) for process in self.processes])


def merged(parts: list[Answer]) -> Answer:
    """What several processes did, as if one had done it."""
    steps = []
    for part in parts:
        done = [0, *part["done"]]
        for when, before, after in zip(part["times"], done, done[1:], strict=False):
            steps.append((when, after - before))
    steps.sort()
    times, sums, total = [], [], 0
    for when, units in steps:
        total += units
        times.append(when)
        sums.append(total)
    start, end = min(part["start"] for part in parts), max(part["end"] for part in parts)
    return {
        "start": start,
        "end": end,
        "units": total,
        "rate": total / (end - start),
        "times": times,
        "done": sums,
        "right": all(part["right"] for part in parts),
    }


def main(framework: str, name: str, processes: int = 1) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    if processes > 1:
        pair = Pair([framework, name], processes)
        version, act = pair.version, pair.act
    else:
        workload: Workload = importlib.import_module(f"work_{framework}").make(name)
        version = workload.version
        workload.step()
        workload.finish()

        def act(command: Answer) -> Answer:
            return perform(workload, command)

    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        answers.write(json.dumps({"ready": True, "pid": os.getpid(), "version": version}) + "\n")
        answers.flush()
        serve(answers, act)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
