"""All arbiters that run here: this machine's, and those of simulated machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import NoSuchGrantError
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
    """Ask all arbiters that run here; one that died and left grants of this user is restarted."""
    found = []
    for state in arbiter_process.running():
        try:
            found.append(LocalMachine(state, control.status(state.directory)))
        except control.NoArbiterError:
            continue  # it ended in between
    return found


def find_grant(found: Sequence[LocalMachine], name: str) -> tuple[LocalMachine, Grant]:
    """The grant of that name; one of this machine comes before those of simulated machines."""
    named = [(one, grant) for one in found for grant in one.status.grants if grant.name == name]
    own = [pair for pair in named if pair[0].state.shape is None]
    match own or named:
        case [only]:
            return only
        case []:
            raise NoSuchGrantError(f"there is no grant named {name}", _existing(found))
        case several:
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
    ]
    return f"Existing grants: {', '.join(sorted(names))}." if names else "There are no grants."
