"""Every machine with a running arbiter that we can see: this one, and simulated ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import NoSuchGrantError
from aliquot.slices import arbiter, control

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Grant
    from aliquot.slices.control import Status
    from aliquot.slices.state import State


@dataclass(frozen=True, slots=True)
class Machine:
    """A state directory with an arbiter, and what it knows."""

    state: State
    seen: Status

    def __str__(self) -> str:
        shape = self.state.shape
        return "this machine" if shape is None else f"simulated {shape}"


def machines() -> list[Machine]:
    """Ask all arbiters that run here; one that died and left grants of ours is started again."""
    found = []
    for state in arbiter.running():
        try:
            found.append(Machine(state, control.status(state.directory)))
        except control.NoArbiterError:
            continue  # it ended between our two looks
    return found


def find_grant(found: Sequence[Machine], name: str) -> tuple[Machine, Grant]:
    """The one grant of that name. This machine's own comes before those of simulated ones."""
    holders = [(one, grant) for one in found for grant in one.seen.grants if grant.name == name]
    own = [holder for holder in holders if holder[0].state.shape is None]
    match own or holders:
        case [only]:
            return only
        case []:
            raise NoSuchGrantError(f"there is no grant named {name}", _which_there_are(found))
        case several:
            places = ", ".join(f"{machine} ({machine.state.directory})" for machine, _ in several)
            raise NoSuchGrantError(
                f"{len(several)} grants are named {name}: on {places}",
                "Choose with --simulate MODEL:COUNT, or by ALIQUOT_STATE=FOLDER.",
            )


def _which_there_are(found: Sequence[Machine]) -> str:
    names = [
        grant.name if machine.state.shape is None else f"{grant.name} ({machine})"
        for machine in found
        for grant in machine.seen.grants
    ]
    return f"There are: {', '.join(sorted(names))}." if names else "There are no grants."
