"""A tenant in a process of its own, told what to do by lines on stdin; one line back for each.

It speaks the grant socket's protocol and writes its own line of the ledger, and nothing else: what
a stand-in does, without a driver.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parents[1]))

from arbiter.doors import MEASURED, WELCOME, Holding, ask, exchange, hello_message, measure_message


class Tenant:
    """A process of one grant; each order is a method."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.holding: Holding | None = None

    def hello(self) -> str:
        answer = exchange(self.directory, hello_message())
        if answer.kind == WELCOME:
            self.holding = Holding.of(answer)
        return f"{answer.kind} {answer.value} {answer.text}"

    def measure(self) -> str:
        answer = exchange(self.directory, measure_message())
        return "measured" if answer.kind == MEASURED else f"refused {answer.text}"

    def hold(self, slice_index: str, size: str) -> str:
        assert self.holding
        self.holding.hold(int(slice_index), int(size))
        return "held"

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

    def exec(self, directory: str) -> str:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], directory])

    def become_cat(self) -> str:
        os.execv("/bin/sh", ["sh", "-c", "echo here; exec cat"])


def main() -> None:
    """Serve until stdin ends or an order to exec."""
    tenant = Tenant(Path(sys.argv[1]))
    orders: dict[str, Callable[..., str | None]] = {
        "hello": tenant.hello,
        "measure": tenant.measure,
        "hold": tenant.hold,
        "fork": tenant.fork,
        "as-nobody": tenant.as_nobody,
        "exec": tenant.exec,
        "become-cat": tenant.become_cat,
    }
    say("here")
    for line in sys.stdin:
        order, *arguments = line.split()
        answer = orders[order](*arguments)
        if answer is not None:
            say(answer)


def as_nobody(directory: Path, state: Path, request: str) -> list[str]:
    """What another user is told: at this grant's socket, at `stop`, and in a grant of its own."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    stranger = exchange(directory, hello_message())
    stopped = ask(state, b"stop\n")
    made = ask(state, request.encode() + b"\n")
    grants = ask(state, b"status\n")["grants"]
    uid = next(one["owner_uid"] for one in grants if one["name"] == made["name"])
    own = exchange(Path(made["directory"]), hello_message())
    return [f"{stranger.kind}/{stranger.value}", stopped["code"], str(uid), str(own.kind)]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


main()
