"""The process that freezes or thaws one worker: what `still` asks for, written into `standing`.

The pool writes what it wants and starts one of these; a pool that dies leaves it at work. Only one
works on a slot at a time. What it did is told for the generation that asked: whether the worker is
frozen, or why that could not be changed. Cut off at any line, the next one goes on from what the
driver says (`slices.checkpoint`). A driver that hangs holds up nobody but this process.
"""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path
from typing import Any

from aliquot.devices import Driver
from aliquot.model.errors import AliquotError, NoSuchGrantError
from aliquot.pool import keeper
from aliquot.pool.slots import STANDING, STILL, read, write
from aliquot.slices import checkpoint

_LOCK = "freezer.lock"


def main(folder: Path) -> None:
    """Do what is asked for in a slot, until nothing else is."""
    order = json.loads((folder / keeper.ORDER).read_text("utf-8"))
    with (folder / _LOCK).open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # who has it sees what is asked for now
        done = None
        while (asked := read(folder / STILL)) != done and asked is not None:
            write(folder / STANDING, _do(order, asked))
            done = asked


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
    try:
        main(Path(sys.argv[1]))
    except NoSuchGrantError:
        pass  # the worker has ended
    except AliquotError as error:
        sys.exit(error.message)  # there is no arbiter now: the pool tries again
