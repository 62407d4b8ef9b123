"""The process that keeps one worker: it takes the slot, runs the command, and writes how it ended.

A pool may die at any moment and must find its workers again, with their exit codes; so each has a
parent that is not the pool. A keeper

- takes its slot by making the file `claim`, which only one can: whoever finds it made, ends;
- runs the command in a session of its own, as told in `order`, and writes what that prints into
  the log of its rank (`logs`), of which the end is kept;
- passes SIGTERM on to the command's process group; at SIGUSR1 kills all that descends from it;
- when the command has ended, kills what it left behind (orphans come to it: it is their reaper),
  gives the GPUs back, and writes `end`, for which there is room on the disk since the beginning.
  What was printed is in the log by then.

If it is killed itself, the command is killed by the kernel.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from aliquot.pool.logs import Log
from aliquot.pool.processes import boot_id, descendants, started_at

CLAIM, ORDER, END = "claim", "order", "end"
END_BYTES = 4096

_CHUNK = 1 << 16
_LAST_WORDS_SECONDS = 5.0  # a stranger may hold the pipe open for ever

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HEARD = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}


def main(folder: Path) -> None:
    """Keep the worker of one slot."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    order = json.loads((folder / ORDER).read_text("utf-8"))
    end = _reserve_end(folder)
    if not take(folder, {"keeper": os.getpid(), "start": started_at(os.getpid())}):
        Path(end).unlink()
        return
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    log = _log(folder)
    printed, printing = os.pipe()
    child, heard = _begin(order, printing)
    os.close(printing)
    copying = threading.Thread(target=_copy, args=(printed, log), daemon=True)
    copying.start()
    outcome = _see_to_the_end(child, heard)
    _leave_nobody_behind()
    with suppress(Exception):  # the pool does it too, when it is back
        _give_back(order)
    copying.join(_LAST_WORDS_SECONDS)
    _write_end(folder, end, outcome)


def take(folder: Path, words: dict[str, Any]) -> bool:
    """Take a slot, for ever; False where it is taken."""
    made = folder / f".{CLAIM}-{os.getpid()}"
    made.write_text(json.dumps({**words, "boot": boot_id()}), "utf-8")
    try:
        os.link(made, folder / CLAIM)
    except FileExistsError:
        return False
    finally:
        made.unlink()
    return True


def _log(folder: Path) -> Log:
    """The log of this rank; what goes wrong in the keeper itself is written there, too."""
    rank = folder.name.rpartition(".")[2]
    return Log(folder.parent / f"rank-{rank}.log", also=(1, 2))


def _copy(printed: int, log: Log) -> None:
    while words := os.read(printed, _CHUNK):
        log.write(words)


def _begin(order: dict[str, Any], printing: int) -> tuple[int, int]:
    """The command's process, and where it says why it could not be run."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        _become(order, printing, told)
    os.close(told)
    return child, heard


def _see_to_the_end(child: int, heard: int) -> dict[str, Any]:
    failure = os.read(heard, 1000).decode("utf-8", "replace")
    os.close(heard)
    status = _wait_for(child)
    if failure:
        return {"unrunnable": failure}
    return {"code": os.waitstatus_to_exitcode(status)}


def _become(order: dict[str, Any], printing: int, told: int) -> NoReturn:
    try:
        for standard in (1, 2):
            os.dup2(printing, standard)
        keeper = os.getppid()
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before the kernel knew
            os._exit(1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.chdir(order["directory"])
        os.execve(order["program"], order["command"], order["environment"])
    except OSError as error:
        where = f"{error.filename}: " if error.filename else f"{order['program']}: "
        os.write(told, f"{where}{error.strerror}".encode())
    finally:
        os._exit(127)


def _wait_for(child: int) -> int:
    """How the command ended; until then do as one is told."""
    while True:
        match signal.sigwait(_HEARD):
            case signal.SIGTERM:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGTERM)  # not waited for yet: the number is its own
            case signal.SIGUSR1:
                _kill_all()
            case _:
                while True:
                    found, status = os.waitpid(-1, os.WNOHANG)
                    if found == child:
                        return status
                    if found == 0:
                        break


def _leave_nobody_behind() -> None:
    with suppress(ChildProcessError):
        while True:
            _kill_all()
            os.waitpid(-1, 0)


def _kill_all() -> None:
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _give_back(order: dict[str, Any]) -> None:
    from aliquot.slices import control  # noqa: PLC0415 - not before the worker runs

    control.end(Path(order["state"]), order["grant"])


def _reserve_end(folder: Path) -> str:
    """A file with room for the last word, so that a full disk cannot silence it."""
    path = folder / f".{END}-{os.getpid()}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.posix_fallocate(handle, 0, END_BYTES)
    os.close(handle)
    return str(path)


def _write_end(folder: Path, reserved: str, outcome: dict[str, Any]) -> None:
    handle = os.open(reserved, os.O_WRONLY | os.O_CLOEXEC)
    os.pwrite(handle, json.dumps(outcome).encode()[: END_BYTES - 1].ljust(END_BYTES), 0)
    os.close(handle)
    Path(reserved).replace(folder / END)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
