"""The supervisor of one worker: it takes the slot, runs the command and writes how it ended.

A pool may die at any moment and must find its workers and their exit codes again. So the parent of
each worker is a supervisor, not the pool. A supervisor

- takes its slot by creating the file `owner`, which only one process can; any other one exits;
- runs the command of the file `launch` in a new session, and copies its output into the log of its
  rank (`logs`), which keeps the end;
- passes SIGTERM on to the command's process group, and on SIGUSR1 kills all descendants;
- when the command has ended, kills the processes it left behind (it is their subreaper), ends the
  grant, and writes `end`. Disk space for `end` is reserved at the start, and the log is complete by
  then.

If the supervisor is killed, the kernel kills the command.
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

from aliquot.pool.logs import RankLog
from aliquot.pool.processes import boot_id, descendants, started_at

OWNER, LAUNCH, END = "owner", "launch", "end"
END_BYTES = 4096

_CHUNK = 1 << 16
_LAST_OUTPUT_SECONDS = 5.0  # another process may keep the pipe open for ever

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}


def main(folder: Path) -> None:
    """Run the worker of one slot."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    launch = json.loads((folder / LAUNCH).read_text("utf-8"))
    end = _reserve_end(folder)
    if not take_slot(folder, {"supervisor": os.getpid(), "start": started_at(os.getpid())}):
        Path(end).unlink()
        return
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    log = _log(folder)
    output, output_end = os.pipe()
    child, error_pipe = _start_command(launch, output_end)
    os.close(output_end)
    copying = threading.Thread(target=_copy, args=(output, log), daemon=True)
    copying.start()
    outcome = _wait_for_end(child, error_pipe)
    _kill_orphans()
    with suppress(Exception):  # the pool retries it
        _end_grant(launch)
    copying.join(_LAST_OUTPUT_SECONDS)
    _write_end(folder, end, outcome)


def take_slot(folder: Path, content: dict[str, Any]) -> bool:
    """Take a slot, for ever; False if it has an owner."""
    made = folder / f".{OWNER}-{os.getpid()}"
    made.write_text(json.dumps({**content, "boot": boot_id()}), "utf-8")
    try:
        os.link(made, folder / OWNER)
    except FileExistsError:
        return False
    finally:
        made.unlink()
    return True


def _log(folder: Path) -> RankLog:
    """The log of this rank. Errors of the supervisor itself go there too."""
    rank = folder.name.rpartition(".")[2]
    return RankLog(folder.parent / f"rank-{rank}.log", also=(1, 2))


def _copy(output: int, log: RankLog) -> None:
    while content := os.read(output, _CHUNK):
        log.write(content)


def _start_command(launch: dict[str, Any], output_end: int) -> tuple[int, int]:
    """Start the command; its process, and a pipe for the reason if it cannot be run."""
    error_pipe, error_end = os.pipe()
    child = os.fork()
    if child == 0:
        _run_command(launch, output_end, error_end)
    os.close(error_end)
    return child, error_pipe


def _wait_for_end(child: int, error_pipe: int) -> dict[str, Any]:
    failure = os.read(error_pipe, 1000).decode("utf-8", "replace")
    os.close(error_pipe)
    status = _wait_for(child)
    if failure:
        return {"unrunnable": failure}
    return {"code": os.waitstatus_to_exitcode(status)}


def _run_command(launch: dict[str, Any], output_end: int, error_end: int) -> NoReturn:
    try:
        for standard in (1, 2):
            os.dup2(output_end, standard)
        supervisor = os.getppid()
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before prctl took effect
            os._exit(1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.chdir(launch["directory"])
        os.execve(launch["program"], launch["command"], launch["environment"])
    except OSError as error:
        where = f"{error.filename}: " if error.filename else f"{launch['program']}: "
        os.write(error_end, f"{where}{error.strerror}".encode())
    finally:
        os._exit(127)


def _wait_for(child: int) -> int:
    """Wait for the command and handle signals; its wait status."""
    while True:
        match signal.sigwait(_SIGNALS):
            case signal.SIGTERM:
                with suppress(ProcessLookupError):
                    os.killpg(
                        child, signal.SIGTERM
                    )  # not reaped yet, so the number is still its own
            case signal.SIGUSR1:
                _kill_all()
            case _:
                while True:
                    found, status = os.waitpid(-1, os.WNOHANG)
                    if found == child:
                        return status
                    if found == 0:
                        break


def _kill_orphans() -> None:
    with suppress(ChildProcessError):
        while True:
            _kill_all()
            os.waitpid(-1, 0)


def _kill_all() -> None:
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_grant(launch: dict[str, Any]) -> None:
    from aliquot.slices import control  # noqa: PLC0415 - keeps the start of the worker fast

    control.end(Path(launch["state"]), launch["grant"])


def _reserve_end(folder: Path) -> str:
    """A file with reserved space for the result, so that a full disk does not lose it."""
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
