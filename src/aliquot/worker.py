"""The worker's side of a job: who am I, is a change coming, this is how fast I am.

    from aliquot import worker

    for step in range(start, steps):
        train(step)
        worker.report(step=step, samples_per_second=speed)
        if worker.notice():          # a resize, a move, a suspension: save and be ready
            save(step)
            worker.ready()           # then end; it starts again at the new size
            sys.exit()

A program need not use it: it gets SIGTERM and some time, and is started again. Outside a job all of
this works and says that there is one worker and no change.

The two sides meet in the folder that ALIQUOT_WORKER names, in files of one JSON object each that
are written beside their place and renamed into it:

    notice   by the controller: {"generation", "kind", "size", "deadline"}; deadline is Unix time
    ready    by the worker: {"generation"}, of the notice that it is ready for
    report   by the worker: {"step", "samples_per_second", "size", "at"}
    size     by the controller, for programs that change size as they run: {"generation", "size"}

On Kubernetes the controller's files are in the folder that ALIQUOT_TOLD names; a notice there also
has "told", how often it was given, and is the same notice each time. What the worker says goes into
the one file that ALIQUOT_SAID names, {"ready": generation, "report": {...}}, which is read when its
container has ended.

Nothing here fails the program: what cannot be written is not reported. Needs only Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

try:
    import fcntl
except ImportError:  # no job runs there, but programs do
    fcntl = None  # type: ignore[assignment] # as above

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = "ALIQUOT_WORKER"
TOLD, SAID = "ALIQUOT_TOLD", "ALIQUOT_SAID"
POLL_SECONDS = 0.2

__all__ = ["Notice", "generation", "notice", "on_notice", "rank", "ready", "report", "size"]


@dataclass(frozen=True, slots=True)
class Notice:
    """A change is coming: save, say `ready`, and end; at `deadline` (Unix time) SIGTERM comes.

    `kind` is grow, shrink, migrate or suspend; `size` how many workers there will be, 0 for none.
    """

    generation: int
    kind: str
    size: int
    deadline: float

    @property
    def seconds_left(self) -> float:
        """How long there is to save."""
        return max(0.0, self.deadline - time.time())


def rank() -> int:
    """Which of the workers this is, from 0."""
    return _number("RANK", 0)


def size() -> int:
    """How many workers there are now."""
    told = _read("size")
    return int(told["size"]) if told else _number("WORLD_SIZE", 1)


def generation() -> int:
    """The number of this set of workers; each later one has a larger number."""
    told = _read("size")
    return int(told["generation"]) if told else _number("ALIQUOT_GENERATION", 0)


def notice() -> Notice | None:
    """The change that is coming, if there is one. Costs a look at a file that is mostly missing."""
    told = _read("notice")
    if told is None or told["generation"] < generation():
        return None
    return Notice(
        int(told["generation"]), str(told["kind"]), int(told["size"]), float(told["deadline"])
    )


def on_notice(callback: Callable[[Notice], object]) -> None:
    """Call back once for each change that is coming, from a thread of its own."""
    threading.Thread(target=_watch, args=(callback,), name="aliquot-notice", daemon=True).start()


def ready() -> None:
    """All is saved: there is no need to wait until the deadline."""
    told = notice()
    if told is not None:
        _write("ready", {"generation": told.generation})
        _say("ready", told.generation)


def report(*, step: int, samples_per_second: float | None = None) -> None:
    """Say how far and how fast the job is; rank 0's word counts."""
    words = {"step": step, "samples_per_second": samples_per_second, "size": size()}
    _write("report", {**words, "at": time.time()})
    _say("report", words)


def _watch(callback: Callable[[Notice], object]) -> None:
    last = -1
    while True:
        told = notice()
        if told is not None and told.generation > last:
            last = told.generation
            callback(told)
        time.sleep(POLL_SECONDS)


def _number(variable: str, otherwise: int) -> int:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return otherwise


def _read(name: str) -> dict[str, Any] | None:
    folder = os.environ.get(TOLD) or os.environ.get(FOLDER)
    if folder is None:
        return None
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123 - asked for in each step
            words = json.load(file)
    except (OSError, ValueError):
        return None
    return words if isinstance(words, dict) else None


def _write(name: str, words: dict[str, object]) -> None:
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(words, file)
            os.replace(path, os.path.join(folder, name))  # noqa: PTH105, PTH118 - as above
        except OSError:
            os.unlink(path)  # noqa: PTH108


def _say(name: str, words: object) -> None:
    """Put this beside what was said, also by other processes of the worker."""
    path = os.environ.get(SAID)
    if path is None:
        return
    with contextlib.suppress(OSError), open(path, "a+", encoding="utf-8") as file:  # noqa: PTH123 - as above
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        file.seek(0)
        try:
            said = json.loads(file.read() or "{}")
        except ValueError:
            said = {}
        said = said if isinstance(said, dict) else {}
        file.truncate(0)
        file.write(json.dumps({**said, name: words}))
