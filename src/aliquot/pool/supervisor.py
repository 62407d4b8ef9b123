"""The supervisor of one worker: it takes the slot, runs the command and writes how it ended.

A pool may die at any moment and must find its workers and their exit codes again. So the parent of
each worker is a supervisor, not the pool. A supervisor

- takes its slot by creating the file `owner`, which only one process can; any other one exits;
- runs the command of the file `launch` in a new session and, if that is possible, in a cgroup of
  its own, and copies its output into the log of its rank (`logs`), which keeps the end;
- says there, and in `end`, if the command could start no more processes;
- in root's pool stays root, and runs the command with the rights of the job's user (`account`);
- makes the command a client of an MPS server, if the job asks for that (`clients`);
- passes SIGTERM on to the command's process group, and on SIGUSR1 kills all descendants;
- when the command has ended, kills the processes it left behind (by their cgroup, and as their
  subreaper), ends the grant, and writes `end`. Disk space for `end` is reserved at the start, and
  the log is complete by then.

If the supervisor is killed, the kernel kills the command, and the pool the rest of the cgroup.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from aliquot.pool import cgroup, clients
from aliquot.pool.account import AccountError, Surroundings, become, look_up, session
from aliquot.pool.json_files import write_json
from aliquot.pool.logs import RankLog
from aliquot.pool.processes import boot_id, descendants, started_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.pool.account import Account

OWNER, LAUNCH, END, CGROUP = "owner", "launch", "end", "cgroup"
END_BYTES = 4096

_CHUNK = 1 << 16
_LAST_OUTPUT_SECONDS = 5.0  # another process may keep the pipe open for ever

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}


def main(folder: Path) -> None:
    """Run the worker of one slot."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    umask = os.umask(0o077)
    try:
        launch = json.loads((folder / LAUNCH).read_text("utf-8"))
    except FileNotFoundError:  # another one has run the worker
        return
    end = _reserve_end(folder)
    if not take_slot(folder, {"supervisor": os.getpid(), "start": started_at(os.getpid())}):
        Path(end).unlink()
        return
    group = _make_cgroup(folder, launch)
    try:
        with _rights(launch, umask) as rights:
            # Before this process becomes a subreaper: the server's watcher outlives it.
            clients.join_server(launch, rights.account, rights.inherited)
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            outcome = _run(folder, launch, rights, group)
    except (AccountError, clients.ServerError) as error:
        outcome = {"unrunnable": error.message}
        _kill_orphans(group, launch)
    if group is not None and not group.exists():
        (folder / CGROUP).unlink()
    with suppress(Exception):  # the pool retries it
        _end_grant(launch)
    with suppress(OSError):  # nobody needs it any more, and it may be long
        (folder / LAUNCH).unlink()
    _write_end(folder, end, outcome)


def _run(
    folder: Path, launch: dict[str, Any], rights: Rights, group: Path | None
) -> dict[str, Any]:
    """Run the command until all of it has ended; how it ended."""
    log = _log(folder, launch["user"]["uid"])
    output, output_end = os.pipe()
    if rights.account is not None:
        os.fchown(output_end, rights.account.uid, -1)  # so that it can open /dev/stdout
    child, error_pipe = _start_command(launch, output_end, rights, group)
    os.close(output_end)
    copying = threading.Thread(target=_copy, args=(output, log), daemon=True)
    copying.start()
    if group is not None:
        threading.Thread(target=_tell_limit, args=(group, log), daemon=True).start()
    outcome = _wait_for_end(launch, child, error_pipe, group)
    if group is not None and (note := cgroup.reached_limit(group)):
        outcome["note"] = note
    _kill_orphans(group, launch)
    copying.join(_LAST_OUTPUT_SECONDS)
    return outcome


@dataclass(frozen=True, slots=True)
class Rights:
    """What the command runs with; `account` is None if it has the rights of this process."""

    account: Account | None
    inherited: Surroundings


@contextmanager
def _rights(launch: dict[str, Any], umask: int) -> Iterator[Rights]:
    """The rights of the job's user, with a session for as long as the command runs."""
    uid, gid = launch["user"]["uid"], launch["user"]["gid"]
    if uid == os.geteuid():
        yield Rights(None, Surroundings({}, umask))
        return
    account = look_up(uid, gid, launch["user"].get("name"))
    with session(account) as inherited:
        yield Rights(account, inherited)


def _make_cgroup(folder: Path, launch: dict[str, Any]) -> Path | None:
    own = cgroup.own()  # where the pool is, if it is of an earlier version and does not tell
    told = launch.get("cgroup") or {"above": own and str(own), "processes": None}
    if told["above"] is None:
        return None
    group = cgroup.create(folder, Path(told["above"]), told["processes"])
    if group is not None:
        write_json(folder / CGROUP, {"path": str(group)})
    return group


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


def _log(folder: Path, uid: int) -> RankLog:
    """The log of this rank. Errors of the supervisor itself go there too."""
    rank = folder.name.rpartition(".")[2]
    return RankLog(folder.parent / f"rank-{rank}.log", also=(1, 2), uid=uid)


def _copy(output: int, log: RankLog) -> None:
    while content := os.read(output, _CHUNK):
        log.write(content)


def _tell_limit(group: Path, log: RankLog) -> None:
    """Say in the log why the command can start no more processes, when that happens."""
    cgroup.wait_for_refusal(group)
    if note := cgroup.reached_limit(group):
        log.write(f"[aliquot: this worker cannot start more: {note}]\n".encode())


def _start_command(
    launch: dict[str, Any], output_end: int, rights: Rights, group: Path | None
) -> tuple[int, int]:
    """Start the command; its process, and a pipe for the reason if it cannot be run."""
    error_pipe, error_end = os.pipe()
    child = os.fork()
    if child == 0:
        for standard in (1, 2):
            os.dup2(output_end, standard)
        _run_command(launch, error_end, rights, group)
    os.close(error_end)
    return child, error_pipe


def _wait_for_end(
    launch: dict[str, Any], child: int, error_pipe: int, group: Path | None
) -> dict[str, Any]:
    failure = os.read(error_pipe, 1000).decode("utf-8", "replace")
    os.close(error_pipe)
    status = _wait_for(launch, child, group)
    if failure:
        return {"unrunnable": failure}
    return {"code": os.waitstatus_to_exitcode(status)}


def _run_command(
    launch: dict[str, Any], error_end: int, rights: Rights, group: Path | None
) -> NoReturn:
    """Become the command. No path of the user is opened before its rights are those of the user."""
    try:
        supervisor = os.getppid()
        os.setsid()
        if group is not None:
            cgroup.enter(group)
        if rights.account is None:
            os.umask(rights.inherited.umask)
        else:
            become(rights.account, rights.inherited)
        # After the change of the user, which clears it.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before prctl took effect
            os._exit(1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.chdir(launch["directory"])
        os.execve(launch["program"], launch["command"], launch["environment"])
    except ValueError as error:  # a resource limit
        os.write(error_end, str(error).encode())
    except OSError as error:
        where = f"{error.filename}: " if error.filename else f"{launch['program']}: "
        os.write(error_end, f"{where}{error.strerror}".encode())
    finally:
        os._exit(127)


def _wait_for(launch: dict[str, Any], child: int, group: Path | None) -> int:
    """Wait for the command and handle signals; its wait status."""
    while True:
        match signal.sigwait(_SIGNALS):
            case signal.SIGTERM:
                with suppress(ProcessLookupError):
                    os.killpg(
                        child, signal.SIGTERM
                    )  # not reaped yet, so the number is still its own
            case signal.SIGUSR1:
                _kill_all(group, launch)
            case _:
                while True:
                    found, status = os.waitpid(-1, os.WNOHANG)
                    if found == child:
                        return status
                    if found == 0:
                        break


def _kill_orphans(group: Path | None, launch: dict[str, Any]) -> None:
    with suppress(ChildProcessError):
        while True:
            _kill_all(group, launch)
            os.waitpid(-1, 0)
    if group is not None:
        cgroup.end(group)


def _kill_all(group: Path | None, launch: dict[str, Any]) -> None:
    clients.end_work(launch, descendants(os.getpid()))
    if group is not None:
        cgroup.kill(group)
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
