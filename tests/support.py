"""What tests share: builders of model values, a C compiler, waiting for a condition."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Self

from aliquot.model import ComputeUse, Gpu, GpuProcess, Grant, Slice, SliceUse
from aliquot.slices.arbiter_status import SharedGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20

_numbers = itertools.count(1)


def wait_until(predicate: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as the predicate holds.

    The time only ends a test that hangs. It is long, since a busy machine may be ten times slower.
    """
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, f"not true within {seconds} s: {predicate}"
        time.sleep(0.005)


def on_this_machine(seconds: float) -> float:
    """A limit of so many seconds on an idle machine, as it is on this one now.

    Other programs make ours slower by about as much as they slow down a loop in this process.
    """
    begun, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < 0.05:
        pass
    return seconds * max(1.0, (time.monotonic() - begun) / 0.05)


class Stopwatch:
    """How long something takes, and how much slower this machine was meanwhile than an idle one.

    Not for what keeps this process itself busy: that would count as another program's work.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._wall, self._used = 0.0, 0.0
        self._done = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._begun
        self._done.set()
        self._watching.join()

    def limit(self, seconds: float) -> float:
        """What is so many seconds on an idle machine, on this one in that time.

        Short bursts find a free processor sooner than long work does, so a measurement afterwards
        counts too.
        """
        return max(seconds * self._wall / self._used, on_this_machine(seconds))

    def _watch(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._done.wait(0.02)
            begun, used = time.monotonic(), time.thread_time()
            while time.thread_time() - used < 0.002:
                pass
            self._wall += time.monotonic() - begun
            self._used += time.thread_time() - used


def uuid_of(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012x}"


def make_gpu(index: int = 0, memory: int = 80 * GIB, used: int = 0) -> Gpu:
    return Gpu(
        index=index,
        uuid=uuid_of(index),
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{index:02X}:00.0",
        memory_bytes=memory,
        used_bytes=used,
    )


def make_shared(
    index: int = 0, memory: int = 80 * GIB, *, granted: int = 0, outside: int = 0, used: int = 0
) -> SharedGpu:
    strangers = (GpuProcess(pid=7, name="stranger", bytes=outside),) if outside else ()
    gpu = make_gpu(index, memory, used=used or outside)
    return SharedGpu(gpu=gpu, granted_bytes=granted, strangers=strangers)


def make_grant(name: str | None = None, **bytes_by_gpu: int) -> Grant:
    """A grant by its bytes on each GPU: make_grant("a", gpu0=8 * GIB)."""
    slices = tuple(
        Slice(gpu_uuid=uuid_of(int(key.removeprefix("gpu"))), memory_bytes=size)
        for key, size in bytes_by_gpu.items()
    )
    return Grant(
        name=name or f"grant-{next(_numbers)}",
        directory="/nowhere",
        owner_pid=1,
        owner_alive=True,
        owner_uid=0,
        created=0.0,
        broken=None,
        slices=slices,
        use=tuple(SliceUse(part.gpu_uuid, 0, 0) for part in slices),
        compute=tuple(ComputeUse() for _ in slices),
        processes=(),
    )


def compile_library(
    folder: Path, name: str, source: str, *flags: str, compiler: str = "gcc"
) -> Path:
    """A shared library from C source, with its name as its SONAME."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    command = [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", *flags]
    command += ["-x", "c", "-", "-o", str(path)]
    done = subprocess.run(command, input=source, text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    return path


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment, less all that chooses a GPU, with changes (None: without it)."""
    result = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ALIQUOT_", "CUDA_", "LD_", "NVIDIA_"))
    }
    result.update({key: value for key, value in changes.items() if value is not None})
    for key in (key for key, value in changes.items() if value is None):
        result.pop(key, None)
    return result


def merged(*parts: Mapping[str, str]) -> dict[str, str]:
    return {key: value for part in parts for key, value in part.items()}
