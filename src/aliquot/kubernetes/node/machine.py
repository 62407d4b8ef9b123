"""What this node has: its driver, its GPUs, and what containers are given of both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.devices import check_version, find_driver, find_driver_in, read_inventory
from aliquot.devices.device_location import read_locations
from aliquot.kubernetes.kubelet import deviceplugin_pb2 as messages
from aliquot.kubernetes.node.books import Books
from aliquot.kubernetes.node.container import Host, make_kit, outfit
from aliquot.kubernetes.node.units import Card, offers_of
from aliquot.slices import state_directory

if TYPE_CHECKING:
    from aliquot.devices import Driver, Inventory, Shape
    from aliquot.devices.device_location import DeviceLocation
    from aliquot.kubernetes.node.container import Kit
    from aliquot.kubernetes.node.held import Held
    from aliquot.kubernetes.node.store import Kept
    from aliquot.kubernetes.presets import Preset

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Options:
    """How the agent is run.

    `state` is the arbiter's directory. `home` outlives a restart of the node: the stand-ins that
    containers get, and what pods hold. `driver_root` is where the node's file system is seen.
    """

    node: str
    presets: tuple[Preset, ...]
    shares: int = 2
    shape: Shape | None = None
    state: Path = state_directory.SYSTEM
    home: Path = Path("/var/lib/aliquot")
    kubelet: Path = Path("/var/lib/kubelet")
    driver_root: Path = ROOT
    kubeconfig: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - Prometheus and the kubelet ask from outside
    port: int = 9440


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's GPUs as they were when the agent started."""

    driver: Driver
    inventory: Inventory
    attached: dict[str, DeviceLocation]
    kit: Kit

    def response(self, held: Held, grant: Path) -> messages.ContainerAllocateResponse:
        """What a container gets, as the kubelet is told it."""
        minors = [self.attached[part.gpu].minor for part in held.parts]
        got = outfit(self.kit, grant, minors)
        return messages.ContainerAllocateResponse(
            envs=dict(got.environment),
            mounts=[
                messages.Mount(
                    container_path=str(one.target),
                    host_path=str(one.source),
                    read_only=one.read_only,
                )
                for one in got.mounts
            ],
            devices=[
                messages.DeviceSpec(container_path=str(one), host_path=str(one), permissions="rw")
                for one in got.devices
            ],
        )


def read_machine(options: Options) -> Machine:
    """Find the driver, ask it for its GPUs, and prepare what containers get."""
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
    if options.shape is None:
        check_version(driver)
    inventory = read_inventory(driver, skip_lost=True)
    kit = make_kit(driver, library, Host(root=options.driver_root))
    return Machine(driver, inventory, read_locations(driver, inventory.gpus), kit)


def make_books(options: Options, inventory: Inventory, kept: Kept) -> Books:
    """The books as they were kept, of the cards there are and those that there were."""
    cards = [Card(gpu.uuid, gpu.index, gpu.memory_bytes) for gpu in inventory.gpus]
    here = {card.uuid for card in cards}
    cards += [
        Card(one.uuid, one.index, one.memory, "it was not found when the agent started")
        for one in kept.cards
        if one.uuid not in here
    ]
    return Books(cards, offers_of(options.presets), options.shares, kept.held)
