"""The two shared pages of a grant, mirrored from native/include/aliquot/layout.h and ledger.c."""

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
        ("reserved", c.c_uint32 * 7),
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
        ("reserved", c.c_uint32),
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
        ("reserved", c.c_uint64),
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


def bytes_in(word: int) -> int:
    """The bytes that a word of the ledger tells of: the total, or what one process holds."""
    return (word & ((1 << UNITS_BITS) - 1)) * UNIT


def map_page(path: Path, form: type[_Page]) -> _Page:
    """A page as it changes. Mapped copy-on-write: nothing here can write into the grant's."""
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), c.sizeof(form), access=mmap.ACCESS_COPY)
    return form.from_buffer(memory)
