"""What a container gets, so that all its programs use the stand-ins and its own grant.

`CommonEdits` is what all containers of a node get, for one driver; the agent prepares it once.
`edits_for` adds a grant and its GPUs: the mounts, device nodes and variables of one container. The
word is CDI's: container edits.

- The stand-ins have every name of the driver's two libraries, in every folder where an image's
  linker looks for a driver: the usual folders of Debian and Red Hat and, as a whole, the two that
  NVIDIA's images add (/usr/local/nvidia/lib64, and cuda-compat, which would be a driver of another
  version). So a program meets a stand-in however it loads the driver, and in any environment.
- The driver's own two libraries are where only the stand-ins look. Its other libraries, which it
  loads by name, are in the usual folders.
- No variable is needed (`env -i`, login shells): the stand-ins know these places. The one that is
  set keeps NVIDIA's own runtime from giving the container all GPUs.
- /etc/ld.so.preload stays the image's own.

Sources are paths on the node, which the agent may see elsewhere (`Host`). Files that come and go,
such as sockets of the node's daemons, are never sources: if one is missing when a container starts
again, its runtime makes a folder of that name.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from aliquot.devices import CUDA, NVML
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
_MUSL_FOLDER = "/usr/lib"  # where musl looks: the stand-in loads there and says that it cannot work
_VARIABLES = MappingProxyType({"NVIDIA_VISIBLE_DEVICES": "void"})

# What NVIDIA's container toolkit gives for `compute` and `utility`, without what bypasses a slice
# (MPS, and OpenCL, which has a driver of its own) or belongs to the node (its daemons).
_COMPANIONS = re.compile(
    r"lib(cudadebugger|nvidia-(allocator|cfg|compiler|fatbinaryloader|gpucomp|nvvm(70)?"
    r"|pkcs11(-openssl3)?|ptxjitcompiler|sandboxutils|tileiras))\.so(\.[0-9.]+)?"
)
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump")
_PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "opt/bin", "bin")
_CONTROL_NODES = ("nvidiactl", "nvidia-uvm")
_MORE_NODES = ("nvidia-uvm-tools",)  # for debuggers; some nodes do not have it
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Host:
    """The node as the agent sees it: its file system, its device nodes, its `uname -m`."""

    root: Path = Path("/")
    devices: Path = Path("/dev")
    machine: str = platform.machine()

    @property
    def usual_folders(self) -> list[PurePosixPath]:
        """The folders where an image's linker looks by default."""
        return [PurePosixPath("/usr/lib") / _MULTIARCH[self.machine], PurePosixPath("/usr/lib64")]


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or folder of the node, and its path in a container."""

    source: Path
    target: PurePosixPath
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class CommonEdits:
    """What every container of the node gets. `control_nodes` is None if GPUs are simulated."""

    mounts: tuple[BindMount, ...]
    control_nodes: tuple[PurePosixPath, ...] | None


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What one container gets. `devices` have the same path on the node, to read and write."""

    mounts: tuple[BindMount, ...]
    devices: tuple[PurePosixPath, ...]
    environment: Mapping[str, str]


def prepare_edits(driver: Driver, home: Path, host: Host | None = None) -> CommonEdits:
    """Prepare the stand-ins for a driver in `home`, a folder of the node, and find the rest.

    The files must exist whenever a container starts: `home` should outlive a restart of the node.
    """
    host = host or Host()
    cuda, nvml = (resolve_on_node(path, host.root) for path in (driver.cuda, driver.nvml))
    files = replace(driver, cuda=cuda, nvml=nvml)
    library = prepare_library(files, home)
    if driver.shape is not None:
        mounts = _simulated_mounts(driver, library, host)
        control_nodes = None
    else:
        folders = [path.parent for path in (driver.cuda, cuda, driver.nvml, nvml)]
        mounts = [*_driver_mounts(files, library, host), *_companion_mounts(folders, host)]
        control_nodes = _control_nodes(host.devices)
    return CommonEdits(tuple(_on_node(mount, host.root) for mount in mounts), control_nodes)


def edits_for(common: CommonEdits, grant: Path, minors: Iterable[int]) -> ContainerEdits:
    """The edits for the container of a grant, whose folder is `grant`.

    `minors` are the minor numbers of its GPUs, by NVML; for simulated GPUs they are ignored.
    """
    nodes = [PurePosixPath(f"/dev/nvidia{minor}") for minor in sorted(minors)]
    return ContainerEdits(
        mounts=(*common.mounts, BindMount(grant, GRANT)),
        devices=() if common.control_nodes is None else (*common.control_nodes, *nodes),
        environment=_VARIABLES,
    )


def _simulated_mounts(driver: Driver, library: Path, host: Host) -> list[BindMount]:
    meeting_place = Path(driver.variables["ALIQUOT_SIMULATE_STATE"])
    return [
        *_stand_in_mounts(library, _names((CUDA, NVML)), host),
        BindMount(prepared_driver(library), DRIVER),
        BindMount(meeting_place, MACHINE, read_only=False),
    ]


def _driver_mounts(driver: Driver, library: Path, host: Host) -> list[BindMount]:
    return [
        *_stand_in_mounts(library, _names((driver.cuda.name, driver.nvml.name)), host),
        BindMount(driver.cuda, DRIVER / CUDA),
        BindMount(driver.nvml, DRIVER / NVML),
        *_program_mounts(host.root),
    ]


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


def _companion_mounts(folders: Iterable[Path], host: Host) -> Iterator[BindMount]:
    """The driver's other libraries, by each of their names; the first folder wins."""
    found: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        if (
            _COMPANIONS.fullmatch(path.name)
            and (file := resolve_on_node(path, host.root)).is_file()
        ):
            found.setdefault(path.name, file)
    for folder in host.usual_folders:
        yield from (BindMount(file, folder / name) for name, file in found.items())


def _program_mounts(root: Path) -> Iterator[BindMount]:
    for name in _PROGRAMS:
        files = (resolve_on_node(root / folder / name, root) for folder in _PROGRAM_FOLDERS)
        if file := next((file for file in files if file.is_file()), None):
            yield BindMount(file, PurePosixPath("/usr/bin") / name)


def _control_nodes(devices: Path) -> tuple[PurePosixPath, ...]:
    for name in _CONTROL_NODES:
        if not (devices / name).exists():
            raise DriverError(
                f"the device node {devices / name} is missing",
                "Make it with: nvidia-modprobe -c 0 -u",
            )
    more = (name for name in _MORE_NODES if (devices / name).exists())
    return tuple(PurePosixPath("/dev") / name for name in (*_CONTROL_NODES, *more))


def resolve_on_node(path: Path, root: Path) -> Path:
    """What a path leads to; links below `root` are resolved as the node would."""
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


def _on_node(mount: BindMount, root: Path) -> BindMount:
    """The mount by the node's own paths; a source outside `root` has the same path there."""
    if not mount.source.is_relative_to(root):
        return mount
    source = Path("/") / mount.source.relative_to(root)
    return BindMount(source, mount.target, mount.read_only)
