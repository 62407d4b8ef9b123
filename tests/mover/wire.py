"""The mover's interfaces for tests: its messages, its orders and the pages of the arena.

Nothing of the product is used: what is on the wire and in the files is what is tested.
"""

from __future__ import annotations

import array
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
STEP = 64 * MIB

MESSAGE = struct.Struct("<IHHQQI100s")
MAGIC = 0x4D564C41
OUT, IN, FORGET, DONE, FAILED = 1, 2, 3, 4, 5
NO_MOVER, HOST_FULL, GPU_FULL, BUSY, DRIVER, UNKNOWN, MALFORMED = 1, 2, 3, 4, 5, 6, 7

ORDER = struct.Struct("<IHHiIQQQ")
ORDER_MAGIC = 0x4F4D4C41
SERVE, FORGET_PROCESS, LOOK = 1, 2, 3

ARENA_MAGIC = 0x314152414C51494C
MOVERS = 16
HEADER = struct.Struct("<QIIQQQQQQIIQQ")
LACKING_AT = 80
WANTED_AT = 16
EXTENT = struct.Struct("<IiQQQQQQQ")
EXTENTS = 131072
HEADER_SIZE = 4096
ARENA_SIZE = HEADER_SIZE + EXTENTS * EXTENT.size


@dataclass(frozen=True)
class Answer:
    """A message of the mover."""

    kind: int
    piece: int
    bytes: int
    failure: int
    text: str


@dataclass(frozen=True)
class Extent:
    """A copy that is in the arena."""

    pid: int
    piece: int
    bytes: int
    offset: int


@dataclass(frozen=True)
class Totals:
    """The header of an arena."""

    wanted: int
    grown: int
    registered: int
    held: int
    out: int
    back: int
    extents: int
    connections: int
    beats: int
    lacking: int


def message(kind: int, piece: int, size: int = 0, *, magic: int = MAGIC, version: int = 1) -> bytes:
    return MESSAGE.pack(magic, version, kind, piece, size, 0, b"")


def order(kind: int, pid: int = 0, start_time: int = 0, grant: int = 0, size: int = 0) -> bytes:
    return ORDER.pack(ORDER_MAGIC, 1, kind, pid, 0, start_time, grant, size)


def send(connection: socket.socket, data: bytes, *fds: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([data], rights)


def receive(connection: socket.socket) -> Answer | None:
    """None: the mover has closed the connection."""
    try:
        data = connection.recv(MESSAGE.size + 1)
    except ConnectionResetError:
        return None
    if not data:
        return None
    magic, version, kind, piece, size, failure, text = MESSAGE.unpack(data)
    assert (magic, version) == (MAGIC, 1)
    text = text.rstrip(b"\0")
    assert b"\0" not in text, "bytes that are not part of the text"
    return Answer(kind, piece, size, failure, text.decode())


def start_time_of(pid: int) -> int:
    """The start time of a process, as the kernel has it."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])
