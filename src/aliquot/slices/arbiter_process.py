"""Starting the arbiter of a state directory, replacing it, or becoming it.

The arbiter goes into the background by itself and the start returns when it listens. It is not a
child of the process that started it: that process becomes a tenant, which must not find a child
that it never made. The arbiter ends when there has been no grant for a while. If two start at the
same time, a lock decides which one stays.
"""

from __future__ import annotations

import filecmp
import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aliquot.devices import native_file
from aliquot.model import Admission, Unjoined
from aliquot.model.errors import ArbiterError, NotOwnerError
from aliquot.slices import control, procfs, state_directory, user_limits
from aliquot.slices.tenant import exec_program

if TYPE_CHECKING:
    from aliquot.devices import Driver
    from aliquot.slices.arbiter_status import Status
    from aliquot.slices.state_directory import StateDirectory

LOG = "arbiter.log"
PID = "arbiter.pid"
SETTINGS = "settings.json"
LINGER_SECONDS = 60

_LOCKED = 3  # its exit code if another arbiter has the directory
_START_SECONDS = 30.0
_END_SECONDS = 20.0
_POLL_SECONDS = 0.005
_RETURN_SECONDS = 2.0  # the units start it again after 100 ms


@dataclass(frozen=True, slots=True)
class ArbiterSettings:
    """What an arbiter was told when it was started, for the next one of its state directory.

    Whatever starts the next one, the limits of users and the policy stay. `users`: the file of
    their limits; None: the default. `foreground`: a service manager or a person started it, and may
    be about to start the next one. `host_bytes`: what it takes of the host's memory at most, for
    memory that leaves GPUs; None: the default. `overcommit`: how many times a GPU's memory slices
    may have together that take turns with it; None: as much as it has. `mps`: the GPUs that allow
    MPS servers, as the arbiter's option has them; None: all.
    """

    users: Path | None = None
    unjoined: Unjoined = Unjoined.REPORT
    admission: Admission = Admission.USERS
    foreground: bool = False
    host_bytes: int | None = None
    overcommit: float | None = None
    mps: str | None = None

    @classmethod
    def of(cls, directory: Path) -> ArbiterSettings:
        """Those of the last arbiter there; the defaults if there was none."""
        try:
            stored = json.loads((directory / SETTINGS).read_text("utf-8"))
            users, host = stored["users"], stored.get("host_memory_bytes")
            overcommit = stored.get("overcommit")
            return cls(
                None if users is None else Path(users),
                Unjoined(stored["unjoined"]),
                Admission(stored.get("admission", Admission.USERS)),  # an earlier one has none
                bool(stored.get("foreground", False)),
                None if host is None else int(host),
                None if overcommit is None else float(overcommit),
                None if (allowed := stored.get("mps")) is None else str(allowed),
            )
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArbiterError(
                f"the settings of the arbiter in {directory / SETTINGS} cannot be read: {error}",
                "Remove the file, and start the arbiter again with the options that it is to have.",
            ) from error

    def store(self, directory: Path) -> None:
        """Write them whole or not at all."""
        content = {
            "users": None if self.users is None else str(self.users),
            "unjoined": str(self.unjoined),
            "admission": str(self.admission),
            "foreground": self.foreground,
            "host_memory_bytes": self.host_bytes,
            "overcommit": self.overcommit,
            "mps": self.mps,
        }
        new = directory / f".{SETTINGS}"
        new.write_text(json.dumps(content), "utf-8")
        new.replace(directory / SETTINGS)


def ensure(directory: Path, driver: Driver) -> None:
    """Start an arbiter in this state directory unless one answers."""
    if not control.answers(directory):
        start(directory, driver)


def revive(where: StateDirectory) -> None:
    """Restart the arbiter if it died and left grants of this user; it recovers them."""
    ours = where.directory.is_relative_to(state_directory.own_directory())
    ours = ours and not state_directory.belongs_to_root(where.directory)
    if ours and where.grants and not control.answers(where.directory):
        state_directory.prepare(where)
        start(where.directory, where.driver())


def has_parent(directory: Path) -> bool:
    """Whether the process lives that restarts the arbiter of this directory."""
    try:
        return procfs.is_alive(int((directory / PID).read_text("ascii")))
    except (OSError, ValueError):
        return False


def obstacles(directory: Path) -> dict[str, str]:
    """What keeps an arbiter of this version from starting there: a sentence by its code.

    `version`: a later version made the directory. `users-file`: the limits of users are invalid.
    """
    users = _users_file(ArbiterSettings.of(directory))
    command = [_program(), "--check", "--state", str(directory)]
    try:
        done = subprocess.run(
            [*command, *([] if users is None else ["--users", str(users)])],
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArbiterError(f"{_program()} cannot be run: {error}") from error
    found = (line.partition("\t") for line in done.stdout.splitlines())
    return {code: sentence for code, _, sentence in found}


def is_current(status: Status) -> bool:
    """Whether the arbiter runs the program that this command would start.

    True also if the kernel does not tell, as of another user's arbiter.
    """
    try:
        return filecmp.cmp(f"/proc/{status.pid}/exe", _program(), shallow=False)
    except OSError:
        return True


def restart(  # noqa: PLR0913 - what may be given anew
    directory: Path,
    driver: Driver,
    *,
    unjoined: Unjoined | None = None,
    linger: int | None = None,
    host_bytes: int | None = None,
    overcommit: float | None = None,
) -> int:
    """Replace the arbiter by one of this version; return the new one's pid.

    Programs go on under their limits, with open gates until the new arbiter has adopted them. What
    is not given is as with the old one. HeldMemoryError, and nothing has changed: the old one holds
    memory of suspended programs.
    """
    status = control.status(directory)
    if status.answer.get("foreground"):
        raise ArbiterError(
            f"the arbiter in {directory} runs in the foreground (pid {status.pid})",
            "Restart it where it was started; as a service: sudo systemctl restart aliquot-arbiter",
        )
    _end(directory, status.pid)
    if unjoined is None and "unjoined" in status.answer:
        unjoined = Unjoined(status.answer["unjoined"])
    if linger is None:
        linger = int(status.answer.get("linger_seconds", LINGER_SECONDS))
    start(
        directory,
        driver,
        linger=linger,
        unjoined=unjoined,
        host_bytes=host_bytes,
        overcommit=overcommit,
    )
    return control.status(directory).pid


def _end(directory: Path, pid: int) -> None:
    """End an arbiter whose grants stay, and wait until it has ended. It opens the gates."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:
        raise ArbiterError(f"the arbiter in {directory} cannot be ended: {error}") from error
    try:
        _ask_to_end(directory, process)
        ended, _, _ = select.select([process], [], [], _END_SECONDS)
    finally:
        os.close(process)
    if not ended:
        raise ArbiterError(f"the arbiter in {directory} does not end", control.ASK_DOCTOR)


def _ask_to_end(directory: Path, process: int) -> None:
    """Ask, so that it can refuse. An earlier version does not know the request, and is told."""
    try:
        control.end_for_next(directory)
    except control.NotUnderstoodError:
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise NotOwnerError(
                f"the arbiter in {directory} belongs to another user", "Ask as root."
            ) from error


def serve(directory: Path, driver: Driver, settings: ArbiterSettings) -> NoReturn:
    """Become the arbiter; it runs until somebody stops it.

    One in the background is replaced: a command or the pool started it while this one was away. If
    that holds memory of suspended programs, it stays: HeldMemoryError.
    """
    users = settings.users
    if users and not users.exists():
        raise ArbiterError(
            f"there is no file {users} with limits of users",
            "Without --users root's arbiter reads /etc/aliquot/users, which may be missing.",
        )
    if control.answers(directory):
        status = control.status(directory)
        if status.answer.get("foreground"):
            raise ArbiterError(
                f"an arbiter already runs in {directory} (pid {status.pid})",
                "It runs in the foreground: end it where it was started.",
            )
        _end(directory, status.pid)
    settings = replace(settings, users=users.absolute() if users else None, foreground=True)
    settings.store(directory)
    command = [*_command(directory, driver, settings), "--foreground"]
    exec_program(command[0], command, _environment(driver))


def start(  # noqa: PLR0913 - what may be given anew
    directory: Path,
    driver: Driver,
    *,
    linger: int = LINGER_SECONDS,
    unjoined: Unjoined | None = None,
    host_bytes: int | None = None,
    overcommit: float | None = None,
) -> None:
    """Start an arbiter and wait until one answers: this one, or another that was faster.

    It ends `linger` seconds after its last grant; 0: it does not end by itself. What is not given
    is as with the last arbiter of this directory.
    """
    settings = ArbiterSettings.of(directory)
    if settings.foreground and _returns(directory):
        return
    wanted = replace(
        settings,
        unjoined=unjoined or settings.unjoined,
        host_bytes=settings.host_bytes if host_bytes is None else host_bytes,
        overcommit=settings.overcommit if overcommit is None else overcommit,
        foreground=False,
    )
    if wanted != settings:
        settings = wanted
        settings.store(directory)
    command = [*_command(directory, driver, settings), "--linger", str(linger)]
    deadline = time.monotonic() + _START_SECONDS
    try:
        done = subprocess.run(
            command,
            env=_environment(driver),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_started(directory, str(error)) from error
    if done.returncode not in {0, _LOCKED}:
        raise _not_started(directory, done.stderr.strip().removeprefix("aliquot-arbiter: "))
    while not control.answers(directory):
        if time.monotonic() > deadline:
            raise _not_started(directory, f"it does not answer; see {directory / LOG}")
        time.sleep(_POLL_SECONDS)


def _returns(directory: Path) -> bool:
    """Whether an arbiter of the foreground is back soon: a service manager starts it again."""
    deadline = time.monotonic() + _RETURN_SECONDS
    while time.monotonic() < deadline:
        if control.answers(directory):
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _command(directory: Path, driver: Driver, settings: ArbiterSettings) -> list[str]:
    """The arbiter's command line."""
    users = _users_file(settings)
    options = ["--state", str(directory), "--nvml", str(driver.nvml)]
    options += ["--cuda", str(driver.cuda)]
    options += ["--unjoined", str(settings.unjoined), "--admission", str(settings.admission)]
    if settings.host_bytes is not None:
        options += ["--host-memory", str(settings.host_bytes)]
    if settings.overcommit is not None:
        options += ["--overcommit", str(round(settings.overcommit * 100))]
    if settings.mps is not None:
        options += ["--mps", settings.mps]
    return [_program(), *options, *([] if users is None else ["--users", str(users)])]


def _users_file(settings: ArbiterSettings) -> Path | None:
    """The file of user limits; root's arbiter has one in any case."""
    if settings.users is None and os.geteuid() == 0:
        return user_limits.FILE
    return settings.users


def _program() -> str:
    return str(native_file("bin", "aliquot-arbiter"))


def _environment(driver: Driver) -> dict[str, str]:
    """The environment without LD_PRELOAD, which is meant for other programs."""
    kept = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    return {**kept, **driver.variables}


def _not_started(directory: Path, why: str) -> ArbiterError:
    return ArbiterError(f"the arbiter does not start in {directory}: {why}", control.ASK_DOCTOR)
