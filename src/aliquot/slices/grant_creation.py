"""Making a grant on this machine: read the arbiter's status, choose GPUs, make the grant."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.devices import check_version, read_inventory
from aliquot.model import Isolation, Priority, check_name
from aliquot.model.errors import AliquotError, InstanceError, NameInUseError, NoCapacityError
from aliquot.slices import arbiter_process, control, state_directory, user_limits
from aliquot.slices.arbiter_status import SharedGpu
from aliquot.slices.gpu_choice import find_gpus, judge_gpus
from aliquot.slices.named_gpus import with_named_gpus
from aliquot.slices.tenant import refuse_nested
from aliquot.slices.visible_devices import VISIBLE, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aliquot.devices import Driver, Shape
    from aliquot.model import Gpu, Grant, Request, Slice
    from aliquot.slices.gpu_choice import GpuVerdict
    from aliquot.slices.state_directory import StateDirectory

_TRIES = 16


@dataclass(frozen=True, slots=True)
class NewGrant:
    """A grant that this process has made."""

    name: str
    marked: str  # as `control.make` names it
    gpus: tuple[SharedGpu, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """Where a grant would be made; `refusal` says why none would, and then `gpus` is empty."""

    gpus: tuple[Gpu, ...]
    verdicts: tuple[GpuVerdict, ...]
    grants: tuple[Grant, ...]
    refusal: AliquotError | None


@dataclass(frozen=True, slots=True)
class OpenGrant:
    """A new grant, and the environment in which a program of its owner's runs in it."""

    state: StateDirectory
    made: NewGrant
    environment: dict[str, str]


def check_machine(
    shape: Shape | None, name: str | None, environment: Mapping[str, str]
) -> tuple[StateDirectory, Driver]:
    """Check all that can be checked before a grant of that name is made; where it would be made."""
    refuse_nested(environment)
    if name is not None:
        check_name(name)
    state = state_directory.locate(shape)
    driver = state.driver()
    if shape is None:
        check_version(driver)
    state_directory.prepare(state)
    return state, driver


def make_grant(  # noqa: PLR0913 - what a grant is, and whose
    state: Path,
    driver: Driver | None,
    request: Request,
    name: str | None,
    command: str,
    *,
    kept: bool = False,
    pid: int | None = None,
) -> NewGrant:
    """Make a grant; without a `name` it is named after the command.

    This process owns it; a `kept` one has no owner, and ends with the process `pid`, if given.
    Without a `driver` it starts no arbiter.

    Another process may take the capacity or the name between our status request and our make
    request; then both are repeated. An arbiter that was just ending is started again.
    """
    names = grant_names(command, os.getpid()) if name is None else iter([name])
    wanted = next(names)
    for tries_left in reversed(range(_TRIES)):
        if driver is not None:
            arbiter_process.ensure(state, driver)
        try:
            return _make(state, request, wanted, kept=kept, pid=pid)
        except NameInUseError as error:
            try:
                wanted = next(names)
            except StopIteration:
                raise name_in_use(wanted) from error
        except (control.NoArbiterError, control.CapacityRefusedError):
            if not tries_left:
                raise
    raise name_in_use(wanted)


def preview_grant(
    state: StateDirectory, driver: Driver, request: Request, name: str | None
) -> Preview:
    """What `make_grant` would find now. It makes nothing, and starts no arbiter."""
    if request.isolation is Isolation.HARDWARE:
        refusal = InstanceError(
            "what --isolation hardware gets is known only when it is made",
            "Leave out --dry-run, or --isolation.",
        )
        return Preview((), (), (), refusal)
    arbiter_process.revive(state)
    try:
        status = control.status(state.directory)
    except control.NoArbiterError:
        found = read_inventory(driver).gpus
        gpus = tuple(SharedGpu(gpu, 0, gpu.processes) for gpu in found if not gpu.mig)
        grants: tuple[Grant, ...] = ()
        uid = os.geteuid()
    else:
        gpus, grants, uid = status.gpus, status.grants, status.asker_uid
    request = with_named_gpus(request, [one.gpu for one in gpus])
    request = request.of_owner(uid, name)
    named = os.environ.get(VISIBLE)
    visible = visible_gpus(gpus, named)
    verdicts = tuple(judge_gpus(request, visible, grants))
    try:
        if name is not None and any(grant.name == name for grant in grants):
            raise name_in_use(name)
        chosen = _choose(request, gpus, grants, named)
        _check_limits(state, request, chosen, uid)
    except AliquotError as error:
        return Preview((), verdicts, grants, error)
    return Preview(tuple(chosen), verdicts, grants, None)


def without_grants(gpus: Sequence[SharedGpu]) -> list[SharedGpu]:
    """The GPUs as if nobody used them."""
    return [replace(one, granted_bytes=0, strangers=(), host_elsewhere=0) for one in gpus]


def _check_limits(state: StateDirectory, request: Request, gpus: Sequence[Gpu], uid: int) -> None:
    try:
        report = user_limits.read_limits(state.directory)
    except control.NoArbiterError:
        return
    user_limits.check(report, uid, [_charged(request, gpu) for gpu in gpus])


def _charged(request: Request, gpu: Gpu) -> Slice:
    """What counts against its user's limits: all of a GPU on which it is alone."""
    part = request.slice_of(gpu)
    if not request.neighbours.alone:
        return part
    normal = Priority.NORMAL
    return replace(part, memory_bytes=gpu.memory_bytes, compute_percent=100, priority=normal)


def _make(state: Path, request: Request, name: str, *, kept: bool, pid: int | None) -> NewGrant:
    status = control.status(state)
    asked = request.of_owner(status.asker_uid, name)
    # A container is given the device nodes of whole GPUs.
    offered = [one for one in status.gpus if not kept or one.gpu.instance_of is None]
    gpus = _choose(asked, offered, status.grants, os.environ.get(VISIBLE))
    slices = [request.slice_of(gpu) for gpu in gpus]
    control.check_swap(status, request)
    marked = control.make(
        state,
        name,
        slices,
        kept=kept,
        pid=pid,
        together=request.together,
        neighbours=request.neighbours,
        swap=bool(request.swap),
        park_after=request.park_after,
        swap_wait=request.swap_wait,
        overcommit=request.overcommit,
        spill=request.spill,
        isolation=request.isolation,
    )
    chosen = {gpu.uuid for gpu in gpus}
    return NewGrant(name, marked, tuple(one for one in status.gpus if one.gpu.uuid in chosen))


def _choose(
    request: Request,
    gpus: Sequence[SharedGpu],
    grants: Sequence[Grant],
    named: str | None,
) -> list[Gpu]:
    request = with_named_gpus(request, [one.gpu for one in gpus])
    try:
        return find_gpus(request, visible_gpus(gpus, named), grants)
    except NoCapacityError as error:
        if named is None:
            raise
        note = f"Only the GPUs in {VISIBLE}={named} were considered."
        raise NoCapacityError(error.message, f"{error.hint}\n  {note}") from error


def name_in_use(name: str) -> NameInUseError:
    """The error for a name that another grant has."""
    return NameInUseError(
        f"there is already a grant named {name}",
        "Choose another --name. To see the grant: aliquot ps",
    )


def grant_names(command: str, pid: int) -> Iterator[str]:
    """Names for a grant without a name, from its command and the process id."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(command).name, flags=re.ASCII)
    base = base.lstrip("._-")[:40] or "grant"
    yield f"{base}-{pid}"
    yield from (f"{base}-{pid}-{number}" for number in range(2, _TRIES + 1))
