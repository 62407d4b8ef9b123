"""What a container gets, so that all its programs use the stand-ins and its own grant.

`prepare_edits` gives what all containers of a machine get, for one driver.
`grant_edits` gives what a grant and its GPUs add to that: mounts, device nodes and variables. The
word is CDI's: container edits.

- The stand-ins have every name of the driver's two libraries, in every folder where an image's
  linker looks for a driver: the usual folders of Debian and Red Hat and, as a whole, the two that
  NVIDIA's images add (/usr/local/nvidia/lib64, and cuda-compat, which would be a driver of another
  version). So a program meets a stand-in however it loads the driver, and in any environment.
- The driver's own two libraries are where only the stand-ins look. Its other libraries, which it
  loads by name, are in the usual folders (`driver_files`).
- No variable is needed (`env -i`, login shells): the stand-ins know these places. The one that is
  set keeps NVIDIA's own runtime from giving the container all GPUs.
- /etc/ld.so.preload stays the image's own.

Sources are paths on the node, which the agent may see elsewhere (`Host`). They are the same for
every version of the driver. Files that come and go, such as sockets of the node's daemons, are
never sources: if one is missing when a container starts again, its runtime makes a folder of that
name.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from aliquot.containers.device_nodes import provide_control_nodes
from aliquot.containers.driver_files import (
    StableLinks,
    capability_of,
    driver_libraries,
    driver_programs,
    missing_source,
    on_node,
)
from aliquot.devices import CUDA, NVML
from aliquot.devices.linker import resolve_below
from aliquot.model.errors import DriverError
from aliquot.slices.library import prepare_library, prepared_driver
from aliquot.slices.tenant import CONTAINER_GRANT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from aliquot.devices import Driver

GRANT = PurePosixPath(CONTAINER_GRANT)
MACHINE = PurePosixPath("/run/aliquot/machine")
DRIVER = PurePosixPath("/usr/local/aliquot/driver")

_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_WHOLE_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/cuda/compat")
_MUSL_FOLDER = "/usr/lib"  # where musl looks: the stand-in loads there and says that it cannot work
_VARIABLES = MappingProxyType({"NVIDIA_VISIBLE_DEVICES": "void"})


@dataclass(frozen=True, slots=True)
class Host:
    """The node as the agent sees it: its file system, its device nodes, its `uname -m`.

    `driver_root` is the folder below `root` in which the driver is installed.
    """

    root: Path = Path("/")
    driver_root: Path = Path("/")
    devices: Path = Path("/dev")
    proc: Path = Path("/proc")
    machine: str = platform.machine()

    @property
    def usual_folders(self) -> list[PurePosixPath]:
        """The folders where an image's linker looks by default."""
        return [PurePosixPath("/usr/lib") / _MULTIARCH[self.machine], PurePosixPath("/usr/lib64")]

    def resolve(self, path: Path) -> Path:
        """What a path leads to; links are resolved in the driver's root, or else in the node's."""
        ours = path.is_relative_to(self.driver_root)
        return resolve_below(path, self.driver_root if ours else self.root)


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or folder of the node, and its path in a container.

    `capability` is that of a driver's file, as NVIDIA calls it (`driver_files`); empty: containers
    always have it.
    """

    source: Path
    target: PurePosixPath
    read_only: bool = True
    capability: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """A program of the node that the runtime runs at a step of a container's start.

    `name` is the step, as OCI calls it. The first of `arguments` is the program's own name.
    """

    name: str
    path: Path
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What one container gets. `devices` have the same path on the node, to read and write."""

    mounts: tuple[BindMount, ...]
    devices: tuple[PurePosixPath, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    hooks: tuple[Hook, ...] = ()

    def always(self) -> ContainerEdits:
        """The part that does not belong to a capability."""
        return replace(self, mounts=tuple(one for one in self.mounts if not one.capability))

    def of_capabilities(self, wanted: Collection[str] | None) -> ContainerEdits:
        """The mounts of these capabilities; None: of all."""
        optional = (one for one in self.mounts if one.capability)
        return ContainerEdits(
            tuple(one for one in optional if wanted is None or one.capability in wanted)
        )

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        """Both together."""
        return ContainerEdits(
            mounts=self.mounts + other.mounts,
            devices=self.devices + other.devices,
            environment={**self.environment, **other.environment},
            hooks=self.hooks + other.hooks,
        )


def prepare_edits(driver: Driver, home: Path, host: Host | None = None) -> ContainerEdits:
    """Prepare the stand-ins for a driver in `home`, a folder of the node, and find the rest.

    The files must exist whenever a container starts: `home` should outlive a restart of the node.
    """
    host = host or Host()
    files = replace(driver, cuda=host.resolve(driver.cuda), nvml=host.resolve(driver.nvml))
    library = prepare_library(files, home)
    links = StableLinks(home / "current", host.root)
    stand_ins = links.add("stand-ins", library)
    if driver.shape is not None:
        mounts = _stand_in_mounts(stand_ins, _names((CUDA, NVML)), host)
        mounts += _simulated_mounts(driver, links, library)
        control_nodes: tuple[PurePosixPath, ...] = ()
    else:
        mounts = _stand_in_mounts(stand_ins, _names((files.cuda.name, files.nvml.name)), host)
        mounts += _driver_mounts(driver, links, host)
        control_nodes = provide_control_nodes(host.devices, host.proc)
    links.finish()
    return ContainerEdits(tuple(_on_node(mount, host.root) for mount in mounts), control_nodes)


def check_sources(edits: ContainerEdits, root: Path) -> None:
    """DriverError if the source of a mount does not exist; the agent sees the node at `root`.

    A runtime would make a folder of that name on the node.
    """
    if missing := missing_source({mount.source for mount in edits.mounts}, root):
        raise DriverError(
            f"{missing} is missing on the node, which its containers need",
            "If the driver was updated or removed, wait until its installation is complete.",
        )


def grant_edits(grant: Path, minors: Iterable[int]) -> ContainerEdits:
    """What a container gets for its grant, whose folder is `grant`.

    `minors` are the minor numbers of its GPUs, by NVML; simulated GPUs have none.
    """
    return ContainerEdits(
        mounts=(BindMount(grant, GRANT),),
        devices=tuple(PurePosixPath(f"/dev/nvidia{minor}") for minor in sorted(minors)),
        environment=_VARIABLES,
    )


def _simulated_mounts(driver: Driver, links: StableLinks, library: Path) -> list[BindMount]:
    meeting_place = Path(driver.variables["ALIQUOT_SIMULATE_STATE"])
    return [
        BindMount(links.add("driver", prepared_driver(library)), DRIVER),
        BindMount(meeting_place, MACHINE, read_only=False),
    ]


def _driver_mounts(driver: Driver, links: StableLinks, host: Host) -> Iterator[BindMount]:
    files = {CUDA: host.resolve(driver.cuda), NVML: host.resolve(driver.nvml)}
    for name, file in files.items():
        yield BindMount(links.add(f"driver-{name}", file), DRIVER / name)
    folders = [driver.cuda.parent, files[CUDA].parent, driver.nvml.parent, files[NVML].parent]
    for name, file in driver_libraries(folders, host.resolve).items():
        source = links.add(name, file)
        capability = capability_of(name)
        for folder in host.usual_folders:
            yield BindMount(source, folder / name, capability=capability)
    for target, file, capability in driver_programs(host.driver_root):
        yield BindMount(links.add(target.name, file), target, capability=capability)


def _names(files: tuple[str, str]) -> dict[str, str]:
    """Every name of the driver's two libraries, with its stand-in.

    The names are the linker's, the compiler's, and those of the driver's own `files`.
    """
    names = {name.removesuffix(".1"): name for name in (CUDA, NVML)} | {CUDA: CUDA, NVML: NVML}
    return names | dict(zip(files, (CUDA, NVML), strict=True))


def _stand_in_mounts(library: Path, names: Mapping[str, str], host: Host) -> list[BindMount]:
    return [
        *(
            BindMount(library / stand_in, folder / name)
            for folder in host.usual_folders
            for name, stand_in in names.items()
        ),
        *(BindMount(library / name, PurePosixPath(_MUSL_FOLDER) / name) for name in (CUDA, NVML)),
        *(BindMount(library, PurePosixPath(folder)) for folder in _WHOLE_FOLDERS),
    ]


def _on_node(mount: BindMount, root: Path) -> BindMount:
    """The mount by the node's own paths."""
    return replace(mount, source=on_node(mount.source, root))
