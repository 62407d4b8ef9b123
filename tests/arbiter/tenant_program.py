"""A tenant in a process of its own, told what to do by lines on stdin; one line back for each.

It speaks the grant socket's protocol, writes its own line of the ledger and its own page of work,
and nothing else: what a stand-in and its GPU do, without a driver.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parents[1]))

from arbiter.wire import (
    GATES_WORK,
    MEASURED,
    WELCOME,
    Holding,
    ask,
    exchange,
    hello_message,
    measure_message,
    ring,
)

GPU = "GPU-00000000-0000-0000-0000-000000000000"
AHEAD = 4  # quanta that a running tenant has in its queue
QUANTUM_S = 0.0003
CLONE_NEWNS = 0x20000


class Tenant:
    """A process of one grant; each command is a method."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.holding: Holding | None = None
        self.resting = threading.Event()
        self.runners: list[threading.Thread] = []

    def hello(self) -> str:
        try:
            answer = exchange(self.directory, hello_message())
        except PermissionError:
            return "unreachable"
        if answer.kind == WELCOME:
            self.holding = Holding.of(answer)
        return f"{answer.kind} {answer.value} {answer.text}"

    def measure(self, for_context: str = "0") -> str:
        answer = exchange(self.directory, measure_message(int(for_context)))
        return "measured" if answer.kind == MEASURED else f"refused {answer.text}"

    def measure_all_the_time(self, seconds: str) -> str:
        """Ask for measurements from several threads at once; how many answers came."""
        until, answers = time.monotonic() + float(seconds), [0] * 8

        def ask_often(index: int) -> None:
            while time.monotonic() < until:
                answers[index] += self.measure() == "measured"

        threads = [threading.Thread(target=ask_often, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return str(sum(answers))

    def hold(self, slice_index: str, size: str) -> str:
        assert self.holding
        self.holding.hold(int(slice_index), int(size))
        return "held"

    def tie(self, ties: str) -> str:
        assert self.holding
        self.holding.usage.set_ties(self.holding.slot, int(ties))
        return "tied"

    def gates(self, index: str, found: str, why: str) -> str:
        assert self.holding
        self.holding.works[int(index)].set("why", int(why))
        self.holding.works[int(index)].set("gates", int(found))
        return "said"

    def launch(self, index: str, quanta: str) -> str:
        """Launch work that the GPU never finishes."""
        assert self.holding
        for _ in range(int(quanta)):
            self.holding.works[int(index)].launch()
        return "launched"

    def run(self, index: str) -> str:
        """Keep working, as far as the credit allows."""
        self.gates(index, str(GATES_WORK), "0")
        self.resting.clear()
        self.runners.append(threading.Thread(target=self._run, args=(int(index),), daemon=True))
        self.runners[-1].start()
        return "runs"

    def _run(self, index: int) -> None:
        assert self.holding
        work, credit = self.holding.works[index], self.holding.credit
        while not self.resting.wait(QUANTUM_S):
            while work.get("opened") < work.done() + AHEAD:
                work.launch()
            if credit.slice(index).ring:
                with suppress(ConnectionError, FileNotFoundError):  # an arbiter may end meanwhile
                    ring(self.directory)
            if credit.credit(index) > work.done():
                work.finish()

    def rest(self) -> str:
        """Finish what is launched, and launch no more."""
        assert self.holding
        self.resting.set()
        for runner in self.runners:
            runner.join()
        self.runners.clear()
        for work in self.holding.works:
            while work.done() < work.get("opened"):
                work.finish()
        return "rests"

    def catch_up(self, index: str) -> str:
        """Finish all work that has credit."""
        assert self.holding
        work, credit = self.holding.works[int(index)], self.holding.credit
        while work.done() < min(credit.credit(int(index)), work.get("closed")):
            work.finish()
        return "caught up"

    def done(self, index: str) -> str:
        assert self.holding
        return str(self.holding.works[int(index)].done())

    def credit(self, index: str) -> str:
        assert self.holding
        words = self.holding.credit.slice(int(index))
        return f"{words.credit} {words.pace} {words.ring}"

    def await_open(self, index: str) -> str:
        """When its gates were open, in ns."""
        assert self.holding
        deadline = time.monotonic() + 60
        while not self.holding.credit.slice(int(index)).is_open:
            if time.monotonic() > deadline:
                return "never"
        return str(time.monotonic_ns())

    def ring(self) -> str:
        ring(self.directory)
        return "rung"

    def cannot_leave(self, why: str) -> str:
        """Do nothing, and answer each move out with that failure, from now on."""
        assert self.holding
        self.holding.works[0].set("calls", 1)
        threading.Thread(target=self._fail_to_leave, args=(int(why),), daemon=True).start()
        return "fails"

    def _fail_to_leave(self, why: int) -> None:
        assert self.holding
        work = self.holding.works[0]
        while True:
            word = self.holding.limits.slice().residence
            if word != work.get("residence"):
                work.set("move_failed", why if word & 1 else 0)
                work.set("residence", word)
            time.sleep(0.01)

    def fork(self) -> str | None:
        """The child answers in its parent's place."""
        if os.fork():
            return None
        say(f"{self.hello().split()[1]} {os.getpid()}")
        signal.pause()
        os._exit(0)

    def as_nobody(self, state: str, request: str) -> str | None:
        if os.fork():
            return None
        say(" ".join(as_nobody(self.directory, Path(state), request.replace("+", " "))))
        os._exit(0)

    def become_nobody(self) -> str:
        become_nobody()
        return "nobody"

    def hold_directory(self) -> str:
        """Keep a descriptor of the grant's directory, which needs no path from then on."""
        self.directory = Path(f"/proc/self/fd/{os.open(self.directory, os.O_PATH)}")
        return "holds it"

    def enter_container(self) -> str:
        """Enter a mount namespace of its own, as the processes of a container do."""
        assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
        return "inside"

    def ask(self, state: str, request: str) -> str:
        """Send a request to the control socket; the code of the reply."""
        answer = ask(Path(state), request.replace("+", " ").encode() + b"\n")
        return str(answer.get("code", "done"))

    def exec(self, directory: str) -> str:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], directory])

    def become_cat(self) -> str:
        os.execv("/bin/sh", ["sh", "-c", "echo here; exec cat"])


def main() -> None:
    """Run commands until stdin ends or an exec."""
    tenant = Tenant(Path(sys.argv[1]))
    orders: dict[str, Callable[..., str | None]] = {
        "hello": tenant.hello,
        "measure": tenant.measure,
        "measure-all-the-time": tenant.measure_all_the_time,
        "hold": tenant.hold,
        "tie": tenant.tie,
        "gates": tenant.gates,
        "launch": tenant.launch,
        "run": tenant.run,
        "rest": tenant.rest,
        "catch-up": tenant.catch_up,
        "done": tenant.done,
        "credit": tenant.credit,
        "await-open": tenant.await_open,
        "ring": tenant.ring,
        "cannot-leave": tenant.cannot_leave,
        "fork": tenant.fork,
        "as-nobody": tenant.as_nobody,
        "become-nobody": tenant.become_nobody,
        "hold-directory": tenant.hold_directory,
        "enter-container": tenant.enter_container,
        "ask": tenant.ask,
        "exec": tenant.exec,
        "become-cat": tenant.become_cat,
    }
    say("here")
    for line in sys.stdin:
        order, *arguments = line.split()
        answer = orders[order](*arguments)
        if answer is not None:
            say(answer)


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def as_nobody(directory: Path, state: Path, request: str) -> list[str]:
    """What another user gets: at this socket, from `stop` and `resize`, for its own grant."""
    become_nobody()
    stranger = exchange(directory, hello_message())
    stopped = ask(state, b"stop\n")
    resized = ask(state, f"resize name={directory.name} slice={GPU},compute=1\n".encode())
    made = ask(state, request.encode() + b"\n")
    grants = ask(state, b"status\n")["grants"]
    uid = next(one["owner_uid"] for one in grants if one["name"] == made["name"])
    own = exchange(Path(made["directory"]), hello_message())
    refusals = [stopped["code"], resized["code"]]
    return [f"{stranger.kind}/{stranger.value}", *refusals, str(uid), str(own.kind)]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


main()
