"""Slices that containers get by name: `docker run --device aliquot.io/slice=NAME`.

A published slice is a kept grant of the machine's arbiter and a CDI device of the same name. All
containers that name it share it. Both stay until somebody deletes the slice. A reboot ends the
grant and may empty the folder of the device; `restore` makes both anew, on the same GPUs. Without
its grant a device cannot start a container: the source of a mount is missing.

A published size is a CDI device alone. Each container that names it gets a grant of its own when it
starts, by the hook in the device (`hook`). A runtime that ran no hook would leave the container
with an empty folder instead of a grant, and its programs without a GPU.
"""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.containers import published, selinux
from aliquot.containers.cdi import FOLDER, CdiSpecs, device_name
from aliquot.containers.container_edits import Hook, check_sources, grant_edits, prepare_edits
from aliquot.containers.device_nodes import provide_gpu_nodes
from aliquot.containers.hook import name_prefix
from aliquot.containers.published import PublishedSize, PublishedSlice
from aliquot.devices import read_inventory
from aliquot.devices.device_location import read_locations
from aliquot.model import Life, check_name
from aliquot.model.errors import (
    AliquotError,
    DriverError,
    InvalidValueError,
    NameInUseError,
    NoSuchGrantError,
    NotOwnerError,
)
from aliquot.slices import arbiter_process, check_machine, control, state_directory
from aliquot.slices.grant_creation import make_grant
from aliquot.slices.named_gpus import with_named_gpus

if TYPE_CHECKING:
    from aliquot.containers.container_edits import ContainerEdits
    from aliquot.devices import Driver, Shape
    from aliquot.model import Grant, Request
    from aliquot.slices import NewGrant, StateDirectory

KIND = "slice"
HOME = Path("/var/lib/aliquot")

_POLL_SECONDS = 0.02
_OTHERS = re.compile(r".+\.\d+\.\d+\.\d+|(whole|shared|sliced)(-.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """A machine whose containers get slices. `home` has what must outlive a reboot."""

    state: StateDirectory
    driver: Driver
    home: Path


@dataclass(frozen=True, slots=True)
class ListedSlice:
    """A published slice and its grant; None: the grant is missing."""

    slice: PublishedSlice
    grant: Grant | None


@dataclass(frozen=True, slots=True)
class ListedSize:
    """A published size and the grants of its containers."""

    size: PublishedSize
    grants: tuple[Grant, ...]


def open_host(shape: Shape | None) -> ContainerHost:
    """This machine, checked. NotOwnerError if its arbiter is root's, and this user is not."""
    state, driver = check_machine(shape, None, os.environ)
    if state_directory.belongs_to_root(state.directory):
        raise NotOwnerError(
            "only root makes slices for the containers of this machine",
            "Run the command as root: sudo aliquot slice",
        )
    home = home_of(state)
    state_directory.make_directory(home)
    return ContainerHost(state, driver, home)


def home_of(state: StateDirectory) -> Path:
    """Where it is stored what is published: for root's arbiter a folder that outlives a reboot."""
    return HOME if state.directory == state_directory.SYSTEM else state.directory / "containers"


def create(
    host: ContainerHost, request: Request, name: str, cdi_dir: Path
) -> tuple[PublishedSlice, NewGrant]:
    """Make a kept grant and publish its device. If one of the two fails, neither is left."""
    check_name(name)
    check_device(name)
    made = None
    try:
        with published.changing(host.home) as known:
            _refuse_known(known, name)
            common = common_edits(host)
            made = make_grant(host.state.directory, host.driver, request, name, name, kept=True)
            slices = tuple(request.slice_of(one.gpu) for one in made.gpus)
            one = PublishedSlice(name, slices, cdi_dir.absolute())
            _write_spec(host, one, common)
            known.slices[name] = one
    except BaseException:  # an interrupt, too: nobody would know of the grant
        if made is not None:
            CdiSpecs(cdi_dir.absolute()).remove(KIND, name)
            control.end(host.state.directory, name)
        raise
    return one, made


def publish(host: ContainerHost, request: Request, name: str, cdi_dir: Path) -> PublishedSize:
    """Publish a size. The arbiter stays from now on, also without grants: hooks start none."""
    check_name(name)
    check_device(name)
    one = PublishedSize(name, request, cdi_dir.absolute())
    with published.changing(host.home) as known:
        _refuse_known(known, name)
        _keep_arbiter(host)
        gpus = [shared.gpu for shared in control.status(host.state.directory).gpus]
        with_named_gpus(request, gpus)  # names that mean no GPU are refused now
        _write_size(host, one, common_edits(host))
        known.sizes[name] = one
    return one


def delete(host: ContainerHost, name: str) -> bool:
    """Remove the device and end the grant; whether it is gone, because no process is in it.

    Containers of a size keep their grants. A slice that is not in the list is deleted too: the
    command that made it was killed, or the list was removed.
    """
    with published.changing(host.home) as known:
        if size := known.sizes.pop(name, None):
            CdiSpecs(size.cdi_dir).remove(KIND, name)
            return True
        arbiter_process.revive(host.state)
        one = known.slices.get(name)
        if one is None and not _is_unlisted(host, name):
            raise NoSuchGrantError(
                f"there is no slice named {name}", "To see the slices: aliquot slice list"
            )
        CdiSpecs(FOLDER if one is None else one.cdi_dir).remove(KIND, name)
        try:
            ended = control.end(host.state.directory, name)
        except control.NoArbiterError:  # and no grant is left
            ended = True
        known.slices.pop(name, None)
    return ended


def listed(state: StateDirectory) -> tuple[list[ListedSlice], list[ListedSize]]:
    """All published slices and sizes of a machine, with their grants."""
    known = published.read(home_of(state))
    grants = _kept_grants(state) if known.slices or known.sizes else {}
    slices = [ListedSlice(one, grants.get(one.name)) for one in known.slices.values()]
    running: dict[str, list[Grant]] = {name: [] for name in known.sizes}
    for grant in grants.values():
        sizes = [size for size in known.sizes if grant.name.startswith(name_prefix(size))]
        if grant.owner_pid is not None and sizes:
            running[max(sizes, key=len)].append(grant)
    return slices, [ListedSize(one, tuple(running[one.name])) for one in known.sizes.values()]


def restore(host: ContainerHost, wait_seconds: float = 0) -> dict[str, AliquotError]:
    """Have the grant and the device of all that is published; why not, by name.

    Call it after a reboot, and after an update of the driver. If no arbiter answers within
    `wait_seconds`, it starts one.
    """
    failed: dict[str, AliquotError] = {}
    with published.changing(host.home) as known:
        if not known.slices and not known.sizes:
            return failed
        _await_arbiter(host, wait_seconds)
        if known.sizes:
            _keep_arbiter(host)
        common = common_edits(host)
        grants = _kept_grants(host.state)
        for one in known.slices.values():
            try:
                if one.name not in grants:
                    control.make(host.state.directory, one.name, one.slices, kept=True)
                _write_spec(host, one, common)
            except AliquotError as error:
                failed[one.name] = error
        for size in known.sizes.values():
            try:
                _write_size(host, size, common)
            except AliquotError as error:
                failed[size.name] = error
    return failed


def device_of(name: str) -> str:
    """What a container names to get the slice."""
    return device_name(KIND, name)


def check_device(name: str) -> None:
    """InvalidValueError if a valid name of a grant is not valid for a CDI device, or is taken.

    The pool and the node agent end grants with names of their kinds that they do not know.
    """
    if not name[-1].isalnum():
        raise InvalidValueError(
            f"{name!r} is not a valid name for a device", "End it with a letter or digit."
        )
    if _OTHERS.fullmatch(name):
        raise InvalidValueError(
            f"{name!r} is not a valid name for a slice: workers of jobs and pods have such names",
            "Choose a name without numbers between dots that begins with another word.",
        )


def common_edits(host: ContainerHost) -> ContainerEdits:
    """What all containers of the machine get."""
    library = host.home / "library"
    state_directory.make_directory(library)
    if selinux.is_on():
        selinux.label_for_containers([host.state.directory, host.home])
    if host.driver.shape is None:
        provide_gpu_nodes(Path("/dev"), Path("/proc"))
    edits = prepare_edits(host.driver, library)
    check_sources(edits, Path("/"))
    return edits


def _write_spec(host: ContainerHost, one: PublishedSlice, common: ContainerEdits) -> None:
    folder = host.state.directory / state_directory.KEPT / one.name
    edits = common + grant_edits(folder, _minors(host, [part.gpu_uuid for part in one.slices]))
    CdiSpecs(one.cdi_dir).write(KIND, one.name, edits)


def _write_size(host: ContainerHost, size: PublishedSize, common: ContainerEdits) -> None:
    """The device has the nodes of all GPUs that its containers may get: the hook chooses later."""
    placeholder = host.home / published.PLACEHOLDER
    state_directory.make_directory(placeholder)
    program = ("-I", "-m", "aliquot.containers.hook")
    arguments = (sys.executable, *program, size.name, str(host.state.directory), str(host.home))
    hook = Hook("createRuntime", Path(sys.executable), arguments)
    gpus = [one.gpu for one in control.status(host.state.directory).gpus]
    which = with_named_gpus(size.request, gpus).which
    uuids = [gpu.uuid for gpu in gpus if which.allows(gpu)]
    edits = common + grant_edits(placeholder, _minors(host, uuids))
    CdiSpecs(size.cdi_dir).write(KIND, size.name, replace(edits, hooks=(hook,)))


def _minors(host: ContainerHost, uuids: list[str]) -> list[int]:
    """The numbers of the device nodes of these GPUs; simulated GPUs have none."""
    if host.driver.shape is not None:
        return []
    found = {gpu.uuid: gpu for gpu in read_inventory(host.driver).gpus}
    if lost := [uuid for uuid in uuids if uuid not in found]:
        raise DriverError(f"this machine has no GPU {', '.join(lost)} any more")
    locations = read_locations(host.driver, [found[uuid] for uuid in uuids])
    return [locations[uuid].minor for uuid in uuids]


def _kept_grants(state: StateDirectory) -> dict[str, Grant]:
    try:
        grants = control.status(state.directory).grants
    except control.NoArbiterError:
        return {}
    return {one.name: one for one in grants if one.life is Life.KEPT}


def _is_unlisted(host: ContainerHost, name: str) -> bool:
    """Whether there is a grant such as `create` makes, which workers' and containers' are not."""
    check_name(name)
    check_device(name)
    grant = _kept_grants(host.state).get(name)
    return grant is not None and grant.owner_pid is None and grant.owner_uid == os.geteuid()


def _await_arbiter(host: ContainerHost, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not control.answers(host.state.directory) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    arbiter_process.ensure(host.state.directory, host.driver)


def _keep_arbiter(host: ContainerHost) -> None:
    """Have an arbiter that does not end by itself."""
    directory = host.state.directory
    if not control.answers(directory):
        arbiter_process.start(directory, host.driver, linger=0)
    status = control.status(directory)
    if status.answer.get("linger_seconds") and not status.answer.get("foreground"):
        arbiter_process.restart(directory, host.driver, linger=0)


def _refuse_known(known: published.Published, name: str) -> None:
    if name in known.slices or name in known.sizes:
        raise NameInUseError(
            f"there is already a slice named {name}",
            f"Choose another name, or delete it: aliquot slice delete {name}",
        )
