"""How containers of this node get their grants: as CDI devices, or by mounts and device nodes.

CDI where the runtime is known to have it, because a runtime without it ignores the devices, and the
container would start without its GPU. `Cdi.AUTO` asks the Node object: containerd from 2.0 on and
CRI-O from 1.28 on have CDI switched on, and kubelets pass the devices on from 1.29 on. containerd
1.7 has it only if its configuration says so: `Cdi.ALWAYS`. Mounts work everywhere.

The choice is made when a container is admitted, and is part of its grant: the kubelet tells the
runtime the same whenever the container starts again, also after a reboot, which empties the folder
of CDI specs. So there is a spec for every grant whose container was told of it, before the kubelet
can start the container, and it goes with the grant. A container has two devices: aliquot.io/driver,
which all get, and aliquot.io/grant=NAME, with its own grant and the driver's files of the
capabilities that it wants. What it wants is known when it starts, and a spec is written anew then;
mounts are told when the kubelet admits it, so with them it gets all. Device
nodes that the kubelet was told stay, also if the driver has since given their numbers to other
GPUs: such a container is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.containers.cdi import device_name
from aliquot.model import Cdi
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from aliquot.containers.cdi import CdiSpecs
    from aliquot.containers.container_edits import ContainerEdits
    from aliquot.kubernetes.api.objects import NodeInfo
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant

OLDEST_KUBELET = (1, 29)
OLDEST_RUNTIMES = {"containerd": (2, 0), "cri-o": (1, 28)}

_DRIVER, _GRANT = "driver", "grant"  # kinds of CDI devices
_ALL = "all"  # the one driver device

_RUNTIME = re.compile(r"([a-z-]+)://v?(\d+)\.(\d+)")
_VERSION = re.compile(r"v?(\d+)\.(\d+)")

_log = structlog.get_logger(__name__)


class NoCdiError(AliquotError):
    """A container was admitted with CDI devices, and the runtime has no CDI any more."""


class MovedGpuError(AliquotError):
    """A container was admitted with device nodes that its GPUs do not have any more."""


def has_cdi(info: NodeInfo) -> bool:
    """Whether a node's kubelet and runtime hand CDI devices to containers."""
    kubelet = _VERSION.match(info.kubelet_version)
    runtime = _RUNTIME.match(info.container_runtime_version)
    if kubelet is None or runtime is None or runtime[1] not in OLDEST_RUNTIMES:
        return False
    return (int(kubelet[1]), int(kubelet[2])) >= OLDEST_KUBELET and (
        int(runtime[2]),
        int(runtime[3]),
    ) >= OLDEST_RUNTIMES[runtime[1]]


class Injection:
    """What the kubelet is told for each grant, and the CDI specs that belong to it.

    `minors` gives the numbers of the device nodes that a grant's GPUs have now.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        setting: Cdi,
        specs: CdiSpecs,
        common: Callable[[], ContainerEdits],
        own: Callable[[ContainerGrant, Path], ContainerEdits],
        folder: Callable[[ContainerGrant], Path],
        check: Callable[[], None],
        minors: Callable[[ContainerGrant], tuple[int, ...]],
    ) -> None:
        self._setting = setting
        self._specs = specs
        self._common = common
        self._own = own
        self._folder = folder
        self._check = check
        self.minors = minors
        self._runtime = ""
        self.uses_cdi = setting is Cdi.ALWAYS

    @property
    def way(self) -> str:
        """How the next container gets its grant: `cdi` or `mounts`."""
        return "cdi" if self.uses_cdi else "mounts"

    def observe(self, info: NodeInfo) -> bool:
        """Take in what the Node object says about its runtime; whether that changed the way."""
        before, self._runtime = self._runtime, info.container_runtime_version
        used = self.uses_cdi
        self.uses_cdi = self._setting is Cdi.ALWAYS or (self._setting is Cdi.AUTO and has_cdi(info))
        if before != self._runtime:
            _log.info(
                "how containers get their GPUs",
                way=self.way,
                runtime=self._runtime,
                kubelet=info.kubelet_version,
                setting=str(self._setting),
            )
        return used != self.uses_cdi

    def cdi_devices(self, grant: ContainerGrant) -> tuple[str, ...]:
        """The CDI devices of the grant's container, which exist now; none if it gets mounts."""
        if not grant.cdi:
            return ()
        self._write_specs(grant)
        return device_name(_DRIVER, _ALL), device_name(_GRANT, grant.name)

    def edits(self, grant: ContainerGrant) -> ContainerEdits:
        """Everything that the grant's container gets."""
        return self._common() + self._own(grant, self._folder(grant))

    def prepare(self, grant: ContainerGrant) -> None:
        """Make sure that the runtime finds what it was told, before the container starts."""
        self._check()
        if not grant.cdi:
            self._check_minors(grant)
            return
        if self._runtime and not self.uses_cdi and self._setting is Cdi.AUTO:
            raise NoCdiError(
                f"{grant.owner} was admitted with CDI devices, which {self._runtime} ignores",
                "Delete the pod, so that its next one gets mounts.",
            )
        self._write_specs(grant)

    def restore(self, saved: SavedAllocations) -> None:
        """Have the specs of these grants and no others: a reboot empties the folder.

        A grant that has a spec gets CDI devices, whatever its record says: an agent that knew
        nothing of CDI may have written the record anew.
        """
        self.keep_only(saved.allocations.saved())
        try:
            with saved.changing() as allocations:
                for grant in allocations.saved():
                    if not grant.cdi and self._specs.has(_GRANT, grant.name):
                        allocations.change(msgspec.structs.replace(grant, cdi=True))
        except OSError as error:  # the specs stay as they are
            _log.error("the checkpoint cannot be written", why=str(error))
        for grant in saved.allocations.saved():
            try:
                if grant.cdi:
                    self._write_specs(grant)
            except AliquotError as error:  # its container cannot start, and is told so then
                _log.error("a CDI spec is missing", grant=grant.name, why=error.message)

    def keep_only(self, grants: Iterable[ContainerGrant]) -> None:
        """Remove the specs of all other grants."""
        try:
            self._specs.keep_only(_GRANT, {grant.name for grant in grants})
        except OSError as error:
            _log.error("CDI specs cannot be removed", why=str(error))

    def _check_minors(self, grant: ContainerGrant) -> None:
        """MovedGpuError if the device nodes that the kubelet was told are other GPUs' now."""
        now = self.minors(grant)
        if grant.minors not in {None, now}:
            raise MovedGpuError(
                f"{grant.owner} was admitted with {_nodes(grant.minors or ())}, and its GPUs have"
                f" {_nodes(now)} since the driver was loaded again",
                "Delete the pod, so that its next one gets the right device nodes.",
            )

    def _write_specs(self, grant: ContainerGrant) -> None:
        """Have the specs as they should be, or none of the grant: its container cannot start then.

        A kubelet that has just started does not ask the agent before it starts a container, which
        would get what an old spec says.
        """
        try:
            common = self._common()
            own = common.of_capabilities(grant.capabilities)
            own += self._own(grant, self._folder(grant))
            self._specs.write(_GRANT, grant.name, own)
            self._specs.write(_DRIVER, _ALL, common.always())
        except AliquotError:
            try:
                self._specs.remove(_GRANT, grant.name)
            except OSError as error:
                _log.error("an old CDI spec stays", grant=grant.name, why=str(error))
            raise


def _nodes(minors: Iterable[int]) -> str:
    return " and ".join(f"/dev/nvidia{minor}" for minor in minors)
