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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aliquot.devices import native_file
from aliquot.model import Unjoined
from aliquot.model.errors import ArbiterError, NotOwnerError
from aliquot.slices import control, state_directory, user_limits
from aliquot.slices.tenant import exec_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.devices import Driver
    from aliquot.slices.control import Status
    from aliquot.slices.state_directory import StateDirectory

LOG = "arbiter.log"
SETTINGS = "settings.json"
LINGER_SECONDS = 60

_LOCKED = 3  # its exit code if another arbiter has the directory
_START_SECONDS = 30.0
_END_SECONDS = 20.0
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class ArbiterSettings:
    """What an arbiter was told when it was started, for the next one of its state directory.

    Whatever starts the next one, the limits of users and the policy stay. `users`: the file of
    their limits; None: the default.
    """

    users: Path | None = None
    unjoined: Unjoined = Unjoined.REPORT

    @classmethod
    def of(cls, directory: Path) -> ArbiterSettings:
        """Those of the last arbiter there; the defaults if there was none."""
        try:
            stored = json.loads((directory / SETTINGS).read_text("utf-8"))
            users = stored["users"]
            return cls(None if users is None else Path(users), Unjoined(stored["unjoined"]))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArbiterError(
                f"the settings of the arbiter in {directory / SETTINGS} cannot be read: {error}",
                "Remove the file, and start the arbiter again with the options that it is to have.",
            ) from error

    def store(self, directory: Path) -> None:
        """Write them whole or not at all."""
        users = None if self.users is None else str(self.users)
        new = directory / f".{SETTINGS}"
        new.write_text(json.dumps({"users": users, "unjoined": str(self.unjoined)}), "utf-8")
        new.replace(directory / SETTINGS)


def ensure(directory: Path, driver: Driver) -> None:
    """Start an arbiter in this state directory unless one answers."""
    if not control.answers(directory):
        start(directory, driver)


def revive(where: StateDirectory) -> None:
    """Restart the arbiter if it died and left grants of this user; it recovers them."""
    ours = where.directory.is_relative_to(state_directory.own_directory())
    if ours and where.grants and not control.answers(where.directory):
        state_directory.prepare(where)
        start(where.directory, where.driver())


def running() -> Iterator[StateDirectory]:
    """Every state directory with an arbiter; one that died and left grants is restarted."""
    for where in state_directory.all_directories():
        revive(where)
        if control.answers(where.directory):
            yield where


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


def restart(directory: Path, driver: Driver, *, unjoined: Unjoined | None = None) -> int:
    """Replace the arbiter by one of this version; return the new one's pid.

    Programs go on under their limits, with open gates until the new arbiter has adopted them. What
    is not given is as with the old one.
    """
    status = control.status(directory)
    if status.answer.get("foreground"):
        raise ArbiterError(
            f"the arbiter in {directory} runs in the foreground (pid {status.pid})",
            "Restart it where it was started; as a service: sudo systemctl restart aliquot",
        )
    try:
        process = os.pidfd_open(status.pid)
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except PermissionError as error:
        raise NotOwnerError(
            f"the arbiter in {directory} belongs to another user", "Ask as root."
        ) from error
    except OSError as error:
        raise ArbiterError(f"the arbiter in {directory} cannot be ended: {error}") from error
    ended, _, _ = select.select([process], [], [], _END_SECONDS)
    os.close(process)
    if not ended:
        raise ArbiterError(f"the arbiter in {directory} does not end", control.ASK_DOCTOR)
    if unjoined is None and "unjoined" in status.answer:
        unjoined = Unjoined(status.answer["unjoined"])
    linger = int(status.answer.get("linger_seconds", LINGER_SECONDS))
    start(directory, driver, linger=linger, unjoined=unjoined)
    return control.status(directory).pid


def serve(directory: Path, driver: Driver, users: Path | None, unjoined: Unjoined) -> NoReturn:
    """Become the arbiter; it runs until somebody stops it. `users`: the file of their limits."""
    if control.answers(directory):
        raise ArbiterError(
            f"an arbiter already runs in {directory}",
            "One that `aliquot run` started ends a minute after its last grant. See: aliquot ps",
        )
    if users and not users.exists():
        raise ArbiterError(
            f"there is no file {users} with limits of users",
            "Without --users root's arbiter reads /etc/aliquot/users, which may be missing.",
        )
    settings = ArbiterSettings(users.absolute() if users else None, unjoined)
    settings.store(directory)
    command = [*_command(directory, driver, settings), "--foreground"]
    exec_program(command[0], command, _environment(driver))


def start(
    directory: Path,
    driver: Driver,
    *,
    linger: int = LINGER_SECONDS,
    unjoined: Unjoined | None = None,
) -> None:
    """Start an arbiter and wait until one answers: this one, or another that was faster.

    It ends `linger` seconds after its last grant; 0: it does not end by itself. What is not given
    is as with the last arbiter of this directory.
    """
    settings = ArbiterSettings.of(directory)
    if unjoined is not None and unjoined != settings.unjoined:
        settings = ArbiterSettings(settings.users, unjoined)
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


def _command(directory: Path, driver: Driver, settings: ArbiterSettings) -> list[str]:
    """The arbiter's command line."""
    users = _users_file(settings)
    options = ["--state", str(directory), "--nvml", str(driver.nvml)]
    options += ["--unjoined", str(settings.unjoined)]
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
