"""The watcher of one MPS server: it starts, watches and ends the server of a GPU for one user.

    python -m aliquot.slices.mps_watcher STATE FOLDER GPU [--simulate SHAPE]

It returns when the server accepts clients, and goes on in the background; or it prints why the
server does not start. It looks once a second. `mps_state` decides; this process observes and acts:

- It writes `record.json`, by which `mps.join` knows whether the server accepts clients.
- It tells each client why its GPU work ended by a line in that program's standard error.
- A daemon that is there already, as after a killed watcher, is adopted.

It runs with the rights of the user whose grants the clients have.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from aliquot.devices import parse_shape
from aliquot.model import Isolation
from aliquot.model.errors import AliquotError, MpsError
from aliquot.slices import control, mps, procfs
from aliquot.slices.mps_control import control_program
from aliquot.slices.mps_state import (
    START_SECONDS,
    MpsAction,
    MpsClient,
    MpsObservation,
    MpsPhase,
    ServerState,
    step,
)
from aliquot.slices.state_directory import StateDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.slices.mps import ServerFolder
    from aliquot.slices.mps_control import Control

PERIOD_SECONDS = 1.0
_SOON_SECONDS = 0.05  # while it starts
_QUIT_SECONDS = 10.0
_END_SECONDS = 2.0
_LOCK_SECONDS = 5.0
_ARBITER_AWAY_SECONDS = 20.0
_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)
_PID_FILE = "nvidia-cuda-mps-control.pid"


class Watcher:
    """The server of one GPU: what was last decided, and the daemon."""

    def __init__(self, folder: ServerFolder, control_: Control, wanted: Callable[[], bool]) -> None:
        self._folder, self._control, self._wanted = folder, control_, wanted
        self._daemon: subprocess.Popen[bytes] | None = None
        self._adopted: MpsClient | None = None
        self._written: ServerState | None = None
        self._said = ""
        self.state = ServerState(since=time.monotonic())

    @property
    def is_needed(self) -> bool:
        """Whether the server has not ended."""
        return self.state.phase is not MpsPhase.ENDED

    @property
    def period(self) -> float:
        """How long until the next look, in seconds."""
        return _SOON_SECONDS if self.state.phase is MpsPhase.STARTING else PERIOD_SECONDS

    def wait_for_start(self) -> None:
        """Look until the server accepts clients; MpsError if it never will."""
        while self.state.phase is MpsPhase.STARTING:
            self.look_for_joiner()
            time.sleep(_SOON_SECONDS)
        if not self.is_needed:
            raise MpsError(self.state.why)

    def begin(self) -> None:
        """Start the daemon, or adopt the one that is there, and ask for a server."""
        self._adopted = self._find_daemon()
        if self._adopted is None:
            self._start_daemon()
        self._start_server()

    def look(self) -> None:
        """Observe, decide, act, and write the record; nobody joins meanwhile.

        If a command that joins does not end, because it was stopped, say, it has the server wanted
        and keeps nobody from hearing of a failure.
        """
        with ExitStack() as held:
            try:
                lock = mps.locked(self._folder.path / mps.JOIN, seconds=PERIOD_SECONDS)
                held.enter_context(lock)
            except BlockingIOError:
                self.look_for_joiner()
            else:
                self._look(wanted=self._wanted())

    def look_for_joiner(self) -> None:
        """The same for somebody who has `join` locked, and waits until the server is ready."""
        self._look(wanted=True)

    def _look(self, *, wanted: bool) -> None:
        self.state, actions = step(self.state, self._observe(wanted=wanted), time.monotonic())
        for action in actions:
            self._act(action)
        if self.state != self._written:
            self.write_record()

    def write_record(self) -> None:
        """Write what others know of this server by."""
        state = self.state
        content = {
            "phase": str(state.phase),
            "gpu": self._folder.gpu,
            "watcher": os.getpid(),
            "daemon": self._daemon_pid(),
            "server": state.server,
            "clients": sorted(one.pid for one in state.clients),
            "old": sorted(one.pid for one in state.old),
            "why": state.why,
            "failures": state.failures,
        }
        record = self._folder.path / mps.RECORD
        new = record.with_name(f".{mps.RECORD}")
        try:
            new.write_text(json.dumps(content), "utf-8")
            new.replace(record)
        except OSError:
            self._written = None
            record.unlink(missing_ok=True)  # what it says is not true any more: nobody joins
            raise
        self._written = state

    def tend(self) -> None:
        """Look once; a server whose folder was removed ends at once."""
        if not self._folder.path.is_dir():
            self.state = replace(self.state, phase=MpsPhase.ENDED)
            self.quit()
            return
        try:
            self.look()
        except (OSError, AliquotError) as error:  # a full disk, say: the clients go on
            self._say(repr(error))

    def _say(self, text: str) -> None:
        """Write to the log, once, if its disk is not full."""
        if text == self._said:
            return
        self._said = text
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def quit(self) -> None:
        """End the daemon and its servers."""
        servers = {self.state.server}
        if self._control.pipes.is_dir():  # else nobody could ask it
            with suppress(AliquotError):
                servers |= set(self._control.servers())
                self._control.quit()
            deadline = time.monotonic() + _QUIT_SECONDS
            while self._daemon_pid() is not None and time.monotonic() < deadline:
                time.sleep(_SOON_SECONDS)
        self.kill_daemon()
        for server in servers - {None}:
            end_server(server)

    def kill_daemon(self) -> None:
        """Kill the daemon, if it lives."""
        if (pid := self._daemon_pid()) is not None:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self._daemon is not None:
            self._daemon.wait()

    # --- observe ---

    def _observe(self, *, wanted: bool) -> MpsObservation:
        server, faulted, clients = None, False, frozenset[MpsClient]()
        alive, answers = self._daemon_pid() is not None, True
        if alive:
            try:
                server = next(iter(self._control.servers()), None)
                if server is not None:
                    faulted = self._control.has_faulted(server)
                    clients = _alive(self._control.clients(server))
            except AliquotError as error:
                alive, answers = (
                    self._daemon_pid() is not None,
                    False,
                )  # it may have ended just then
                self._say(error.message)
        known = self.state.clients | self.state.old
        return MpsObservation(
            daemon_alive=alive,
            server=server,
            faulted=faulted,
            clients=clients,
            gone=frozenset(one for one in known if procfs.started_at(one.pid) != one.started),
            wanted=wanted,
            answers=answers,
        )

    def _daemon_pid(self) -> int | None:
        """The daemon's pid, if it lives."""
        if self._daemon is not None:
            return self._daemon.pid if self._daemon.poll() is None else None
        found = self._adopted
        lives = found is not None and procfs.started_at(found.pid) == found.started
        return found.pid if found is not None and lives else None

    def _find_daemon(self) -> MpsClient | None:
        """The daemon that another watcher started here; None: there is none that answers."""
        try:
            pid = int((self._control.pipes / _PID_FILE).read_text("ascii"))
            started = procfs.started_at(pid)
            self._control.servers()
        except (AliquotError, OSError, ValueError):
            return None
        return None if started is None else MpsClient(pid, started)

    # --- act ---

    def _act(self, action: MpsAction) -> None:
        match action:
            case MpsAction.START_DAEMON:
                self._start_daemon()
                self._start_server()
            case MpsAction.START_SERVER:
                self._start_server()
            case MpsAction.END_SERVER:
                end_server(self.state.server)
            case MpsAction.TELL:
                for client in self.state.old:
                    tell(client, self._folder.gpu, self.state.why)
            case MpsAction.QUIT:
                self.quit()

    def _start_daemon(self) -> None:
        environment = {
            **self._control.environment(),
            "CUDA_VISIBLE_DEVICES": self._folder.gpu,
        }
        try:
            self._daemon = subprocess.Popen(
                [*self._control.program, "-f"],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise MpsError(f"{self._control.program[0]} cannot be run: {error}") from error

    def _start_server(self) -> None:
        """Ask for a server; the daemon may need a moment until it listens."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._control.start_server(os.geteuid())
            except MpsError:
                if self._daemon_pid() is None or time.monotonic() > deadline:
                    raise
                time.sleep(_SOON_SECONDS)
            else:
                return


def end_server(pid: int | None) -> None:
    """Wait until a server that a daemon has left ends; kill it if it does not end by itself."""
    started = None if pid is None else procfs.started_at(pid)
    if pid is None or started is None:
        return
    for must_end in (False, True):
        if must_end and _is_server(pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _END_SECONDS
        while procfs.started_at(pid) == started and time.monotonic() < deadline:
            if not _is_server(pid) and procfs.command_line(pid):
                return  # another process
            time.sleep(_SOON_SECONDS)


def _is_server(pid: int) -> bool:
    return "mps-server" in procfs.command_line(pid)


def _alive(pids: list[int]) -> frozenset[MpsClient]:
    found = ((pid, procfs.started_at(pid)) for pid in pids)
    return frozenset(MpsClient(pid, started) for pid, started in found if started is not None)


def tell(client: MpsClient, gpu: str, why: str) -> None:
    """Say in a program's standard error why its GPU work ended: on a terminal, in a file or a pipe.

    It never waits, and what a file has already stays: a line that cannot be added is left out.
    """
    with suppress(OSError):
        process = os.pidfd_open(client.pid)
        try:
            handle = _standard_error(client.pid, process)
            try:
                if procfs.started_at(client.pid) == client.started:
                    os.write(handle, f"aliquot: the MPS server of {gpu}: {why}\n".encode())
            finally:
                os.close(handle)
        finally:
            os.close(process)


def _standard_error(pid: int, process: int) -> int:
    """A descriptor that adds to a process's standard error; OSError if there is none."""
    path = Path(f"/proc/{pid}/fd/2")
    mode = path.stat().st_mode
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return os.open(path, flags)
    if not stat.S_ISREG(mode):
        raise OSError("its standard error takes no line of another process")
    # Its own place in the file, or else it would overwrite the line with its next one.
    shared = int(_libc.syscall(_PIDFD_GETFD, process, 2, 0))
    if shared >= 0:
        return shared
    if not _appends(pid):
        raise OSError("it does not append to its standard error")
    return os.open(path, flags)


def _appends(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/fdinfo/2").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "flags":
            return bool(int(value, 8) & os.O_APPEND)
    return False


def wants_server(
    state: StateDirectory, gpu: str, clock: Callable[[], float] = time.monotonic
) -> Callable[[], bool]:
    """Whether a grant of this user is for clients of the server of a GPU.

    While no arbiter runs, the grants that it left count: the next one adopts them. If none comes
    for 20 s they do not.
    """
    known, seen = True, clock()

    def wanted() -> bool:
        nonlocal known, seen
        try:
            status = control.status(state.directory)
        except control.SilentArbiterError:
            return known
        except control.NoArbiterError:
            return known and clock() - seen < _ARBITER_AWAY_SECONDS
        except AliquotError:  # of another version, or has too much to do
            return known
        seen = clock()
        known = any(
            grant.isolation is Isolation.MPS
            and grant.owner_uid == status.asker_uid
            and any(part.gpu_uuid == gpu for part in grant.slices)
            for grant in status.grants
        )
        return known

    return wanted


def main(arguments: list[str]) -> int:
    """Start the server; the exit code of the process that was started."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    directory, path, gpu, *rest = arguments
    shape = parse_shape(rest[1]) if rest else None
    state = StateDirectory(Path(directory), shape)
    try:
        driver = state.driver()
        folder = mps.ServerFolder(Path(path), gpu)
        watcher = Watcher(folder, folder.control(control_program(driver)), wants_server(state, gpu))
    except AliquotError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    return _detach(watcher, folder)


def _detach(watcher: Watcher, folder: ServerFolder) -> int:
    """Go on in the background; return when the server accepts clients, or why it does not."""
    ready, announce = os.pipe()
    if os.fork():
        os.close(announce)
        with os.fdopen(ready, "rb") as answer:
            said = answer.read().decode("utf-8", "replace")
        if said == "ready":
            return 0
        sys.stderr.write(f"{said or 'its watcher ended'}\n")
        return 1
    os.close(ready)
    os.setsid()
    if os.fork() == 0:
        _run(watcher, folder, announce)
    os._exit(0)


def _run(watcher: Watcher, folder: ServerFolder, announce: int) -> NoReturn:
    told = os.fdopen(announce, "wb", buffering=0)
    try:
        os.chdir("/")
        log = os.open(
            folder.path / mps.WATCHER_LOG,
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
            0o600,
        )
        null = os.open(os.devnull, os.O_RDONLY)
        for source, standard in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, standard)
        # Who asks whether it is locked has it for a moment.
        with mps.locked(folder.path / mps.WATCHER, seconds=_LOCK_SECONDS):
            _serve(watcher, told)
    except BaseException as error:  # noqa: BLE001 - the last word of this process
        with suppress(OSError, ValueError):  # it has been told already that the server is ready
            told.write(str(getattr(error, "message", error)).encode())
        with suppress(OSError):
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _serve(watcher: Watcher, told: IO[bytes]) -> None:
    """Start the server, say so, and keep it until it ends."""
    try:
        watcher.begin()
        watcher.write_record()
        watcher.wait_for_start()
    except BaseException:
        watcher.quit()
        raise
    with told:
        told.write(b"ready")
    while watcher.is_needed:
        time.sleep(watcher.period)
        watcher.tend()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
