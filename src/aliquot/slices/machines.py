"""All arbiters that run here: this machine's, and those of simulated machines."""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model import check_name
from aliquot.model.errors import InvalidValueError, NoSuchGrantError
from aliquot.slices import arbiter_process, control, state_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.devices import Shape
    from aliquot.model import Grant
    from aliquot.slices.arbiter_status import Status
    from aliquot.slices.state_directory import StateDirectory

_RESTART_SECONDS = 5.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """A state directory with a running arbiter, and the arbiter's status."""

    state: StateDirectory
    status: Status

    def __str__(self) -> str:
        shape = self.state.shape
        return "this machine" if shape is None else f"simulated {shape}"


@dataclass(frozen=True, slots=True)
class SilentMachine:
    """A state directory whose arbiter runs and does not answer."""

    state: StateDirectory
    error: control.SilentArbiterError


@dataclass(frozen=True, slots=True)
class Survey:
    """All arbiters that run here: those that answer, and those that do not."""

    found: tuple[LocalMachine, ...] = ()
    silent: tuple[SilentMachine, ...] = ()


def survey(shape: Shape | None = None, timeout: float | None = None) -> Survey:
    """Ask all arbiters that run here; one that died and left grants of this user is restarted.

    `shape`: only the arbiter of that simulated machine. `timeout`: for each, in seconds.
    """
    found, silent = [], []
    for state in state_directory.all_directories():
        if shape not in {None, state.shape}:
            continue
        try:
            status = _status(state, timeout)
        except control.SilentArbiterError as error:
            silent.append(SilentMachine(state, error))
        except control.NoArbiterError:
            continue
        else:
            found.append(LocalMachine(state, status))
    return Survey(tuple(found), tuple(silent))


def _status(state: StateDirectory, timeout: float | None) -> Status:
    """Ask one arbiter; again while its parent restarts it, as if it was never away."""
    deadline = time.monotonic() + _RESTART_SECONDS
    while True:
        arbiter_process.revive(state)
        try:
            return control.status(state.directory, timeout)
        except control.NoArbiterError:
            if time.monotonic() > deadline or not arbiter_process.has_parent(state.directory):
                raise
            time.sleep(_POLL_SECONDS)


def local_machines() -> list[LocalMachine]:
    """The arbiters that answer; SilentArbiterError if there are arbiters and none answers."""
    asked = survey()
    if asked.silent and not asked.found:
        raise asked.silent[0].error
    return list(asked.found)


def check_address(text: str) -> str:
    """`NAME`, or `UID:NAME` from `USER:NAME` or `UID:NAME`; InvalidValueError otherwise."""
    user, colon, name = text.rpartition(":")
    check_name(name)
    if not colon:
        return name
    try:
        uid = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise InvalidValueError(
            f"there is no user {user!r} on this machine",
            f"Name the grant {name} of a user as USER:{name} or UID:{name}.",
        ) from error
    return name if uid == os.geteuid() else f"{uid}:{name}"


def shown_name(name: str) -> str:
    """The name of a grant for people: `USER:NAME` for `UID:NAME`, if the user has a name."""
    uid, colon, plain = name.rpartition(":")
    try:
        return f"{pwd.getpwuid(int(uid)).pw_name}:{plain}" if colon else name
    except KeyError:
        return name


def find_grant(found: Sequence[LocalMachine], name: str) -> tuple[LocalMachine, Grant]:
    """The grant of that name; one of this machine comes before those of simulated machines.

    `name` is as `check_address` returns it. A plain name also finds another user's grant, if this
    user may see it, has none of that name, and only one other has.
    """
    every = [(one, grant) for one in found for grant in one.status.grants if not grant.is_hidden]
    named = [pair for pair in every if pair[1].name == name]
    named = named or [pair for pair in every if pair[1].plain_name == name]
    own = [pair for pair in named if pair[0].state.shape is None]
    match own or named:
        case [only]:
            return only
        case []:
            raise NoSuchGrantError(f"there is no grant named {shown_name(name)}", _existing(found))
        case several:
            if len({grant.name for _, grant in several}) > 1:
                names = sorted({shown_name(grant.name) for _, grant in several})
                raise NoSuchGrantError(
                    f"{len(names)} users have a grant named {name}",
                    f"Choose one of {', '.join(names)}.",
                )
            places = ", ".join(f"{machine} ({machine.state.directory})" for machine, _ in several)
            raise NoSuchGrantError(
                f"{len(several)} grants are named {name}: on {places}",
                "Choose one with --simulate MODEL:COUNT or ALIQUOT_STATE=FOLDER.",
            )


def _existing(found: Sequence[LocalMachine]) -> str:
    names = [
        shown_name(grant.name) + (f" ({machine})" if machine.state.shape else "")
        for machine in found
        for grant in machine.status.grants
        if not grant.is_hidden
    ]
    return f"Existing grants: {', '.join(sorted(names))}." if names else "There are no grants."
