"""The agent's options, and what the node has: its driver and its GPUs when the agent starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.devices import (
    check_version,
    find_driver,
    find_driver_in,
    read_inventory,
    with_compat,
)
from aliquot.devices.device_location import read_locations
from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
from aliquot.kubernetes.node.grants.container_edits import (
    Host,
    edits_for,
    prepare_edits,
    resolve_on_node,
)
from aliquot.model import Unjoined
from aliquot.slices import state_directory

if TYPE_CHECKING:
    from aliquot.devices import Driver, Inventory, Shape
    from aliquot.devices.device_location import DeviceLocation
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.node.grants.checkpoint import CheckpointData
    from aliquot.kubernetes.node.grants.container_edits import CommonEdits, ContainerEdits
    from aliquot.kubernetes.node.grants.grant import ContainerGrant

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options of `aliquot node`.

    `state` is the arbiter's directory. `home` outlives a restart of the node: the checkpoint and
    the stand-ins that containers get. `driver_root` is where the agent sees the node's file system.
    `compat` is the node's folder with a newer CUDA library, for containers newer than its driver.
    """

    node: str
    presets: tuple[Preset, ...]
    shares: int = 2
    shape: Shape | None = None
    state: Path = state_directory.SYSTEM
    home: Path = Path("/var/lib/aliquot")
    kubelet: Path = Path("/var/lib/kubelet")
    driver_root: Path = ROOT
    compat: Path | None = None
    unjoined: Unjoined = Unjoined.REPORT
    kubeconfig: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - Prometheus and the kubelet ask from outside
    port: int = 9440


@dataclass(frozen=True, slots=True)
class NodeMachine:
    """A node's driver and GPUs as they were when the agent started."""

    driver: Driver
    inventory: Inventory
    attached: dict[str, DeviceLocation]
    common_edits: CommonEdits

    def edits_for(self, grant: ContainerGrant, folder: Path) -> ContainerEdits:
        """What the container of a grant gets; `folder` is the grant's."""
        minors = [self.attached[part.gpu].minor for part in grant.allocated]
        return edits_for(self.common_edits, folder, minors)


def read_machine(options: NodeOptions) -> NodeMachine:
    """Find the driver, read its GPUs, and prepare what all containers get."""
    where = state_directory.StateDirectory(options.state, options.shape)
    library = options.home / "library"
    for folder in (options.state, options.home, library):
        state_directory.make_directory(folder)
    if options.shape is not None:
        state_directory.make_directory(where.meeting_place)
        driver = where.driver()
    elif options.driver_root == ROOT:
        driver = find_driver()
    else:
        driver = find_driver_in(options.driver_root)
    if options.compat is not None:
        folder = options.driver_root / options.compat.relative_to(ROOT)
        driver = with_compat(driver, resolve_on_node(folder, options.driver_root))
    if options.shape is None:
        check_version(driver)
    inventory = read_inventory(driver, skip_lost=True)
    common = prepare_edits(driver, library, Host(root=options.driver_root))
    return NodeMachine(driver, inventory, read_locations(driver, inventory.gpus), common)


def restore_allocations(
    options: NodeOptions, inventory: Inventory, checkpoint: CheckpointData
) -> NodeAllocations:
    """The allocations of the checkpoint, on the GPUs that this node has or has had."""
    gpus = [HostGpu(gpu.uuid, gpu.index, gpu.memory_bytes) for gpu in inventory.gpus]
    here = {gpu.uuid for gpu in gpus}
    gpus += [
        HostGpu(gpu.uuid, gpu.index, gpu.memory, "it was not found when the agent started")
        for gpu in checkpoint.gpus
        if gpu.uuid not in here
    ]
    return NodeAllocations(gpus, options.shares, checkpoint.grants)
