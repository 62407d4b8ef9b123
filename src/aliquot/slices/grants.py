"""Making a grant on this machine: ask the arbiter what there is, choose, make."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.model.errors import NameInUseError, NoCapacityError
from aliquot.slices import arbiter, control
from aliquot.slices.choose import choose
from aliquot.slices.visible import VISIBLE, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.devices import Driver
    from aliquot.model import Gpu, Request

_TRIES = 16


@dataclass(frozen=True, slots=True)
class Made:
    """A grant that this process owns."""

    name: str
    marked: str  # as `control.make` names it
    gpus: tuple[control.SharedGpu, ...]


def make_grant(
    state: Path, driver: Driver, request: Request, name: str | None, command: str
) -> Made:
    """Make a grant; without a `name` it gets one from the command's.

    Another maker may take the room, or the name, between our look and our word; then look again.
    An arbiter that was just ending is started anew.
    """
    names = _names(command) if name is None else iter([name])
    wanted = next(names)
    for tries_left in reversed(range(_TRIES)):
        arbiter.ensure(state, driver)
        try:
            return _make(state, request, wanted)
        except NameInUseError as error:
            try:
                wanted = next(names)
            except StopIteration:
                raise _name_in_use(wanted) from error
        except (control.NoArbiterError, control.CapacityRefusedError):
            if not tries_left:
                raise
    raise _name_in_use(wanted)


def _make(state: Path, request: Request, name: str) -> Made:
    seen = control.status(state)
    gpus = _choose(request, seen, os.environ.get(VISIBLE))
    marked = control.make(state, name, [request.slice_of(gpu) for gpu in gpus])
    chosen = {gpu.uuid for gpu in gpus}
    return Made(name, marked, tuple(one for one in seen.gpus if one.gpu.uuid in chosen))


def _choose(request: Request, seen: control.Status, named: str | None) -> list[Gpu]:
    try:
        return choose(request, visible(seen.gpus, named), seen.grants)
    except NoCapacityError as error:
        if named is None:
            raise
        note = f"Only the GPUs of {VISIBLE}={named} were looked at."
        raise NoCapacityError(error.message, f"{error.hint}\n  {note}") from error


def _name_in_use(name: str) -> NameInUseError:
    return NameInUseError(
        f"there is a grant named {name}", "Choose another --name, or see it with: aliquot ps"
    )


def _names(command: str) -> Iterator[str]:
    """Names for a grant that was given none, by its command and the process."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(command).name, flags=re.ASCII)
    base = base.lstrip("._-")[:40] or "grant"
    yield f"{base}-{os.getpid()}"
    yield from (f"{base}-{os.getpid()}-{number}" for number in range(2, _TRIES + 1))
