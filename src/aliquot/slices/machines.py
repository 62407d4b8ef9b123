"""All arbiters that run here: this machine's, and those of simulated machines."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model import check_name
from aliquot.model.errors import InvalidValueError, NoSuchGrantError
from aliquot.slices import arbiter_process, control

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Grant
    from aliquot.slices.control import Status
    from aliquot.slices.state_directory import StateDirectory


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """A state directory with a running arbiter, and the arbiter's status."""

    state: StateDirectory
    status: Status

    def __str__(self) -> str:
        shape = self.state.shape
        return "this machine" if shape is None else f"simulated {shape}"


def machines() -> list[LocalMachine]:
    """Ask all arbiters that run here; one that died and left grants of this user is restarted.

    SilentArbiterError if there are arbiters and none answers.
    """
    found = []
    silent = None
    for state in arbiter_process.running():
        try:
            found.append(LocalMachine(state, control.status(state.directory)))
        except control.SilentArbiterError as error:
            silent = error
        except control.NoArbiterError:
            continue  # it ended in between
    if silent is not None and not found:
        raise silent
    return found


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
            raise NoSuchGrantError(f"there is no grant named {name}", _existing(found))
        case several:
            if len({grant.name for _, grant in several}) > 1:
                names = sorted({grant.name for _, grant in several})
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
        grant.name if machine.state.shape is None else f"{grant.name} ({machine})"
        for machine in found
        for grant in machine.status.grants
        if not grant.is_hidden
    ]
    return f"Existing grants: {', '.join(sorted(names))}." if names else "There are no grants."
