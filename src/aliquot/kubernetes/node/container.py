"""What a container gets, so that every program in it meets the stand-ins and its own grant.

A `Kit` is what all containers of a node get, for one driver: it is made once. `outfit` adds a
grant and its GPUs.

- The stand-ins take every name of the driver's two libraries, in every place where an image's
  linker finds a driver: the usual folders of Debian's and Red Hat's families and, whole, the two
  that NVIDIA's images bring (/usr/local/nvidia/lib64, and cuda-compat, which would be a driver of
  another version). So it is no matter how a program asks for the driver, and in which environment.
- The driver's own two libraries are at a place where only the stand-ins look. Its other libraries,
  which it loads by their names, are in the usual folders.
- Nothing needs a variable (`env -i`, login shells): the stand-ins know these places. The one that
  is set keeps NVIDIA's own runtime from giving the container all GPUs.
- /etc/ld.so.preload stays the image's own.

Sources are paths on the node, which the agent may see elsewhere (`Host`). Files that come and go
(sockets of the node's daemons) are no sources: where one is missing when a container starts again,
its runtime makes a folder of that name.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from aliquot.devices import CUDA, NVML
from aliquot.kubernetes.node.below import exists_below
from aliquot.model.errors import DriverError
from aliquot.slices.library import prepare_library, prepared_driver

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aliquot.devices import Driver

GRANT = PurePosixPath("/run/aliquot/grant")
MACHINE = PurePosixPath("/run/aliquot/machine")
DRIVER = PurePosixPath("/usr/local/aliquot/driver")

_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_WHOLE_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/cuda/compat")
_MUSL_FOLDER = "/usr/lib"  # where musl looks: the stand-in loads, and says that it cannot work
_MUSL_LOADERS = ("ld-musl-x86_64.so.1", "ld-musl-aarch64.so.1")
_GLIBC_LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
_LOADER_FOLDERS = (
    *("lib", "lib64", "usr/lib", "usr/lib64", "usr/glibc-compat/lib"),
    *(f"lib/{folder}" for folder in _MULTIARCH.values()),
)
_VARIABLES = MappingProxyType({"NVIDIA_VISIBLE_DEVICES": "void"})

# What NVIDIA's container toolkit gives for `compute` and `utility`, less what leads past a slice
# (MPS) or belongs to the node (its daemons).
_COMPANIONS = re.compile(
    r"lib(cudadebugger|nvidia-(allocator|cfg|compiler|fatbinaryloader|gpucomp|nvvm(70)?|opencl"
    r"|pkcs11(-openssl3)?|ptxjitcompiler|sandboxutils|tileiras))\.so(\.[0-9.]+)?"
)
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump")
_PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "opt/bin", "bin")
_CONTROL_NODES = ("nvidiactl", "nvidia-uvm")
_MORE_NODES = ("nvidia-uvm-tools",)  # for debuggers; some nodes do not have it
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Host:
    """The node as the agent sees it: its file system, its devices, what `uname -m` says."""

    root: Path = Path("/")
    devices: Path = Path("/dev")
    machine: str = platform.machine()

    @property
    def usual_folders(self) -> list[PurePosixPath]:
        """Where an image's linker looks by itself."""
        return [PurePosixPath("/usr/lib") / _MULTIARCH[self.machine], PurePosixPath("/usr/lib64")]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the node, and where a container sees it."""

    source: Path
    target: PurePosixPath
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Kit:
    """What every container of the node gets. `control_nodes` is None where GPUs are simulated."""

    mounts: tuple[Mount, ...]
    control_nodes: tuple[PurePosixPath, ...] | None


@dataclass(frozen=True, slots=True)
class Outfit:
    """What one container gets. `devices` are the same on both sides, to read and write."""

    mounts: tuple[Mount, ...]
    devices: tuple[PurePosixPath, ...]
    environment: Mapping[str, str]


def make_kit(driver: Driver, home: Path, host: Host | None = None) -> Kit:
    """Prepare the stand-ins for a driver in `home`, a folder of the node, and find the rest.

    The files must be where they are whenever a container starts: `home` should outlive a restart of
    the node.
    """
    host = host or Host()
    cuda, nvml = (_resolve(path, host.root) for path in (driver.cuda, driver.nvml))
    files = replace(driver, cuda=cuda, nvml=nvml)
    library = prepare_library(files, home)
    if driver.shape is not None:
        mounts = _simulated_mounts(driver, library, host)
        control_nodes = None
    else:
        folders = [path.parent for path in (driver.cuda, cuda, driver.nvml, nvml)]
        mounts = [*_driver_mounts(files, library, host), *_companion_mounts(folders, host)]
        control_nodes = _control_nodes(host.devices)
    return Kit(tuple(_on_node(mount, host.root) for mount in mounts), control_nodes)


def outfit(kit: Kit, grant: Path, minors: Iterable[int]) -> Outfit:
    """What the container of a grant gets: `grant` is its folder, `minors` are its GPUs'.

    A GPU's minor number is NVML's; those of simulated GPUs are not looked at.
    """
    nodes = [PurePosixPath(f"/dev/nvidia{minor}") for minor in sorted(minors)]
    return Outfit(
        mounts=(*kit.mounts, Mount(grant, GRANT)),
        devices=() if kit.control_nodes is None else (*kit.control_nodes, *nodes),
        environment=_VARIABLES,
    )


def is_musl(root: Path) -> bool:
    """Whether programs below a container's root have musl as their C library, and not glibc.

    No driver can be loaded there; a program that asks for one is told so by the stand-in.
    """
    if not any(exists_below(root, f"lib/{name}") for name in _MUSL_LOADERS):
        return False
    places = (f"{folder}/{name}" for folder in _LOADER_FOLDERS for name in _GLIBC_LOADERS)
    return not any(exists_below(root, place) for place in places)


def _simulated_mounts(driver: Driver, library: Path, host: Host) -> list[Mount]:
    meeting_place = Path(driver.variables["ALIQUOT_SIMULATE_STATE"])
    return [
        *_stand_in_mounts(library, _names((CUDA, NVML)), host),
        Mount(prepared_driver(library), DRIVER),
        Mount(meeting_place, MACHINE, read_only=False),
    ]


def _driver_mounts(driver: Driver, library: Path, host: Host) -> list[Mount]:
    return [
        *_stand_in_mounts(library, _names((driver.cuda.name, driver.nvml.name)), host),
        Mount(driver.cuda, DRIVER / CUDA),
        Mount(driver.nvml, DRIVER / NVML),
        *_program_mounts(host.root),
    ]


def _names(files: tuple[str, str]) -> dict[str, str]:
    """Every name of the driver's two libraries, with the stand-in that answers to it.

    They are the linker's, that of builds, and the driver's own `files`'.
    """
    names = {name.removesuffix(".1"): name for name in (CUDA, NVML)} | {CUDA: CUDA, NVML: NVML}
    return names | dict(zip(files, (CUDA, NVML), strict=True))


def _stand_in_mounts(library: Path, names: Mapping[str, str], host: Host) -> list[Mount]:
    return [
        *(
            Mount(library / stand_in, folder / name)
            for folder in host.usual_folders
            for name, stand_in in names.items()
        ),
        *(Mount(library / name, PurePosixPath(_MUSL_FOLDER) / name) for name in (CUDA, NVML)),
        *(Mount(library, PurePosixPath(folder)) for folder in _WHOLE_FOLDERS),
    ]


def _companion_mounts(folders: Iterable[Path], host: Host) -> Iterator[Mount]:
    """The driver's other libraries under each name they have; the first folder's come first."""
    found: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        if _COMPANIONS.fullmatch(path.name) and (file := _resolve(path, host.root)).is_file():
            found.setdefault(path.name, file)
    for folder in host.usual_folders:
        yield from (Mount(file, folder / name) for name, file in found.items())


def _program_mounts(root: Path) -> Iterator[Mount]:
    for name in _PROGRAMS:
        files = (_resolve(root / folder / name, root) for folder in _PROGRAM_FOLDERS)
        if file := next((file for file in files if file.is_file()), None):
            yield Mount(file, PurePosixPath("/usr/bin") / name)


def _control_nodes(devices: Path) -> tuple[PurePosixPath, ...]:
    for name in _CONTROL_NODES:
        if not (devices / name).exists():
            raise DriverError(
                f"the device node {devices / name} is missing",
                "Make it with: nvidia-modprobe -c 0 -u",
            )
    more = (name for name in _MORE_NODES if (devices / name).exists())
    return tuple(PurePosixPath("/dev") / name for name in (*_CONTROL_NODES, *more))


def _resolve(path: Path, root: Path) -> Path:
    """The file that a path leads to; below `root` its links are meant as they are there."""
    if root == Path("/") or not path.is_relative_to(root):
        return path.resolve()
    walked, steps, links = root, list(path.relative_to(root).parts), 0
    while steps and links < _MOST_LINKS:
        step = steps.pop(0)
        if step == "..":
            walked = root if walked == root else walked.parent
        elif (walked / step).is_symlink():
            target = (walked / step).readlink()
            walked = root if target.is_absolute() else walked
            steps = [*(part for part in target.parts if part != "/"), *steps]
            links += 1
        else:
            walked /= step
    return walked


def _on_node(mount: Mount, root: Path) -> Mount:
    """The mount as the node's own processes write it; what is not below `root` is there too."""
    if not mount.source.is_relative_to(root):
        return mount
    source = Path("/") / mount.source.relative_to(root)
    return Mount(source, mount.target, mount.read_only)
