"""The agent's options, and what the node has: its driver and its GPUs when the agent starts.

A driver that cannot be used is no reason to end: the GPUs of the checkpoint are then unhealthy, and
`probe_driver` says when an agent that starts anew could use the driver.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from aliquot.containers import selinux
from aliquot.containers.container_edits import (
    Host,
    check_sources,
    grant_edits,
    prepare_edits,
)
from aliquot.containers.device_nodes import provide_gpu_nodes
from aliquot.devices import (
    Inventory,
    check_version,
    find_driver,
    find_driver_in,
    find_driver_root,
    read_inventory,
    with_compat,
)
from aliquot.devices.device_location import read_locations
from aliquot.devices.installed import read_installed
from aliquot.kubernetes.api import gpunode
from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
from aliquot.kubernetes.node.grants.swap import NodeSwap
from aliquot.model import Cdi, Unjoined
from aliquot.model.errors import DriverError, NoGpuError
from aliquot.model.strength import StrengthOverrides
from aliquot.slices import state_directory

if TYPE_CHECKING:
    from aliquot.containers.container_edits import ContainerEdits
    from aliquot.devices import Driver, Shape
    from aliquot.devices.device_location import DeviceLocation
    from aliquot.devices.installed import InstalledDriver
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.node.grants.checkpoint import CheckpointData
    from aliquot.kubernetes.node.grants.grant import ContainerGrant

ROOT = Path("/")
PROBE_SECONDS = 60.0
NOT_FOUND = "it was not found when the agent started"

_log = structlog.get_logger(__name__)

# In a process of its own: a process can use only the driver that it loaded first.
_PROBE = """
import pickle, sys
from aliquot.kubernetes.node.machine import read_machine
print(read_machine(pickle.load(sys.stdin.buffer)).problem)
"""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options of `aliquot node`.

    `state` is the arbiter's directory. `home` outlives a restart of the node: the checkpoint and
    the stand-ins that containers get. `node_root` is where the agent sees the node's file system.
    `driver_root` is the node's folder in which its driver is installed; None: a well-known one.
    `compat` is the node's folder with a newer CUDA library, for containers newer than its driver.
    `cdi_dir` is a folder in which the runtime looks for CDI specs. `strengths` are given to
    GPUs instead of the known or reported ones. Containers that use no GPU for `idle_seconds` are
    reported; 0: none are. `swap`: for memory that leaves GPUs. `dra`: pods ask by
    ResourceClaims, and not by the resources of `presets`. `scheduled`: Aliquot's scheduler
    allocates these, and no other one does. `pods_by_gpunode`: the agent reads its pods from its
    GPUNode, where the scheduler writes them, and from nowhere else.
    """

    node: str
    presets: tuple[Preset, ...]
    shares: int = 2
    shape: Shape | None = None
    state: Path = state_directory.SYSTEM
    home: Path = Path("/var/lib/aliquot")
    kubelet: Path = Path("/var/lib/kubelet")
    node_root: Path = ROOT
    driver_root: Path | None = None
    compat: Path | None = None
    unjoined: Unjoined = Unjoined.REPORT
    cdi: Cdi = Cdi.AUTO
    cdi_dir: Path = Path("/var/run/cdi")
    kubeconfig: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - Prometheus and the kubelet ask from outside
    port: int = 9440
    strengths: StrengthOverrides = field(default_factory=StrengthOverrides)
    idle_seconds: float = 3600.0
    swap: NodeSwap = field(default_factory=NodeSwap)
    dra: bool = False
    scheduled: bool = False
    pods_by_gpunode: bool = False

    @property
    def allocator(self) -> str:
        """Who allocates the GPUs to resource claims, as the GPUNode says it; empty: nobody."""
        if not self.dra:
            return ""
        return gpunode.BY_ALIQUOT if self.scheduled else gpunode.BY_KUBE_SCHEDULER


@dataclass(frozen=True, slots=True)
class UsableDriver:
    """A driver, which one was installed when it was loaded, where, and what its containers get."""

    driver: Driver
    installed: InstalledDriver
    host: Host
    common_edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class NodeMachine:
    """A node's driver and GPUs as they were when the agent started.

    `problem` says why no driver could be used; then there is none, and there are no GPUs.
    """

    usable: UsableDriver | None
    inventory: Inventory
    attached: dict[str, DeviceLocation]
    problem: str = ""

    @property
    def common_edits(self) -> ContainerEdits:
        """What all containers get; DriverError without a driver."""
        return self._driver.common_edits

    def check_sources(self) -> None:
        """DriverError if a file that all containers get does not exist."""
        check_sources(self.common_edits, self._driver.host.root)

    @property
    def _driver(self) -> UsableDriver:
        if self.usable is None:
            raise DriverError(self.problem)
        return self.usable

    def grant_edits(self, grant: ContainerGrant, folder: Path) -> ContainerEdits:
        """What a container gets for its grant, in `folder`; DriverError if its GPU is lost."""
        return grant_edits(folder, self.minors(grant))

    def minors(self, grant: ContainerGrant) -> tuple[int, ...]:
        """The numbers of the device nodes of a grant's GPUs, sorted; simulated GPUs have none.

        DriverError if a GPU is lost.
        """
        if lost := [part.gpu for part in grant.allocated if part.gpu not in self.attached]:
            raise DriverError(
                f"{grant.owner} has the GPU {', '.join(lost)}, which was not found when the agent"
                " started",
                "Delete the pod, so that it gets another GPU.",
            )
        if self.usable is not None and self.usable.driver.shape is not None:
            return ()
        return tuple(sorted(self.attached[part.gpu].minor for part in grant.allocated))


def read_machine(options: NodeOptions) -> NodeMachine:
    """Find the driver, read its GPUs, and prepare what all containers get."""
    try:
        return _read_machine(options)
    except (DriverError, NoGpuError) as error:
        return NodeMachine(None, Inventory("", (0, 0), ()), {}, error.message)


async def probe_driver(options: NodeOptions) -> str:
    """Why an agent that starts now could not use the driver; empty: it could."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROBE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            said, error = await process.communicate(pickle.dumps(options))
    except TimeoutError:
        return "the driver does not answer"
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        last = error.decode(errors="replace").strip().rpartition("\n")[2]
        return f"the driver cannot be used: its check ended with {process.returncode}: {last}"
    return said.decode().strip()


def _read_machine(options: NodeOptions) -> NodeMachine:
    where = state_directory.StateDirectory(options.state, options.shape)
    library = options.home / "library"
    for folder in (options.state, options.home, library):
        state_directory.make_directory(folder)
    if selinux.is_on():
        selinux.label_for_containers([options.state, options.home])
    if options.shape is not None:
        state_directory.make_directory(where.meeting_place)
        driver = where.driver()
        host = Host()
    else:
        driver, host = _find_driver(options)
        provide_gpu_nodes(host.devices, host.proc)
    if options.compat is not None:
        folder = options.node_root / options.compat.relative_to(ROOT)
        driver = with_compat(driver, host.resolve(folder))
    installed = read_installed(driver)
    if options.shape is None:
        check_version(driver)
    inventory = _with_strengths(_whole(read_inventory(driver, skip_lost=True)), options.strengths)
    common = prepare_edits(driver, library, host)
    usable = UsableDriver(driver, installed, host, common)
    return NodeMachine(usable, inventory, read_locations(driver, inventory.gpus))


def _whole(inventory: Inventory) -> Inventory:
    """Without instances of GPUs (MIG): a cluster is not offered them."""
    whole = tuple(gpu for gpu in inventory.gpus if gpu.instance_of is None)
    return replace(inventory, gpus=whole)


def _with_strengths(inventory: Inventory, given: StrengthOverrides) -> Inventory:
    gpus = (replace(gpu, strength=given.of(gpu.name, gpu.strength)) for gpu in inventory.gpus)
    return replace(inventory, gpus=tuple(gpus))


def _find_driver(options: NodeOptions) -> tuple[Driver, Host]:
    """The node's driver: as programs on this machine find it, or in a root of its own."""
    if options.node_root == ROOT and options.driver_root in {None, ROOT}:
        try:
            return find_driver(), Host()
        except NoGpuError:
            if options.driver_root == ROOT:
                raise
    root = find_driver_root(options.node_root, options.driver_root)
    return find_driver_in(root), Host(options.node_root, root)


def restore_allocations(
    options: NodeOptions, machine: NodeMachine, checkpoint: CheckpointData
) -> NodeAllocations:
    """The allocations of the checkpoint, on the GPUs that this node has or has had.

    A GPU that is missing stays in the list, unhealthy: somebody must learn of it. It leaves the
    list if another GPU is in its slot and no grant has it.
    """
    gpus = [
        HostGpu(gpu.uuid, gpu.index, gpu.memory_bytes, slot=gpu.pci_bus_id)
        for gpu in machine.inventory.gpus
    ]
    here, slots = {gpu.uuid for gpu in gpus}, {gpu.slot for gpu in gpus}
    granted = {part.gpu for grant in checkpoint.grants for part in grant.allocated}
    for gpu in checkpoint.gpus:
        if gpu.uuid in here:
            continue
        if gpu.slot in slots and gpu.uuid not in granted:
            _log.info("a GPU was replaced by another", uuid=gpu.uuid, slot=gpu.slot)
            continue
        problem = machine.problem or NOT_FOUND
        gpus.append(HostGpu(gpu.uuid, gpu.index, gpu.memory, problem, gpu.slot))
    return NodeAllocations(gpus, options.shares, checkpoint.grants)
