"""The worker's side of a job: read rank and notices, report readiness and speed.

    from aliquot import worker

    for step in range(start, steps):
        train(step)
        worker.report(step=step, samples_per_second=speed)
        if worker.notice():          # of a resize, a migration or a suspension
            save(step)
            worker.ready()           # then end: the job starts again at the new size
            sys.exit()

In a slice with `--spill`, `worker.prefer(tensor)` has a tensor on the GPU rather than on the host.

A program need not use this module: without it, it gets SIGTERM, a grace period, and a restart.
Outside a job every function works, as for one worker and no notice.

In a pool, the worker's files are in the folder ALIQUOT_WORKER and the controller's in the folder
ALIQUOT_NOTICES. Each file is one JSON object and is replaced atomically:

    notice   by the controller: {"generation", "kind", "size", "deadline"}; deadline is Unix time
    ready    by the worker: {"generation"} of the notice that it is ready for
    report   by the worker: {"step", "samples_per_second", "size", "at"}
    size     by the controller, for programs that adapt to a new size: {"generation", "size"}

On Kubernetes a notice also has "attempt": the controller repeats a notice, and it is the same
notice each time. The worker writes {"ready": generation, "report": {...}} into the file
ALIQUOT_MESSAGE, its container's termination message, which the controller reads when the container
has ended.

No function here fails the program: a file that cannot be written is not reported. The module needs
only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

try:
    import fcntl
except ImportError:  # not on Linux: no job runs there, but the program may
    fcntl = None  # type: ignore[assignment] # as above

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = "ALIQUOT_WORKER"
NOTICES, MESSAGE = "ALIQUOT_NOTICES", "ALIQUOT_MESSAGE"
POLL_SECONDS = 0.2
_CUDA = 12000  # the version that asks the driver

__all__ = [
    "Notice",
    "generation",
    "notice",
    "on_notice",
    "prefer",
    "rank",
    "ready",
    "report",
    "size",
]


@dataclass(frozen=True, slots=True)
class Notice:
    """The job is about to change: save, call `ready`, and end. SIGTERM follows at `deadline`.

    `kind` is grow, shrink, migrate, suspend or stop. `size` is the new number of workers, 0 for
    none. `deadline` is Unix time.
    """

    generation: int
    kind: str
    size: int
    deadline: float

    @property
    def seconds_left(self) -> float:
        """How many seconds are left to save."""
        return max(0.0, self.deadline - time.time())


def rank() -> int:
    """The rank of this worker, from 0."""
    return _number("RANK", 0)


def size() -> int:
    """The current number of workers."""
    content = _read("size")
    return int(content["size"]) if content else _number("WORLD_SIZE", 1)


def generation() -> int:
    """The generation of this set of workers; each later set has a larger one."""
    content = _read("size")
    return int(content["generation"]) if content else _number("ALIQUOT_GENERATION", 0)


def notice() -> Notice | None:
    """The notice of a coming change, or None. It costs one failed open() if there is none."""
    content = _read("notice")
    if content is None or content["generation"] < generation():
        return None
    return Notice(
        int(content["generation"]),
        str(content["kind"]),
        int(content["size"]),
        float(content["deadline"]),
    )


def on_notice(callback: Callable[[Notice], object]) -> None:
    """Call back once for each notice, from a separate thread."""
    threading.Thread(target=_watch, args=(callback,), name="aliquot-notice", daemon=True).start()


def ready() -> None:
    """Report that everything is saved, so the controller need not wait until the deadline."""
    current = notice()
    if current is not None:
        _write("ready", {"generation": current.generation})
        _add_to_message("ready", current.generation)


def report(*, step: int, samples_per_second: float | None = None) -> None:
    """Report progress and speed. Only rank 0's report counts."""
    content = {"step": step, "samples_per_second": samples_per_second, "size": size()}
    _write("report", {**content, "at": time.time()})
    _add_to_message("report", content)


def prefer(memory: object) -> bool:
    """Have memory on the GPU that is on the host (`--spill`); whether it is there now.

    `memory` is an array or tensor of PyTorch, CuPy or JAX, or an address. All of the allocation
    that it lies in moves, if the slice has room, and keeps its address. False: there is no room,
    or the allocation is one of at most 1 MiB. No other thread may use it meanwhile.
    """
    address = _address(memory)
    function = _driver_function(b"aliquotPrefer")
    if address is None or function is None:
        return address is not None  # nothing is on the host without Aliquot
    return bool(function(ctypes.c_uint64(address)) == 0)


def _address(memory: Any) -> int | None:
    """Where an array begins on the GPU; None: it is none."""
    if isinstance(memory, int):
        return memory
    with contextlib.suppress(Exception):  # whatever such an object does when it is asked
        for method in ("data_ptr", "unsafe_buffer_pointer"):
            if hasattr(memory, method):
                return int(getattr(memory, method)())
        return int(memory.__cuda_array_interface__["data"][0])
    return None


def _driver_function(name: bytes) -> Any:
    """A function that the driver's library has by that name; None: it has none."""
    found = ctypes.c_void_p()
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuGetProcAddress_v2
    except (OSError, AttributeError):
        return None
    code = ask(name, ctypes.byref(found), _CUDA, ctypes.c_uint64(0), None)
    if code or found.value is None:
        return None
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)(found.value)


def _watch(callback: Callable[[Notice], object]) -> None:
    last = -1
    while True:
        current = notice()
        if current is not None and current.generation > last:
            last = current.generation
            callback(current)
        time.sleep(POLL_SECONDS)


def _number(variable: str, otherwise: int) -> int:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return otherwise


def _read(name: str) -> dict[str, Any] | None:
    folder = os.environ.get(NOTICES) or os.environ.get(FOLDER)
    if folder is None:
        return None
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123 - called in each training step
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _write(name: str, content: dict[str, object]) -> None:
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(path, os.path.join(folder, name))  # noqa: PTH105, PTH118 - as above
        except OSError:
            os.unlink(path)  # noqa: PTH108


def _add_to_message(name: str, content: object) -> None:
    """Merge a field into the termination message, which other processes may write too."""
    path = os.environ.get(MESSAGE)
    if path is None:
        return
    with contextlib.suppress(OSError), open(path, "a+", encoding="utf-8") as file:  # noqa: PTH123 - as above
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        file.seek(0)
        try:
            message = json.loads(file.read() or "{}")
        except ValueError:
            message = {}
        message = message if isinstance(message, dict) else {}
        file.truncate(0)
        file.write(json.dumps({**message, name: content}))
