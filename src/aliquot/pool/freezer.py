"""What freezes or thaws one worker: reads `freeze-request`, writes `freeze-result`.

The pool writes a request and starts a freezer; if the pool dies, the freezer finishes its work. It
is a process, because a call to the driver may hang. For a swappable grant, whose programs move
their memory themselves, it is a thread of the pool: that is there at once. The next pool continues.

Only one freezer works on a slot at a time. Its result names the generation that asked, and says
whether the worker is frozen or why that failed; or why a swappable one is not back yet, while it is
tried again. If a freezer is killed, the next one continues from
what the driver reports (`slices.checkpoint`). A driver that hangs does not block the pool; a worker
that should be frozen after it waits for ten minutes and is then asked to save.
"""

from __future__ import annotations

import fcntl
import json
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.devices import Driver
from aliquot.model.errors import ArbiterError, NoSuchGrantError
from aliquot.pool import supervisor
from aliquot.pool.json_files import read_json, write_json
from aliquot.pool.slots import FREEZE_REQUEST, FREEZE_RESULT
from aliquot.slices import checkpoint, moving

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCK = "freezer.lock"
_RETRY_SECONDS = 0.5


def main(folder: Path) -> None:
    """Carry out the requests of a slot until none is left."""
    launch = json.loads((folder / supervisor.LAUNCH).read_text("utf-8"))
    with (folder / _LOCK).open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # the freezer that has the lock will read the new request
        while (request := read_json(folder / FREEZE_REQUEST)) is not None:
            if _is_done(folder, request):
                return
            is_wanted = partial(_is_wanted, folder, request)
            try:
                write_json(folder / FREEZE_RESULT, _carry_out(launch, request, is_wanted))
            except checkpoint.RetryLaterError as error:
                if launch.get("swap", False) and not request["frozen"]:
                    late = {"generation": request["generation"], "frozen": True}
                    write_json(folder / FREEZE_RESULT, {**late, "late": error.message})
                time.sleep(_RETRY_SECONDS)


def _is_wanted(folder: Path, request: dict[str, Any]) -> bool:
    """Whether the pool still wants that; otherwise a swappable worker goes on at once."""
    return not request.get("called_off") and read_json(folder / FREEZE_REQUEST) == request


def _is_done(folder: Path, request: dict[str, Any]) -> bool:
    """Whether this request already has a result; a failed one is not tried again."""
    result = read_json(folder / FREEZE_RESULT)
    if result is None or result["generation"] != request["generation"]:
        return False
    return result["frozen"] == request["frozen"] or "error" in result


def _carry_out(
    launch: dict[str, Any], request: dict[str, Any], is_wanted: Callable[[], bool]
) -> dict[str, Any]:
    """Freeze or thaw the worker; the result to write."""
    result = {"generation": request["generation"], "frozen": request["frozen"]}
    try:
        _change(launch, is_wanted, frozen=request["frozen"])
    except checkpoint.CannotFreezeError as error:
        return {**result, "frozen": not request["frozen"], "error": error.message}
    return result


def _change(launch: dict[str, Any], is_wanted: Callable[[], bool], *, frozen: bool) -> None:
    state, name = Path(launch["state"]), launch["grant"]
    if launch.get("swap", False):  # an earlier pool started no such workers
        if frozen:
            moving.freeze(state, name, is_wanted)
        else:
            moving.thaw(state, name)
        return
    driver = Driver(Path(launch["driver"]["cuda"]), Path(launch["driver"]["nvml"]))
    change = checkpoint.freeze if frozen else checkpoint.thaw
    change(checkpoint.Checkpoints(driver), state, name)


class FreezerThread:
    """A freezer in a thread of the pool, for a swappable worker; `done` is called at its end."""

    def __init__(self, folder: Path, done: Callable[[], None]) -> None:
        self._folder, self._done = folder, done
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether it is at work."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Forget it; it has ended."""

    def _run(self) -> None:
        with suppress(NoSuchGrantError, FileNotFoundError, ArbiterError):  # the next round retries
            main(self._folder)
            self._done()


if __name__ == "__main__":
    with suppress(NoSuchGrantError, FileNotFoundError):  # the worker has ended
        main(Path(sys.argv[1]))
