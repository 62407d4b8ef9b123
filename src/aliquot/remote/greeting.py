"""The first message of each connection to `aliquot remote serve`, and the answer to it: JSON lines.

A launcher opens a session: {"aliquot": 1, "open": {"memory": "20GiB", "compute": 30}}. Each process
of the program attaches to it: {"aliquot": 1, "attach": SESSION}. The answer is an object with
`session`, or with `error` and `hint`. After the answer to `attach` the connection is a wire
(wire.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.units import parse_amount

VERSION = 1
SOCKET = "ALIQUOT_REMOTE"  # the variables of a program
SESSION = "ALIQUOT_REMOTE_SESSION"
SECONDS = 120.0  # until a greeting is answered: a grant may have to wait for its arbiter
MOST = 4096

_UCRED = struct.Struct("3i")
_TOKEN = re.compile(r"[0-9a-f]{32}")


class RemoteError(AliquotError):
    """A remote GPU is not to be had."""


@dataclass(frozen=True)
class Open:
    """A launcher asks for a slice."""

    memory: str | None  # as people write it; None: as much of the memory as of the compute time
    percent: int  # 0: an equal part


@dataclass(frozen=True)
class Attach:
    """A process of a program asks for an executor in the slice of its session."""

    session: str


def read(line: bytes) -> Open | Attach:
    """What a greeting asks for: the one function that reads it. Raises AliquotError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or message.get("aliquot") != VERSION:
        raise RemoteError(
            "the greeting is of another version",
            "Install the same version of Aliquot on both sides.",
        )
    token = message.get("attach")
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return Attach(token)
    asked = message.get("open")
    if not isinstance(asked, dict):
        raise RemoteError("the greeting asks for nothing that is known")
    memory, percent = asked.get("memory"), asked.get("compute")
    if memory is not None:
        parse_amount(memory if isinstance(memory, str) else repr(memory))
    if type(percent) is not int or not 0 <= percent <= 100:
        raise InvalidValueError(f"{percent!r} is no share of compute time", "Give 0 to 100.")
    return Open(memory, percent)


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    size = _UCRED.size
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def ask(path: str | Path, message: dict[str, Any]) -> tuple[socket.socket, dict[str, Any]]:
    """Connect to a server and greet it; the connection and its answer. Raises RemoteError."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.settimeout(SECONDS)
        end.connect(str(path))
        _, uid = peer(end)
        if uid != os.getuid():
            raise RemoteError(  # noqa: TRY301
                f"{path} belongs to user {uid}, not to you", "Name the socket of your own server."
            )
        end.sendall(json.dumps({"aliquot": VERSION, **message}).encode() + b"\n")
        answer = json.loads(read_line(end))
        if not isinstance(answer, dict):
            raise ValueError("no object")  # noqa: TRY301, TRY004
    except (OSError, ValueError) as error:
        end.close()
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise RemoteError(
            f"there is no remote GPU at {path}: {why}",
            f"Start it beside the GPU: aliquot remote serve --socket {path}",
        ) from error
    except BaseException:
        end.close()
        raise
    if "error" in answer:
        end.close()
        hint = answer.get("hint")
        raise RemoteError(str(answer["error"]), None if hint is None else str(hint))
    end.settimeout(None)
    return end, answer


def read_line(end: socket.socket) -> bytes:
    """A line of at most MOST bytes, and not a byte more: what follows belongs to somebody else."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if len(line) >= MOST:
            raise ValueError("the line is too long")
        got = end.recv(1)
        if not got:
            raise ValueError("the connection has ended")
        line += got
    return bytes(line)


def reply(end: socket.socket, message: dict[str, Any]) -> None:
    """Answer a greeting; a client that has gone is no error."""
    with contextlib.suppress(OSError):
        end.sendall(json.dumps(message).encode() + b"\n")
