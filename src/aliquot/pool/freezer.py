"""The process that freezes or thaws one worker: what `still` asks for, written into `standing`.

The pool writes what it wants and starts one of these; a pool that dies leaves it at work. Only one
works on a slot at a time. What it did is told for the generation that asked: whether the worker is
frozen, or why that could not be changed. Cut off at any line, the next one goes on from what the
driver says (`slices.checkpoint`). A driver that hangs does not hold up the pool; who is to be
frozen after it waits for ten minutes, and is then asked to save.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from aliquot.devices import Driver
from aliquot.model.errors import NoSuchGrantError
from aliquot.pool import keeper
from aliquot.pool.slots import STANDING, STILL, read, write
from aliquot.slices import checkpoint

_LOCK = "freezer.lock"
_AGAIN_SECONDS = 0.5


def main(folder: Path) -> None:
    """Do what is asked for in a slot, until nothing else is."""
    order = json.loads((folder / keeper.ORDER).read_text("utf-8"))
    with (folder / _LOCK).open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # who has it sees what is asked for now
        while (asked := read(folder / STILL)) is not None and not _answered(folder, asked):
            try:
                write(folder / STANDING, _do(order, asked))
            except checkpoint.RetryLaterError:
                time.sleep(_AGAIN_SECONDS)


def _answered(folder: Path, asked: dict[str, Any]) -> bool:
    """Whether what a generation asked for has come of it already: it is not done again."""
    standing = read(folder / STANDING)
    if standing is None or standing["generation"] != asked["generation"]:
        return False
    return standing["frozen"] == asked["frozen"] or "stuck" in standing


def _do(order: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Freeze or thaw; how the worker stands then."""
    told = {"generation": asked["generation"], "frozen": asked["frozen"]}
    act = checkpoint.freeze if asked["frozen"] else checkpoint.thaw
    try:
        driver = Driver(Path(order["driver"]["cuda"]), Path(order["driver"]["nvml"]))
        act(checkpoint.Checkpoints(driver), Path(order["state"]), order["grant"])
    except checkpoint.CannotFreezeError as error:
        return {**told, "frozen": not asked["frozen"], "stuck": error.message}
    return told


if __name__ == "__main__":
    with suppress(NoSuchGrantError):  # the worker has ended
        main(Path(sys.argv[1]))
