"""Speak to an executor as a client that was not made by Aliquot; print what came of each try.

    forge.py SOURCES

SOURCES is the folder that has the package aliquot.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from typing import Self

sys.path.insert(0, sys.argv[1])

from aliquot.remote import session, wire
from aliquot.remote.wire import AnswerKind, MessageKind, Tag

INT64 = 4
DTYPE = struct.pack("<Bq", Tag.INT, INT64)
FLOATS = bytes([Tag.FLOAT]) * 3
NOTHING = bytes([Tag.NONE])
ON_GPU = struct.pack("<BB", Tag.DEVICE, 1)


def text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


class Forged:
    """A connection to an executor of its own."""

    def __enter__(self) -> Self:
        self.end, theirs = socket.socketpair()
        command = session.command(sys.executable, "executor", str(theirs.fileno()), "cpu")
        self.executor = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL
        )
        theirs.close()
        return self

    def __exit__(self, *_error: object) -> None:
        self.end.close()
        self.executor.wait()

    def send(self, kind: int, *parts: bytes) -> None:
        body = b"".join(parts)
        self.end.sendall(wire.HEADER.pack(len(body), kind) + body)

    def answer(self) -> tuple[int, bytes]:
        with self.end.makefile("rb") as file:
            length, kind = wire.HEADER.unpack(file.read(wire.HEADER.size))
            return kind, file.read(length)

    def outcome(self) -> str:
        kind, body = self.answer()
        if kind != AnswerKind.ERROR:
            return AnswerKind(kind).name
        (size,) = struct.unpack_from("<I", body)
        return body[8 + size :].decode()

    def layout(self, number: int, count: int) -> None:
        self.send(
            MessageKind.LAYOUT,
            struct.pack("<I", number),
            wire.shape_bytes(INT64, (count,), (1,), 0),
        )

    def signature(self, name: str, overload: str, count: int, arguments: bytes) -> None:
        head = struct.pack("<I", 0) + text(name) + text(overload) + struct.pack("<I", count)
        self.send(MessageKind.SIGNATURE, head, arguments)

    def call(self, kind: MessageKind, first: int, *numbers: float) -> None:
        values = struct.pack(f"<{len(numbers)}d", *numbers)
        self.send(kind, struct.pack("<IQII", 0, first, 0, len(numbers)), values)

    def arange(self) -> None:
        """A signature whose varying numbers decide its results: a client would not send it."""
        arguments = FLOATS + DTYPE + NOTHING + ON_GPU + NOTHING
        self.signature("aten::arange", "start_step", 7, arguments)


def another_layout() -> str:
    with Forged() as forged:
        forged.arange()
        forged.call(MessageKind.CALL_WAIT, 1, 0, 3, 1)
        assert forged.outcome() == "RESULTS"
        forged.call(MessageKind.CALL, 2, 0, 5, 1)
        forged.layout(0, 3)
        forged.send(MessageKind.READ, struct.pack("<QI", 2, 0))
        first = forged.outcome()
        forged.send(MessageKind.READ, struct.pack("<QI", 2, 0))
        assert forged.outcome() == first, "it stays poisoned"
        forged.send(MessageKind.READ, struct.pack("<QI", 1, 0))
        assert forged.outcome() == "DATA", "what was there stays"
        return first


def a_view_that_is_too_large() -> str:
    with Forged() as forged:
        forged.arange()
        forged.call(MessageKind.CALL_WAIT, 1, 0, 3, 1)
        assert forged.outcome() == "RESULTS"
        forged.layout(0, 4)
        forged.send(MessageKind.READ, struct.pack("<QI", 1, 0))
        return forged.outcome()


def an_operator_that_reads_files() -> str:
    with Forged() as forged:
        arguments = bytes([Tag.STRING]) + text("/etc/hostname") + NOTHING * 6
        forged.signature("aten::from_file", "", 7, arguments)
        forged.send(MessageKind.CALL_WAIT, struct.pack("<IQII", 0, 1, 0, 0))
        return forged.outcome()


def a_storage_that_does_not_exist() -> str:
    with Forged() as forged:
        forged.layout(0, 1)
        forged.send(MessageKind.READ, struct.pack("<QI", 77, 0))
        return forged.outcome()


def writing_to_a_storage_that_does_not_exist() -> str:
    with Forged() as forged:
        forged.layout(0, 1)
        forged.send(MessageKind.WRITE, struct.pack("<QI", 77, 0), bytes(8))
        return forged.outcome()


def a_call_that_was_never_learnt() -> str:
    with Forged() as forged:
        forged.arange()
        forged.call(MessageKind.CALL, 1, 0, 3, 1)
        return forged.outcome()


def random_bytes() -> str:
    with Forged() as forged:
        forged.send(77, b"x" * 40)
        return forged.outcome()


def main() -> None:
    tries = (
        another_layout,
        a_view_that_is_too_large,
        an_operator_that_reads_files,
        a_storage_that_does_not_exist,
        writing_to_a_storage_that_does_not_exist,
        a_call_that_was_never_learnt,
        random_bytes,
    )
    print(json.dumps({one.__name__: one() for one in tries}))


if __name__ == "__main__":
    main()
