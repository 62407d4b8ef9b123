"""A program believes an answer only as far as its question goes: here the answers are changed."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.remote import greeting, wire
from remote.conftest import LONG, Remote

FLOAT32 = 6
ADD = 1  # the call of add.py that adds; the first one makes the tensor of the GPU
Change = Callable[[int, bytes], bytes]  # of an answer's kind and body, the whole frame


class Between:
    """Passes on what programs and a server say, and changes the server's answers."""

    def __init__(self, path: Path, server: Path, change: Change) -> None:
        self._server, self._change = server, change
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = self._socket()
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._start(self._serve)

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:  # the first one starts the others
            thread.join()
        for end in self._ends:
            end.close()

    def _socket(self) -> socket.socket:
        self._ends.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        return self._ends[-1]

    def _start(self, target: Callable[..., None], *ends: socket.socket) -> None:
        self._threads.append(threading.Thread(target=target, args=ends))
        self._threads[-1].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._ends.append(near)
                far = self._socket()
                far.connect(str(self._server))
                self._start(self._ask, near, far)
                self._start(self._answer, near, far)

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def _answer(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), far.makefile("rb") as answers:
            near.sendall(answers.readline(greeting.MOST))
            while header := answers.read(wire.HEADER.size):
                length, kind = wire.HEADER.unpack(header)
                near.sendall(self._change(kind, answers.read(length)))
        with contextlib.suppress(OSError):
            near.shutdown(socket.SHUT_WR)


@pytest.fixture
def ask(remote: Remote, short_tmp: Path) -> Iterator[Callable[[Change], tuple[int, str]]]:
    """What add.py prints if the answers of its server are changed so."""
    with contextlib.ExitStack() as ends:

        def run(change: Change) -> tuple[int, str]:
            path = short_tmp / "between"
            ends.callback(Between(path, remote.socket, change).close)
            command = [
                f"--remote={path}" if "--remote" in one else one for one in remote.command("add.py")
            ]
            made = subprocess.run(
                command,
                env=remote.environment,
                capture_output=True,
                text=True,
                timeout=LONG,
                check=False,
            )
            size, text = json.loads(made.stdout)
            return size, text

        yield run


def frame(kind: int, body: bytes) -> bytes:
    return wire.HEADER.pack(len(body), kind) + body


def test_an_answer_that_is_longer_than_its_tensor_is_not_awaited(
    ask: Callable[[Change], tuple[int, str]],
) -> None:
    def longer(kind: int, body: bytes) -> bytes:
        if kind != wire.AnswerKind.DATA:
            return frame(kind, body)
        return wire.HEADER.pack(1 << 28, kind) + body

    assert "an answer is too long" in ask(longer)[1]


def test_an_answer_cannot_change_a_tensor_of_the_host(
    ask: Callable[[Change], tuple[int, str]],
) -> None:
    layout = wire.shape_bytes(FLOAT32, (1 << 20,), (1,), 0)
    change = struct.pack("<II", 1, 1) + layout + struct.pack("<Q", 4 << 20)
    calls = itertools.count()

    def resized(kind: int, body: bytes) -> bytes:
        adds = kind == wire.AnswerKind.RESULTS and next(calls) == ADD
        return frame(kind, body[:-4] + change if adds else body)

    size, text = ask(resized)
    assert size == 1
    assert "changes a tensor that is not on the GPU" in text
