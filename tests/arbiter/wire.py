"""The arbiter's interfaces for tests: the control socket, a grant's socket, and its pages.

Nothing of the product's own client is used: what is on the wire and in the files is what is tested.
"""

from __future__ import annotations

import array
import ctypes as c
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
PROTOCOL = 2
HELLO, WELCOME, MEASURE, MEASURED, RING, REFUSED, MOVER = 1, 2, 3, 4, 5, 6, 7
MALFORMED, VERSION, OWNER, FULL, BROKEN, TWICE, ENDED, PARKED = 1, 2, 3, 4, 5, 6, 7, 8

MAX_GPUS = 16
MAX_PROCESSES = 1024
LIMITS_HEADER = struct.Struct("<QII64sIIiIQQ")
SLICE = struct.Struct("<16s32sQQQQQIIIIII16x")
GRANT_STATE_AT, RESIDENCE_AT, REFUSED_AT = 100, 108, 120  # in a slice
PROCESS = struct.Struct("<IiiIQ16Q")
LIMITS_SIZE = LIMITS_HEADER.size + MAX_GPUS * SLICE.size + MAX_PROCESSES * PROCESS.size
ENTRY = struct.Struct("<QQQQ")
USAGE_SLICE_SIZE = 64 + MAX_PROCESSES * ENTRY.size
USAGE_SIZE = 64 + MAX_GPUS * USAGE_SLICE_SIZE

UNIT = 512
UNITS_BITS = 38

CREDIT_HEADER = struct.Struct("<QII48x")
CREDIT_SLICE = struct.Struct("<QIIII40x")
CREDIT_STRIDE = CREDIT_SLICE.size + 128 * 16
CREDIT_SIZE = WORK_SIZE = 1 << 16
WORK_HEADER = struct.Struct("<QII")
WORK_FIELDS = {
    "opened": ("@Q", 16),
    "closed": ("@Q", 24),
    "launches": ("@Q", 32),
    "gates": ("@I", 40),
    "why": ("@I", 44),
    "marks_end": ("@I", 48),
    "residence": ("@I", 52),
    "move_failed": ("@I", 56),
    "wanted": ("@I", 60),
    "away_bytes": ("@Q", 64),
    "fixed_bytes": ("@Q", 72),
    "calls": ("@Q", 80),
}
WORK_QUANTA, QUANTA, WORK_MARKS = 128, 2048, 128 + 2048 * 8
OPEN = 1 << 62
ALONE, TURNS, YIELD = 0, 1, 2
GATES_WORK, GATES_FAIL = 1, 2


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
    swap: int = 0
    residence: int = 0


@dataclass(frozen=True)
class Slot:
    """One process as `limits` has it."""

    state: int
    pid: int
    inner_pid: int
    driver: tuple[int, ...]


def message(kind: int, value: int = 0, *, magic: int = MAGIC, version: int = PROTOCOL) -> bytes:
    return MESSAGE.pack(magic, version, kind, value, b"")


def hello_message() -> bytes:
    return message(HELLO, os.getpid())


def measure_message(for_context: int = 0) -> bytes:
    return message(MEASURE, for_context)


def ring(directory: Path) -> None:
    """Send RING, as a process does that has work again."""
    with connected(directory, "socket", socket.SOCK_SEQPACKET) as connection:
        connection.send(message(RING))


@contextmanager
def connected(directory: Path, name: str, kind: socket.SocketKind) -> Iterator[socket.socket]:
    """A connection through /proc, because a socket path has only 107 bytes."""
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
    room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(MESSAGE.size + 1, room, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    magic, version, kind, value, text = MESSAGE.unpack(data)
    assert (magic, version) == (MAGIC, PROTOCOL)
    fds = array.array("i")
    for _, _, payload in ancillary:
        fds.frombytes(payload)
    return Answer(kind, value, text.rstrip(b"\0").decode(), tuple(fds))


def exchange(directory: Path, data: bytes) -> Answer:
    """Send one message to a grant's socket; the reply."""
    with connected(directory, "socket", socket.SOCK_SEQPACKET) as connection:
        connection.send(data)
        answer = receive(connection)
    assert answer is not None
    return answer


def ask(state: Path, request: bytes) -> dict[str, Any]:
    """Send raw bytes to the control socket; the reply as an object."""
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
        words = SLICE.unpack_from(self._page, at)
        return SliceLimits(*words[3:7], *words[-2:])

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
        """Write as the only writer of the slot; word and held agree afterwards."""
        at = self._entry(index, slot)
        _, held, managed, ties = ENTRY.unpack_from(self._page, at)
        turn = ((held >> UNITS_BITS) + 1) & 0xFFFF
        others = self.total(index) // UNIT - (held & ((1 << UNITS_BITS) - 1))
        units = size // UNIT
        words = (turn << UNITS_BITS, turn << UNITS_BITS | units, managed, ties)
        ENTRY.pack_into(self._page, at, *words)
        word = slot << (UNITS_BITS + 16) | turn << UNITS_BITS | (others + units)
        struct.pack_into("<Q", self._page, self._word(index), word)

    def set_managed(self, index: int, slot: int, size: int) -> None:
        struct.pack_into("<Q", self._page, self._entry(index, slot) + 16, size)

    def set_ties(self, slot: int, ties: int) -> None:
        struct.pack_into("<Q", self._page, self._entry(0, slot) + 24, ties)

    def scribble(self, data: bytes, at: int) -> None:
        self._page[at : at + len(data)] = data

    @staticmethod
    def _word(index: int) -> int:
        return 64 + index * USAGE_SLICE_SIZE

    def _entry(self, index: int, slot: int) -> int:
        return self._word(index) + 64 + slot * ENTRY.size


@dataclass(frozen=True)
class CreditWords:
    """One slice of a credit page."""

    credit: int
    pace: int
    ring: int
    quantum_ns: int

    @property
    def is_open(self) -> bool:
        return (self.credit, self.pace, self.ring) == (OPEN, ALONE, 0)


class Credit:
    """`credit` as a tenant maps it."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, CREDIT_SIZE, mmap.MAP_SHARED, mmap.PROT_READ)

    def header(self) -> tuple[Any, ...]:
        return CREDIT_HEADER.unpack_from(self._page)

    def slice(self, index: int = 0) -> CreditWords:
        at = CREDIT_HEADER.size + index * CREDIT_STRIDE
        _, pace, ring_word, quantum_ns, _ = CREDIT_SLICE.unpack_from(self._page, at)
        return CreditWords(self.credit(index), pace, ring_word, quantum_ns)

    def credit(self, index: int = 0) -> int:
        """Read in native form, as one atomic word."""
        at = CREDIT_HEADER.size + index * CREDIT_STRIDE
        return int(struct.unpack_from("@Q", self._page, at)[0])


class Work:
    """One slice of `work` as a stand-in and its GPU write it: all work in one stream."""

    def __init__(self, fd: int, index: int = 0) -> None:
        self._page = mmap.mmap(fd, (index + 1) * WORK_SIZE)
        self._at = index * WORK_SIZE

    def header(self) -> tuple[Any, ...]:
        return WORK_HEADER.unpack_from(self._page, self._at)

    def get(self, field: str) -> int:
        return self._load(*WORK_FIELDS[field])

    def set(self, field: str, value: int) -> None:
        self._store(*WORK_FIELDS[field], value)

    def done(self) -> int:
        return self._load("@Q", WORK_MARKS)

    def launch(self, expected_ns: int = 500_000) -> None:
        """One more quantum, opened, launched and closed."""
        quantum = self.get("opened") + 1
        self.set("marks_end", 1)
        self.set("opened", quantum)
        self.set("launches", self.get("launches") + 1)
        at = WORK_QUANTA + quantum % QUANTA * 8
        self._store("@I", at, quantum)
        self._store("@I", at + 4, expected_ns)
        self._store("@Q", WORK_MARKS + 8, quantum)
        self.set("closed", quantum)

    def finish(self) -> None:
        """The GPU finishes one more quantum."""
        self._store("@Q", WORK_MARKS, self.done() + 1)

    def pretend(self, *, done: int, closed: int) -> None:
        """Work that was never launched: closed up to there, and done up to there."""
        self.set("marks_end", 1)
        self._store("@Q", WORK_MARKS, 0)
        for quantum in range(QUANTA):
            self._store("@Q", WORK_QUANTA + quantum * 8, 0)
        for quantum in range(done + 1, closed + 1):
            self._store("@I", WORK_QUANTA + quantum % QUANTA * 8, 1)
        self.set("opened", closed)
        self.set("closed", closed)
        self.set("gates", GATES_WORK)

    def scribble(self, data: bytes) -> None:
        self._page[self._at : self._at + len(data)] = data

    def _load(self, form: str, at: int) -> int:
        return int(struct.unpack_from(form, self._page, self._at + at)[0])

    def _store(self, form: str, at: int, value: int) -> None:
        """In one piece, as the contract wants it: struct.pack_into clears the bytes first."""
        word: type[c.c_uint32 | c.c_uint64] = c.c_uint64 if form == "@Q" else c.c_uint32
        word.from_buffer(self._page, self._at + at).value = value


@dataclass(frozen=True)
class Holding:
    """What WELCOME carries: a slot and the four pages."""

    slot: int
    limits: Limits
    usage: Usage
    credit: Credit
    works: tuple[Work, ...]

    @staticmethod
    def of(answer: Answer) -> Holding:
        assert answer.kind == WELCOME, answer
        limits_fd, usage_fd, credit_fd, work_fd = answer.fds
        slices = os.fstat(work_fd).st_size // WORK_SIZE
        holding = Holding(
            answer.value,
            Limits(limits_fd),
            Usage(usage_fd),
            Credit(credit_fd),
            tuple(Work(work_fd, index) for index in range(slices)),
        )
        for fd in answer.fds:
            os.close(fd)
        return holding

    def hold(self, index: int, size: int) -> None:
        self.usage.set_held(index, self.slot, size)

    def manage(self, index: int, size: int) -> None:
        self.usage.set_managed(index, self.slot, size)
