"""The arbiter's public doors as a test uses them: the control socket, a grant's socket, its pages.

Nothing of the product's own client is used: what is on the wire and in the files is what is tested.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MESSAGE = struct.Struct("<IHHQ112s")
MAGIC = 0x4D514C41
HELLO, WELCOME, MEASURE, MEASURED, REFUSED = 1, 2, 3, 4, 5
MALFORMED, VERSION, OWNER, FULL, BROKEN, TWICE = 1, 2, 3, 4, 5, 6

MAX_GPUS = 16
MAX_PROCESSES = 1024
LIMITS_HEADER = struct.Struct("<QII64sIIiIQQ")
SLICE = struct.Struct("<16s32sQQQQQIII28x")
PROCESS = struct.Struct("<IiiIQ16Q")
LIMITS_SIZE = LIMITS_HEADER.size + MAX_GPUS * SLICE.size + MAX_PROCESSES * PROCESS.size
ENTRY = struct.Struct("<QQQQ")
USAGE_SLICE_SIZE = 64 + MAX_PROCESSES * ENTRY.size
USAGE_SIZE = 64 + MAX_GPUS * USAGE_SLICE_SIZE

UNIT = 512
UNITS_BITS = 38


@dataclass(frozen=True)
class Answer:
    """A message from the arbiter, and the descriptors that came with it."""

    kind: int
    value: int
    text: str
    fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class SliceLimits:
    """One slice as `limits` has it."""

    limit: int
    headroom: int
    driver: int
    context: int


@dataclass(frozen=True)
class Slot:
    """One process as `limits` has it."""

    state: int
    pid: int
    inner_pid: int
    driver: tuple[int, ...]


def message(kind: int, value: int = 0, *, magic: int = MAGIC, version: int = 1) -> bytes:
    return MESSAGE.pack(magic, version, kind, value, b"")


def hello_message() -> bytes:
    return message(HELLO, os.getpid())


def measure_message() -> bytes:
    return message(MEASURE)


@contextmanager
def connected(directory: Path, name: str, kind: socket.SocketKind) -> Iterator[socket.socket]:
    """A connection by way of the folder: a socket's path has only 107 bytes."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX, kind) as connection:
        connection.settimeout(20)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{name}")
        finally:
            os.close(folder)
        yield connection


def receive(connection: socket.socket) -> Answer | None:
    """None: the arbiter closed the connection."""
    room = socket.CMSG_SPACE(2 * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(MESSAGE.size + 1, room, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    magic, version, kind, value, text = MESSAGE.unpack(data)
    assert (magic, version) == (MAGIC, 1)
    fds = array.array("i")
    for _, _, payload in ancillary:
        fds.frombytes(payload)
    return Answer(kind, value, text.rstrip(b"\0").decode(), tuple(fds))


def exchange(directory: Path, data: bytes) -> Answer:
    """One message to a grant's socket, one back."""
    with connected(directory, "socket", socket.SOCK_SEQPACKET) as connection:
        connection.send(data)
        answer = receive(connection)
    assert answer is not None
    return answer


def ask(state: Path, request: bytes) -> dict[str, Any]:
    """Raw bytes to the control socket, the reply as an object."""
    with connected(state, "control", socket.SOCK_STREAM) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return read_reply(connection)


def read_reply(connection: socket.socket) -> dict[str, Any]:
    reply = b""
    while part := connection.recv(1 << 16):
        reply += part
    assert reply.endswith(b"\n")
    assert reply.count(b"\n") == 1
    answer = json.loads(reply)
    assert isinstance(answer, dict)
    return answer


class Limits:
    """`limits` as a tenant maps it."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, LIMITS_SIZE, mmap.MAP_SHARED, mmap.PROT_READ)

    def header(self) -> tuple[Any, ...]:
        return LIMITS_HEADER.unpack_from(self._page)

    def slice(self, index: int = 0) -> SliceLimits:
        at = LIMITS_HEADER.size + index * SLICE.size
        _, _, _, limit, headroom, driver, context, *_ = SLICE.unpack_from(self._page, at)
        return SliceLimits(limit, headroom, driver, context)

    def process(self, slot: int) -> Slot:
        at = LIMITS_HEADER.size + MAX_GPUS * SLICE.size + slot * PROCESS.size
        state, pid, inner_pid, _, _, *driver = PROCESS.unpack_from(self._page, at)
        return Slot(state, pid, inner_pid, tuple(driver))


class Usage:
    """The ledger as a tenant maps it."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, USAGE_SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def total(self, index: int = 0) -> int:
        (word,) = struct.unpack_from("<Q", self._page, self._word(index))
        return int(word & ((1 << UNITS_BITS) - 1)) * UNIT

    def set_held(self, index: int, slot: int, size: int) -> None:
        """As the slot's only writer, while nobody else writes: word and held agree afterwards."""
        at = self._entry(index, slot)
        _, held, managed, _ = ENTRY.unpack_from(self._page, at)
        turn = ((held >> UNITS_BITS) + 1) & 0xFFFF
        others = self.total(index) // UNIT - (held & ((1 << UNITS_BITS) - 1))
        units = size // UNIT
        ENTRY.pack_into(self._page, at, turn << UNITS_BITS, turn << UNITS_BITS | units, managed, 0)
        word = slot << (UNITS_BITS + 16) | turn << UNITS_BITS | (others + units)
        struct.pack_into("<Q", self._page, self._word(index), word)

    def set_managed(self, index: int, slot: int, size: int) -> None:
        struct.pack_into("<Q", self._page, self._entry(index, slot) + 16, size)

    def scribble(self, data: bytes, at: int) -> None:
        self._page[at : at + len(data)] = data

    @staticmethod
    def _word(index: int) -> int:
        return 64 + index * USAGE_SLICE_SIZE

    def _entry(self, index: int, slot: int) -> int:
        return self._word(index) + 64 + slot * ENTRY.size


@dataclass(frozen=True)
class Holding:
    """What a WELCOME gives: a slot and the two pages."""

    slot: int
    limits: Limits
    usage: Usage

    @staticmethod
    def of(answer: Answer) -> Holding:
        assert answer.kind == WELCOME, answer
        limits_fd, usage_fd = answer.fds
        holding = Holding(answer.value, Limits(limits_fd), Usage(usage_fd))
        os.close(limits_fd)
        os.close(usage_fd)
        return holding

    def hold(self, index: int, size: int) -> None:
        self.usage.set_held(index, self.slot, size)

    def manage(self, index: int, size: int) -> None:
        self.usage.set_managed(index, self.slot, size)
