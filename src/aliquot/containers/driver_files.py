"""The driver's files that containers get, and names for them that outlive a driver's update.

Containers get what NVIDIA's container toolkit gives for `compute`, `utility`, `video` and
`graphics`, and each file has its capability, for containers that want only some. They do not get
what bypasses a slice (MPS, and OpenCL, which has a driver of its own) or belongs to the node (its
daemons).

A driver's files have its version in their names, and a kubelet replays what it was told about a
container for as long as the pod lives. So mounts never name these files. Their sources are links in
a folder of the agent (`StableLinks`), which lead to the files of the driver that is installed now:
a container that starts again after an update gets the new driver. A name that the new driver does
not have leads to an empty file, because runtimes make a folder for a source that does not exist.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from aliquot.devices.linker import resolve_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CAPABILITIES = ("compute", "utility", "video", "graphics")
_VARIABLE_DEFAULT = frozenset({"compute", "utility"})  # the toolkit's, for an empty value
_OTHER_NAMES = {"display": "graphics", "ngx": "graphics"}

_COMPUTE = (
    r"libcudadebugger|libnvidia-(allocator|compiler|fatbinaryloader|gpucomp|nvvm(70)?"
    r"|pkcs11(-openssl3)?|ptxjitcompiler|sandboxutils|tileiras)"
)
_UTILITY = r"libnvidia-cfg"
_VIDEO = r"libnvcuvid|libnvidia-(encode|opticalflow)"
_GRAPHICS = (
    r"lib(EGL|GLESv1_CM|GLESv2|GLX)_nvidia|libnvoptix|libnvidia-(cbl|egl-(gbm|wayland|xcb|xlib)"
    r"|eglcore|fbc|glcore|glsi|glvkspirv|ngx|present|rtcore|tls|vulkan-producer)"
)
_LIBRARY = re.compile(
    rf"((?P<compute>{_COMPUTE})|(?P<utility>{_UTILITY})|(?P<video>{_VIDEO})"
    rf"|(?P<graphics>{_GRAPHICS}))\.so(\.[0-9.]+)?"
)
_VERSION = re.compile(r"\.so\.\d+\.[\d.]+")

_PROGRAMS = ("nvidia-smi", "nvidia-debugdump")
_PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "usr/local/nvidia/bin", "opt/bin", "bin")
# Where the loaders of Vulkan and EGL, and OptiX, look; and where a driver may have the file.
_DATA = {
    "/usr/share/vulkan/icd.d/nvidia_icd.json": (
        *("usr/share/vulkan/icd.d", "etc/vulkan/icd.d", "vulkan/icd.d"),
    ),
    "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json": (
        *("usr/share/vulkan/implicit_layer.d", "etc/vulkan/implicit_layer.d"),
    ),
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": ("usr/share/glvnd/egl_vendor.d",),
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json": (
        *("usr/share/egl/egl_external_platform.d",),
    ),
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": (
        *("usr/share/egl/egl_external_platform.d",),
    ),
    "/usr/share/nvidia/nvoptix.bin": ("usr/share/nvidia",),
}
_ABSENT = "absent"
_ELF = b"\x7fELF"


def parse_capabilities(text: str) -> frozenset[str] | None:
    """What `NVIDIA_DRIVER_CAPABILITIES` asks for; None: all. Names that are unknown count not."""
    words = {word.strip() for word in text.lower().split(",")} - {""}
    if "all" in words:
        return None
    found = {_OTHER_NAMES.get(word, word) for word in words}
    return frozenset(found) & frozenset(CAPABILITIES) if words else _VARIABLE_DEFAULT


def capability_of(library: str) -> str:
    """The capability that a library of the driver belongs to, by its name."""
    found = _LIBRARY.fullmatch(library)
    return next((name for name in CAPABILITIES if found and found[name]), "")


def driver_libraries(folders: Iterable[Path], resolve: Callable[[Path], Path]) -> dict[str, Path]:
    """The driver's libraries besides CUDA and NVML, by each of their names; the first folder wins.

    `resolve` follows links.
    """
    found: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        if _LIBRARY.fullmatch(path.name) and (file := resolve(path)).is_file():
            found.setdefault(path.name, file)
    return found


def driver_programs(root: Path) -> Iterator[tuple[PurePosixPath, Path, str]]:
    """The driver's programs and data files: where a container has them, the files, capabilities.

    A script that calls the program somewhere else would not find it in a container.
    """
    programs = {f"/usr/bin/{name}": _PROGRAM_FOLDERS for name in _PROGRAMS}
    for wanted, is_usable, capability in (
        (programs, _is_program, "utility"),
        (_DATA, Path.is_file, "graphics"),
    ):
        for target, folders in wanted.items():
            name = PurePosixPath(target).name
            files = (resolve_below(root / folder / name, root) for folder in folders)
            if file := next(filter(is_usable, files), None):
                yield PurePosixPath(target), file, capability


def _is_program(file: Path) -> bool:
    """Whether a file is compiled: an executable, and not a script."""
    try:
        with file.open("rb") as data:
            return data.read(len(_ELF)) == _ELF
    except OSError:
        return False


@dataclass(slots=True)
class StableLinks:
    """Links of the agent in `folder` to files of the node, which the agent sees below `root`."""

    folder: Path
    root: Path
    _files: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)
        (self.folder / _ABSENT).touch()

    def add(self, name: str, file: Path) -> Path:
        """A path that leads to the file, also if a driver of another version has it instead.

        Two files whose names differ in the version alone have different paths.
        """
        name = stable_name(name)
        while self._files.setdefault(name, file) != file:
            name += "-next"
        self._link(name, on_node(file, self.root))
        return self.folder / name

    def finish(self) -> None:
        """Let the names of earlier drivers that this one does not have lead to an empty file."""
        for path in list(self.folder.iterdir()):
            if path.name not in self._files and path.name != _ABSENT:
                self._link(path.name, Path(_ABSENT))

    def _link(self, name: str, target: Path) -> None:
        path, new = self.folder / name, self.folder / f".new-{name}"
        if path.is_symlink() and path.readlink() == target:
            return
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        os.replace(new, path)  # noqa: PTH105 - replaces the link, and not what it leads to


def stable_name(name: str) -> str:
    """A library's name without its version, if that has more parts than the linker's has."""
    return _VERSION.sub(".so.version", name)


def on_node(path: Path, root: Path) -> Path:
    """A path by the node's own names; one outside `root` has the same path there."""
    return Path("/") / path.relative_to(root) if path.is_relative_to(root) else path


def missing_source(sources: Iterable[Path], root: Path) -> Path | None:
    """The first of these paths of the node that leads to nothing: what it leads to."""
    for source in sources:
        file = resolve_below(root / source.relative_to("/"), root)
        if not file.exists():
            return on_node(file, root)
    return None
