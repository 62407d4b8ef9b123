"""`aliquot suspend` and `resume` of commands of `aliquot run --swap`, which need no pool."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.devices import parse_shape
from aliquot.model import GrantState, Life
from aliquot.model.errors import AliquotError, ArbiterError, UnsupportedError
from aliquot.pool.client import connect
from aliquot.slices import control, moving
from aliquot.slices.checkpoint import CannotFreezeError, RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.devices import Shape
    from aliquot.model import Grant
    from aliquot.slices import LocalMachine

_WORKER = re.compile(r"[^.]+\.\d+\.\d+\.\d+")
_AGAIN = {
    "suspend": "It runs on as before. Try it again when the reason has gone.",
    "resume": "It stays suspended. Try it again when others have ended; who has what: aliquot ps",
}


def split_commands(names: Sequence[str], simulate: str | None) -> tuple[list[str], list[str]]:
    """The names of jobs, or of nothing, and those of commands that run and are no jobs."""
    shape = parse_shape(simulate) if simulate else None
    commands = [name for name in names if _is_command(name, shape) and not _is_job(name, shape)]
    return [name for name in names if name not in commands], commands


def change_command(name: str, verb: str, simulate: str | None) -> str:
    """Suspend or resume a command, and wait for it; a line that says so."""
    machine, grant = _find(name, parse_shape(simulate) if simulate else None)
    where, shown = machine.state.directory, slices.shown_name(grant.name)
    if not grant.is_swappable:
        raise UnsupportedError(
            f"command {shown} was not started with --swap: its memory cannot leave its GPU",
            "Start it with aliquot run --swap, or as a job with: aliquot submit",
        )
    is_suspended = grant.state is GrantState.PARKED and not grant.is_idle_parked
    if is_suspended == (verb == "suspend"):
        return f"{shown}: {'already suspended' if is_suspended else 'not suspended'}"
    try:
        if verb == "suspend":
            moving.freeze(where, grant.name)
            control.set_state(where, grant.name, GrantState.PARKED)
            return f"{shown}: suspended"
        moving.thaw(where, grant.name)
    except (CannotFreezeError, RetryLaterError) as error:
        raise ArbiterError(
            f"command {shown}: not {verb.removesuffix('e')}ed: {error.message}", _AGAIN[verb]
        ) from error
    return f"{shown}: resumed"


def _is_command(name: str, shape: Shape | None) -> bool:
    with suppress(AliquotError):
        grant = _find(name, shape)[1]
        return grant.life is Life.OWNED and _WORKER.fullmatch(grant.plain_name) is None
    return False


def _is_job(name: str, shape: Shape | None) -> bool:
    with suppress(AliquotError):  # no pool is up, or it has no such job
        return bool(connect(shape).members(name))
    return False


def _find(name: str, shape: Shape | None) -> tuple[LocalMachine, Grant]:
    return slices.find_grant(slices.survey(shape).found, slices.check_address(name))
