"""An image in which Python runs with installed distributions: the project's own, or a tenant's.

The interpreter lies where it lies on this machine. This repository with its environment lies in
`HOME`, wherever it is here: a pod may have a volume over that place (a clone in /tmp). The
libraries that all these are linked with come along, so the image's C library is this machine's.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cluster.images import Image, busybox, linked_libraries

ROOT = Path(__file__).parents[2]
HOME = "/opt/aliquot"
_LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip"}
_LEFT_OUT |= {"lib2to3", "site-packages", "include", "share"}


def python_image(name: str, *distributions: str, files: Iterable[Path] = ()) -> Image:
    """Busybox, this Python, and these distributions with all that they require.

    `files` are further files or folders, at their own paths. A container of it runs `python`.
    """
    image = busybox()
    image.name = name
    image.command = [_moved(sys.executable)]
    scripts = _moved(sysconfig.get_path("scripts"))
    image.env = {"PATH": f"{scripts}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    _add_interpreter(image)
    for file in {path for each in required(distributions) for path in installed_files(each)}:
        _add(image, file)
    for file in files:
        image.add(file, _moved(file), skip=_is_left_out)
    for library in linked_libraries(file for file in image.files() if _is_elf(file)):
        if not library.is_relative_to(ROOT):  # those come with their distributions
            image.add(library)
    return image


def project_image(name: str, sources: Path = ROOT / "src") -> Image:
    """This Python with `aliquot` as it is installed here, and these sources of it."""
    image = python_image(name, "aliquot[kubernetes]")
    image.add(sources, f"{HOME}/src", skip=_is_left_out)
    return image


def required(distributions: Iterable[str]) -> list[metadata.Distribution]:
    """These distributions (`name` or `name[extra]`) and what they require here; each once."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[str] = set()
    waiting = [Requirement(each) for each in distributions]
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        distribution = found[canonicalize_name(wanted.name)] = metadata.distribution(wanted.name)
        waiting += [
            requirement
            for requirement in map(Requirement, distribution.requires or ())
            if _applies(requirement, ("", *wanted.extras))
        ]
    return list(found.values())


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def _add_interpreter(image: Image) -> None:
    """The interpreter's prefix without what only developers use, and the environment's links."""
    names = ("python", "python3", f"python{sysconfig.get_python_version()}")
    image.add(Path(sysconfig.get_path("stdlib")), skip=_is_left_out)
    program = Path(sys.executable).resolve()
    image.add(program)
    if sys.prefix != sys.base_prefix:
        _add(image, Path(sys.prefix, "pyvenv.cfg"))
        for link in {sys.executable, *(f"{sys.prefix}/bin/{each}" for each in names)}:
            image.add_link(_moved(link), str(program))


def _add(image: Image, file: Path) -> None:
    """A file, at its place in the image; scripts and the like name that place too."""
    content = file.read_bytes()
    if file.suffix != ".pyc" and bytes(ROOT) in content and not _is_elf(file):
        text = _moved(content.decode())
        image.add_text(_moved(file), text, file.stat().st_mode & 0o777)
    else:
        image.add(file, _moved(file))


def _moved(path: object) -> str:
    return str(path).replace(str(ROOT), HOME)


def installed_files(distribution: metadata.Distribution) -> Iterable[Path]:
    """The files of a distribution, with those that Python compiled."""
    for file in distribution.files or ():
        path = Path(os.path.normpath(str(distribution.locate_file(file))))
        compiled = Path(cache_from_source(str(path)))
        yield from (each for each in (path, compiled) if each.is_file())


def _is_elf(file: Path) -> bool:
    with file.open("rb") as data:
        return data.read(4) == b"\x7fELF"


def _is_left_out(path: Path) -> bool:
    return path.name in _LEFT_OUT or path.name.startswith("config-")
