"""Which file the dynamic linker takes for a library name, in a given environment.

The order is the linker's: LD_LIBRARY_PATH, the ldconfig cache, the standard folders. Like the
linker it skips files for another machine. A program's own run path is unknown here.
"""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.devices import elf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MACHINE = {"x86_64": elf.X86_64, "aarch64": elf.AARCH64}.get(platform.machine())
_STANDARD = (
    f"/lib/{platform.machine()}-linux-gnu",
    f"/usr/lib/{platform.machine()}-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
_MOST_LINKS = 40
_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_CACHE_LINE = re.compile(r"\t(?P<name>\S+) \([^)]*\) => (?P<path>/.*)")


def find(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """All files that match the name; the linker takes the first."""
    seen = set()
    for path in _candidates(name, environment):
        if path not in seen and is_for_this_machine(path):
            seen.add(path)
            yield path


def find_in(root: Path, name: str) -> Iterator[Path]:
    """All files of that name in the standard folders of another root file system.

    A link that leads somewhere else for this process is resolved.
    """
    for folder in _STANDARD:
        path = root / folder.lstrip("/") / name
        file = resolve_below(path, root)
        if is_for_this_machine(file):
            yield path if path.resolve() == file.resolve() else file


def resolve_below(path: Path, root: Path) -> Path:
    """What a path leads to; links below `root` are resolved as by a process with that root."""
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


def is_for_this_machine(path: Path) -> bool:
    """Whether a file exists and is a library for this machine's processor."""
    return elf.machine_of(path) == _MACHINE


def _candidates(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    for folder in re.split("[:;]", environment.get("LD_LIBRARY_PATH", "")):
        if folder:
            yield Path(folder) / name
    yield from (path for found, path in _cache() if found == name)
    yield from (Path(folder) / name for folder in _STANDARD)


@cache
def _cache() -> tuple[tuple[str, Path], ...]:
    for program in _LDCONFIG:
        try:
            listing = subprocess.run(
                [program, "-p"], capture_output=True, text=True, check=True, timeout=10
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        lines = map(_CACHE_LINE.fullmatch, listing.splitlines())
        return tuple((line["name"], Path(line["path"])) for line in lines if line is not None)
    return ()
