"""The shared pages, mirrored from native/include/aliquot: layout.h (and ledger.c) and credit.h."""

from __future__ import annotations

import ctypes as c
import mmap
from pathlib import Path
from typing import TypeVar

MAX_GPUS = 16
MAX_PROCESSES = 1024
UNIT = 512
UNITS_BITS = 38
FREE, LIVE, ENDING = range(3)

VERSION = 1
LIMITS_MAGIC, USAGE_MAGIC = 0x314D494C51494C41, 0x3145535551494C41
CREDIT_MAGIC, WORK_MAGIC = 0x3144455243514C41, 0x314B524F57514C41
CREDIT_SIZE = WORK_SIZE = 65536
OPEN = 1 << 62
QUANTA, MARKS, TIMINGS = 2048, 3064, 128
ALONE, TURNS, YIELD = range(3)
UNTRIED, GATES_WORK, GATES_FAIL = range(3)
ELASTIC, HARD = range(2)

_Page = TypeVar("_Page", bound=c.Structure)


class SliceLimits(c.Structure):
    _fields_ = (
        ("uuid", c.c_ubyte * 16),
        ("pci_bus_id", c.c_char * 32),
        ("gpu_bytes", c.c_uint64),
        ("limit_bytes", c.c_uint64),
        ("headroom_bytes", c.c_uint64),
        ("driver_bytes", c.c_uint64),
        ("context_bytes", c.c_uint64),
        ("compute_percent", c.c_uint32),
        ("policy", c.c_uint32),
        ("priority", c.c_uint32),
        ("grant_state", c.c_uint32),
        ("reserved", c.c_uint32 * 6),
    )


class Process(c.Structure):
    _fields_ = (
        ("state", c.c_uint32),
        ("pid", c.c_int32),
        ("inner_pid", c.c_int32),
        ("reserved", c.c_uint32),
        ("start_time", c.c_uint64),
        ("driver_bytes", c.c_uint64 * MAX_GPUS),
    )


class Limits(c.Structure):
    _fields_ = (
        ("magic", c.c_uint64),
        ("version", c.c_uint32),
        ("size", c.c_uint32),
        ("name", c.c_char * 64),
        ("slice_count", c.c_uint32),
        ("owner_uid", c.c_uint32),
        ("owner_pid", c.c_int32),
        ("life", c.c_uint32),
        ("owner_start_time", c.c_uint64),
        ("created_ns", c.c_uint64),
        ("slices", SliceLimits * MAX_GPUS),
        ("processes", Process * MAX_PROCESSES),
    )


class Entry(c.Structure):
    _fields_ = (
        ("pending", c.c_uint64),
        ("held", c.c_uint64),
        ("managed", c.c_uint64),
        ("ties", c.c_uint64),
    )


class UsageSlice(c.Structure):
    _fields_ = (
        ("word", c.c_uint64),
        ("reserved", c.c_uint64 * 7),
        ("entries", Entry * MAX_PROCESSES),
    )


class Usage(c.Structure):
    _fields_ = (
        ("magic", c.c_uint64),
        ("version", c.c_uint32),
        ("size", c.c_uint32),
        ("reserved", c.c_uint64 * 6),
        ("slices", UsageSlice * MAX_GPUS),
    )


class Timing(c.Structure):
    _fields_ = (("quantum", c.c_uint64), ("busy_ns", c.c_uint64))


class CreditSlice(c.Structure):
    _fields_ = (
        ("credit", c.c_uint64),
        ("pace", c.c_uint32),
        ("ring", c.c_uint32),
        ("quantum_ns", c.c_uint32),
        ("timed", c.c_uint32),
        ("reserved", c.c_uint64 * 5),
        ("timings", Timing * TIMINGS),
    )


class Credit(c.Structure):
    _fields_ = (
        ("magic", c.c_uint64),
        ("version", c.c_uint32),
        ("size", c.c_uint32),
        ("reserved", c.c_uint64 * 6),
        ("slices", CreditSlice * MAX_GPUS),
    )


class Quantum(c.Structure):
    _fields_ = (("marks", c.c_uint32), ("expected_ns", c.c_uint32))


class Mark(c.Structure):
    _fields_ = (("done", c.c_uint64), ("asked", c.c_uint64))


class WorkSlice(c.Structure):
    _fields_ = (
        ("magic", c.c_uint64),
        ("version", c.c_uint32),
        ("size", c.c_uint32),
        ("opened", c.c_uint64),
        ("closed", c.c_uint64),
        ("launches", c.c_uint64),
        ("gates", c.c_uint32),
        ("why", c.c_uint32),
        ("marks_end", c.c_uint32),
        ("reserved", c.c_uint32 * 19),
        ("quanta", Quantum * QUANTA),
        ("marks", Mark * MARKS),
    )


def bytes_in(word: int) -> int:
    """The bytes in a word of the ledger: the total, or what one process uses."""
    return (word & ((1 << UNITS_BITS) - 1)) * UNIT


def map_page(path: Path, form: type[_Page]) -> _Page:
    """A live view of a page. Mapped copy-on-write: nothing here can write into the grant's page."""
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), c.sizeof(form), access=mmap.ACCESS_COPY)
    return form.from_buffer(memory)
