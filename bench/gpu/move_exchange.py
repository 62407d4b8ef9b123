"""Two tenants exchange a GPU's memory, with little room between them: a part of move_calls.py.

A is resident and B is in pinned host memory. A's pieces go out while B's come in, at the same
addresses, first by a thread in each tenant, then by a process that moves for both. After each move
every byte is compared by checksum, on the side where it then is.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmm import Gate, Pages

HERE = Path(__file__).parent
START_SECONDS = 90.0
MOVE_SECONDS = 10.0  # for a move that should take half a second
PATIENCE_SECONDS = 40.0
PAGE = 4096
LEAD_SECONDS = 0.05
GIGA = 1e9

Answer = dict[str, Any]


class ExchangeError(Exception):
    """A process failed or did not answer."""


class TooLateError(ExchangeError):
    """A process did not answer in time."""


@dataclass(frozen=True)
class Sizes:
    memory: int
    piece: int
    room: int
    exchanges: int


class Process:
    """A work_exchange.py that is told what to do."""

    def __init__(self, role: str, options: Answer, descriptors: list[int]) -> None:
        self.name = role
        command = [sys.executable, str(HERE / "work_exchange.py"), role, json.dumps(options)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=descriptors,
        )
        self._answers: queue.Queue[Answer] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put({"failed": "the process ended"})

    def tell(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self, seconds: float = PATIENCE_SECONDS) -> Answer:
        try:
            said = self._answers.get(timeout=seconds)
        except queue.Empty as error:
            message = f"{self.name} did not answer for {seconds:.0f} s"
            raise TooLateError(message) from error
        if "failed" in said:
            message = f"{self.name}: {said['failed']}"
            raise ExchangeError(message)
        return said

    def ask(self, do: str, **arguments: Any) -> Answer:
        self.tell(do, **arguments)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # it may be inside the driver for ever
            self._process.wait(5.0)


@dataclass
class Job:
    """A part of a move: who does it, and its name there."""

    process: Process
    arguments: Answer


class Stage:
    def __init__(self, sizes: Sizes, ending: ExitStack) -> None:
        self.sizes = sizes
        count = sizes.room // sizes.piece
        self.room = os.eventfd(count, os.EFD_SEMAPHORE)
        ending.callback(os.close, self.room)
        self.channels = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self.gates = [Gate(Pages(PAGE)) for _ in range(2)]
        self.tenants = [self._tenant(number, ending) for number in range(2)]
        self.mover: Process | None = None
        self.standing = [False, False]
        self._ending = ending

    def _tenant(self, number: int, ending: ExitStack) -> Process:
        channel = self.channels[number][0].fileno()
        gate = self.gates[number].pages.descriptor
        options = {
            "size": self.sizes.memory,
            "piece": self.sizes.piece,
            "room": self.room,
            "mover": channel,
            "gate": gate,
            "seed": number * 1000,
            "resident": number == 0,
        }
        process = Process("tenant", options, [self.room, channel, gate])
        process.name = f"tenant {'AB'[number]}"
        ending.callback(process.end)
        return process

    def start_mover(self) -> Answer:
        """Start the mover process; what it took to map the tenants' memory there."""
        numbers = [channel[1].fileno() for channel in self.channels]
        options = {"size": self.sizes.memory, "piece": self.sizes.piece, "tenants": numbers}
        self.mover = Process("mover", options, numbers)
        self._ending.callback(self.mover.end)
        self.mover.answer(START_SECONDS)
        self.mover.tell("adopt", resident=0)
        shares = [tenant.ask("share") for tenant in self.tenants]
        return {"mover": self.mover.answer()["calls"], "tenant": shares[0]["calls"]}

    def stand(self, number: int) -> None:
        if not self.standing[number]:
            if not self.tenants[number].ask("stand")["stands"]:
                message = f"{self.tenants[number].name} does not stand at its gate"
                raise ExchangeError(message)
            self.standing[number] = True

    def open(self, number: int) -> None:
        if self.standing[number]:
            self.gates[number].open()
            self.standing[number] = False
        if not self.tenants[number].ask("go_on")["ended"]:
            message = f"{self.tenants[number].name} does not go on when its gate is open"
            raise ExchangeError(message)

    def jobs(self, out: int | None, back: int | None) -> dict[str, Job]:
        made: dict[str, Job] = {}
        for number, tenant_part, name in ((out, "give", "out"), (back, "take", "in_")):
            if number is None:
                continue
            tenant = self.tenants[number]
            if self.mover is None:
                made[name] = Job(tenant, {"name": name})
            else:
                made[tenant_part] = Job(tenant, {"name": tenant_part})
                made[name] = Job(self.mover, {"name": name, "tenant": number})
        return made

    def move(self, out: int | None, back: int | None, *, gated: bool) -> Answer:
        """One tenant's memory goes out, another's comes in, or one of the two."""
        free = self.tenants[0].ask("free")["bytes"]
        for number in (out, back):
            if gated and number is not None:
                self.stand(number)
        jobs = self.jobs(out, back)
        begin = time.monotonic() + LEAD_SECONDS
        for job in jobs.values():
            job.process.tell("move", at=begin, **job.arguments)
        waited, answers = self._answers(jobs)
        said: Answer = {
            "out": out,
            "in": back,
            "gated": gated,
            "waits_for_the_gate": waited,
            "seconds": max(one["seconds"] for one in answers.values()),
            "parts": answers,
        }
        said["gb_per_second_each_way"] = round(self.sizes.memory / said["seconds"] / GIGA, 1)
        lowest = [one["lowest_free"] for one in answers.values() if "lowest_free" in one]
        if lowest:
            said["most_beyond_start_bytes"] = free - min(lowest)
        return said | self._check(out, back)

    def _answers(self, jobs: dict[str, Job]) -> tuple[bool, dict[str, Answer]]:
        """What each part says. If one does not end, open the gates and say that it waited."""
        waited, answers = False, dict[str, Answer]()
        end = time.monotonic() + MOVE_SECONDS
        for job in jobs.values():
            try:
                left = PATIENCE_SECONDS if waited else max(end - time.monotonic(), 0.1)
                said = job.process.answer(left)
            except TooLateError:
                if waited:
                    raise
                waited = True
                for number, gate in enumerate(self.gates):
                    if self.standing[number]:
                        gate.open()
                        self.standing[number] = False
                said = job.process.answer()
            answers[said["name"]] = said
        return waited, answers

    def _check(self, out: int | None, back: int | None) -> Answer:
        begin = time.monotonic()
        if back is not None:
            self.open(back)
            self.tenants[back].tell("check_device")
        if out is not None:
            self.tenants[out].tell("check_host")
        wrong = {}
        for name, number in (("out", out), ("in", back)):
            if number is not None:
                wrong[name] = self.tenants[number].answer()["wrong"]
        seconds = round(time.monotonic() - begin, 2)
        return {"wrong_pieces": wrong, "check_seconds": seconds}


def run_method(stage: Stage, method: str, moves: list[Answer], until: float) -> None:
    """Out and in alone, then exchanges there and back: A is resident again at the end."""
    plan: list[tuple[int | None, int | None]] = [(0, None), (None, 0)]
    plan += [(turn % 2, 1 - turn % 2) for turn in range(stage.sizes.exchanges)]
    gated = True
    for out, back in plan:
        if time.monotonic() > until:
            message = "there was no time for every move"
            raise ExchangeError(message)
        said = {"method": method, **stage.move(out, back, gated=gated)}
        moves.append(said)
        gated = gated and not said["waits_for_the_gate"]
        print(line(said), flush=True)


def run(sizes: Sizes, until: float) -> Answer:
    """Everything that was measured. `failed` says why there is not more."""
    moves: list[Answer] = []
    result: Answer = {"sizes": vars(sizes), "moves": moves}
    with ExitStack() as ending:
        try:
            stage = Stage(sizes, ending)
            result["arenas"] = [tenant.answer(START_SECONDS) for tenant in stage.tenants]
            for one in result["arenas"]:
                fill, register = one["fill_seconds"], one["register_seconds"]
                print(f"exchange: arena filled in {fill} s, registered in {register} s", flush=True)
            run_method(stage, "thread", moves, until)
            result["mover_starts"] = stage.start_mover()
            for name, calls in result["mover_starts"].items():
                print(f"exchange: memory shown to the mover process, {name}: {calls}", flush=True)
            run_method(stage, "process", moves, until)
        except (ExchangeError, OSError) as error:
            result["failed"] = str(error)
            print(f"exchange: FAILED: {error}", flush=True)
    return result


def line(said: Answer) -> str:
    names = {None: "-", 0: "A", 1: "B"}
    gate = "gate closed" if said["gated"] else "gate open"
    if said["waits_for_the_gate"]:
        gate = f"WAITED for the gate {MOVE_SECONDS:.0f} s"
    wrong = sum(said["wrong_pieces"].values())
    beyond = said.get("most_beyond_start_bytes")
    more = "" if beyond is None else f", {beyond >> 20:+d} MiB in use at most"
    return (
        f"by {said['method']:7}: out {names[said['out']]} in {names[said['in']]} "
        f"{said['seconds']:6.3f} s {said['gb_per_second_each_way']:5.1f} GB/s each way, "
        f"{wrong} pieces wrong, {gate}{more}"
    )


def holds(result: Answer) -> bool:
    """Whether every byte arrived, no move waited for the gate, and nothing failed."""
    moves = result["moves"]
    right = all(not sum(one["wrong_pieces"].values()) for one in moves)
    prompt = not any(one["waits_for_the_gate"] for one in moves)
    return bool(moves) and right and prompt and "failed" not in result
