"""Making a grant on this machine: read the arbiter's status, choose GPUs, make the grant."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.model.errors import NameInUseError, NoCapacityError
from aliquot.slices import arbiter_process, control
from aliquot.slices.gpu_choice import find_gpus
from aliquot.slices.visible_devices import VISIBLE, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.devices import Driver
    from aliquot.model import Gpu, Request

_TRIES = 16


@dataclass(frozen=True, slots=True)
class NewGrant:
    """A grant that this process has made and owns."""

    name: str
    marked: str  # as `control.make` names it
    gpus: tuple[control.SharedGpu, ...]


def make_grant(
    state: Path, driver: Driver, request: Request, name: str | None, command: str
) -> NewGrant:
    """Make a grant; without a `name` it is named after the command.

    Another process may take the capacity or the name between our status request and our make
    request; then both are repeated. An arbiter that was just ending is started again.
    """
    names = _names(command) if name is None else iter([name])
    wanted = next(names)
    for tries_left in reversed(range(_TRIES)):
        arbiter_process.ensure(state, driver)
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


def _make(state: Path, request: Request, name: str) -> NewGrant:
    status = control.status(state)
    gpus = _choose(request, status, os.environ.get(VISIBLE))
    slices = [request.slice_of(gpu) for gpu in gpus]
    marked = control.make(state, name, slices, together=request.together)
    chosen = {gpu.uuid for gpu in gpus}
    return NewGrant(name, marked, tuple(one for one in status.gpus if one.gpu.uuid in chosen))


def _choose(request: Request, status: control.Status, named: str | None) -> list[Gpu]:
    try:
        return find_gpus(request, visible_gpus(status.gpus, named), status.grants)
    except NoCapacityError as error:
        if named is None:
            raise
        note = f"Only the GPUs in {VISIBLE}={named} were considered."
        raise NoCapacityError(error.message, f"{error.hint}\n  {note}") from error


def _name_in_use(name: str) -> NameInUseError:
    return NameInUseError(
        f"there is already a grant named {name}",
        "Choose another --name. To see the grant: aliquot ps",
    )


def _names(command: str) -> Iterator[str]:
    """Names for a grant without a name, from its command and the process id."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(command).name, flags=re.ASCII)
    base = base.lstrip("._-")[:40] or "grant"
    yield f"{base}-{os.getpid()}"
    yield from (f"{base}-{os.getpid()}-{number}" for number in range(2, _TRIES + 1))
