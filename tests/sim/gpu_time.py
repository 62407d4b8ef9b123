"""GPU time on a simulated machine, read from the file that all its processes share.

Tests of compute shares compare with it: it is what the simulated engine itself recorded, to the
nanosecond, independent of the arbiter and the tenants. The layout is that of
native/sim/machine/machine.h (test_gpu_time.py compares them). Reading takes no lock: a snapshot is
consistent if the GPU's sum is that of its processes. It copies only the entries that are in use,
since tests read every few milliseconds beside the programs that they measure: the whole file has
megabytes.

A process that has ended is still listed until 256 others have ended since. A process in another pid
namespace is listed by its pid there.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

MAGIC, VERSION = 0x31304D4953514C41, 7
GPUS, INSTANCES = 16, 56
UNITS = GPUS + INSTANCES
MAX_PROCESSES, MAX_ENDED, MAX_SEATS, BUCKETS = 1024, 256, 4096, 16
MAX_SHARES = 8192
NONE, NEVER = (1 << 32) - 1, (1 << 64) - 1
QUEUED = 1

U32, U64 = ctypes.c_uint32, ctypes.c_uint64


class History(ctypes.Structure):
    _fields_ = (("last", U64), ("busy_ns", U32 * BUCKETS))


class Usage(ctypes.Structure):
    _fields_ = (
        ("bytes", U64),
        ("managed", U64),
        ("busy_ns", U64),
        ("kernels", U64),
        ("contexts", U32),
        ("reserved", U32),
        ("history", History),
    )


class Process(ctypes.Structure):
    _fields_ = (
        ("used", U32),
        ("pid", ctypes.c_int32),
        ("token", U64),
        ("since_us", U64),
        ("state", U32),
        ("locker", U32),
        ("calls", U32),
        ("work", U32),
        ("managed", U32),
        ("imported", U32),
        ("worker", ctypes.c_int32),
        ("lost", U32),
        ("reserved", U32 * 2),
        ("usage", Usage * UNITS),
    )


class Ended(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_int32), ("reserved", U32), ("busy_ns", U64 * UNITS))


class Seat(ctypes.Structure):
    _fields_ = (("token", U64), ("turn", U32), ("reserved", U32))


class Request(ctypes.Structure):
    _fields_ = (
        ("state", U32),
        ("more", U32),
        ("ready_ns", U64),
        ("left_ns", U64),
        ("end_ns", U64),
        ("noted_ns", U64),
    )


class Engine(ctypes.Structure):
    _fields_ = (
        ("used", U64),
        ("busy_ns", U64),
        ("ended_ns", U64),
        ("running", U32),
        ("last", U32),
        ("time_ns", U64),
        ("slice_ns", U64),
        ("history", History),
        ("requests", Request * MAX_PROCESSES),
    )


class Share(ctypes.Structure):
    _fields_ = (
        ("bytes", U64),
        ("gpu", U32),
        ("owner", U32),
        ("holds", ctypes.c_uint16 * MAX_PROCESSES),
    )


class Instance(ctypes.Structure):
    _fields_ = (("used", U32), ("gpu", U32), ("id", U32), ("profile", U32), ("start", U32))


class Compute(ctypes.Structure):
    _fields_ = (
        ("used", U32),
        ("instance", U32),
        ("id", U32),
        ("start", U32),
        ("slices", U32),
        ("uuid", ctypes.c_uint8 * 16),
    )


class Beginning(ctypes.Structure):
    """What the file begins with: how many GPUs and entries of processes there are."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("magic", U64),
        ("version", U32),
        ("size", U32),
        ("model", ctypes.c_char * 16),
        ("count", U32),
        ("high", U32),
        ("seed", U64),
        ("lock", U32 * 2),
    )


class Times(Beginning):
    """All but the memory that processes share, which is most of the file."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("gpus", Engine * UNITS),
        ("processes", Process * MAX_PROCESSES),
        ("ended_count", U64),
        ("ended", Ended * MAX_ENDED),
        ("seats", Seat * MAX_SEATS),
    )


class Map(Times):
    """The whole file."""

    _fields_ = (
        ("share_count", U64),
        ("shares_high", U32),
        ("reserved", U32),
        ("share_ids", U64 * MAX_SHARES),
        ("shares", Share * MAX_SHARES),
        ("mig", U32 * GPUS),
        ("instances", Instance * INSTANCES),
        ("computes", Compute * INSTANCES),
        ("computes_high", U32),
    )


@dataclass(frozen=True)
class GpuTime:
    """Nanoseconds of kernels since the machine was created."""

    processes: dict[tuple[int, int], int]  # by pid and the GPU's index
    gpus: dict[int, int]


def busy_ns(state_dir: Path) -> dict[tuple[int, int], int]:
    """The GPU time of each process on each GPU that it used."""
    return read(state_dir).processes


def read(state_dir: Path) -> GpuTime:
    """A consistent snapshot; `state_dir` is the folder in ALIQUOT_SIMULATE_STATE."""
    with (
        (state_dir / "machine").open("rb") as file,
        mmap.mmap(file.fileno(), ctypes.sizeof(Times), access=mmap.ACCESS_READ) as shared,
    ):
        begin = Beginning.from_buffer_copy(shared)
        assert (begin.magic, begin.version) == (MAGIC, VERSION)
        while True:
            found = _sum_up(shared, time.monotonic_ns())
            if found:
                return found


def _sum_up(shared: mmap.mmap, now: int) -> GpuTime | None:
    """None: the file was read in the middle of a change."""
    begin = Beginning.from_buffer_copy(shared)
    engines = _copy(shared, Engine, Times.gpus.offset, begin.count)
    entries = _copy(shared, Process, Times.processes.offset, begin.high)
    ended_count = U64.from_buffer_copy(shared, Times.ended_count.offset).value
    ended = _copy(shared, Ended, Times.ended.offset, min(ended_count, MAX_ENDED))
    processes: Counter[tuple[int, int]] = Counter()
    gpus: dict[int, int] = {}
    live = [entry for entry in entries if entry.used]
    for index, gpu in enumerate(engines):
        if gpu.running != NONE and gpu.running >= begin.high:
            return None
        if gpu.busy_ns != gpu.ended_ns + sum(entry.usage[index].busy_ns for entry in live):
            return None
        gpus[index] = gpu.busy_ns
        for entry in live:
            processes[entry.pid, index] += entry.usage[index].busy_ns
        for entry in ended:
            processes[entry.pid, index] += entry.busy_ns[index]
        if gpu.running != NONE:
            unrecorded = _unrecorded(gpu, now)
            gpus[index] += unrecorded
            processes[entries[gpu.running].pid, index] += unrecorded
    return GpuTime({key: figure for key, figure in processes.items() if figure}, gpus)


def _copy(shared: mmap.mmap, kind: type[ctypes.Structure], offset: int, count: int) -> Any:
    """The first entries of an array in the file."""
    return (kind * count).from_buffer_copy(shared, offset)


def _unrecorded(gpu: Engine, now: int) -> int:
    """The time of the running kernel that the schedule has not recorded yet."""
    request = gpu.requests[gpu.running]
    if request.state != QUEUED:
        return 0
    since: int = gpu.time_ns
    end = now if request.left_ns == NEVER else min(now, since + request.left_ns)
    return max(end - since, 0)
