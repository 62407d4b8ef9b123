"""Puts what `carry.py` packed in its places: python3 tests/cluster/unpack.py FOLDER, as root.

It runs on any Python 3.9 or newer, standard library only. It replaces nothing that the machine has:
programs, libraries and folders of the same name stay. It prints the settings of the tests' shell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUFFIX = ".tar.xz"
ROOT = Path(__file__).resolve().parents[2]
_BIN, _LIB = Path("/usr/local/sbin"), Path("/usr/local/lib")
_SMALL = 1 << 20
_KEPT = ("kubernetes", "runtime", "helm")


def origin_of(archive: Path) -> Path:
    """The file that says where the repository was whose files are in an archive."""
    return archive.with_name(archive.name.removesuffix(SUFFIX) + ".origin")


def unpack(folder: Path) -> None:
    ready = folder / "ready"
    shutil.rmtree(ready, ignore_errors=True)
    archives = sorted(folder.glob(f"*/*{SUFFIX}"))
    if not archives:
        sys.exit(f"{folder} has no parts")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(_extract, archive, ready) for archive in archives]:
            done.result()
    origins = {origin_of(archive).read_bytes() for archive in archives}
    _merge(ready / "root", Path("/"))
    _merge(ready / "tree", ROOT, origins)
    _add_programs(ready / "bin")
    _add_libraries(ready)
    folders = {name: ready / name for name in _KEPT}
    print(f"export ALIQUOT_KUBERNETES_BIN={folders['kubernetes']}")
    print(f"export ALIQUOT_RUNTIME_BIN={folders['runtime']}")
    print(f"export ALIQUOT_HELM={folders['helm']}/helm")


def _extract(archive: Path, to: Path) -> None:
    subprocess.run(
        [sys.executable, __file__, "--extract", str(archive), str(to)], check=True
    )  # a process each: one thread would unpack all


def _extract_here(archive: Path, to: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            place = to / member.name
            place.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(place):
                tar.extract(member, to)


def _merge(source: Path, to: Path, origins: Collection[bytes] = ()) -> None:
    """Have the files there that are not there yet; texts name their new place."""
    for place, _, names in os.walk(source):
        for name in names:
            file = Path(place, name)
            target = to / file.relative_to(source)
            if os.path.lexists(target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)
            if origins and not target.is_symlink() and target.stat().st_size < _SMALL:
                _rename(target, origins, to)


def _rename(file: Path, origins: Collection[bytes], to: Path) -> None:
    content = file.read_bytes()
    for origin in sorted(origins, key=len, reverse=True):
        if b"\0" not in content:
            content = content.replace(origin, str(to).encode())
    if content != file.read_bytes():
        file.write_bytes(content)


def _add_programs(folder: Path) -> None:
    """Those that the machine lacks."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    for program in sorted(folder.iterdir()):
        if shutil.which(program.name, path=path) is None:
            shutil.copy2(program, _BIN / program.name)
            print(f"# {program.name} comes from there", file=sys.stderr)


def _add_libraries(ready: Path) -> None:
    """Those that its programs lack, until they lack none that were packed."""
    packed = {path.name: path for path in (ready / "lib").iterdir()}
    while lacking := _lacking(ready) & set(packed):
        for name in sorted(lacking):
            shutil.copy2(packed[name], _LIB / name)
            print(f"# {name} comes from there", file=sys.stderr)
        subprocess.run(["ldconfig"], check=True)
        if lacking & _lacking(ready):
            sys.exit(f"these libraries are not found in {_LIB}: {', '.join(sorted(lacking))}")


def _lacking(ready: Path) -> set[str]:
    files = [
        path
        for folder in ("root", "tree", "bin", "runtime")
        for path in (ready / folder).rglob("*")
        if path.is_file() and not path.is_symlink() and _is_compiled(path)
    ]
    done = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False)
    return set(re.findall(r"^\s*(\S+) => not found$", done.stdout, re.MULTILINE))


def _is_compiled(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


if __name__ == "__main__":
    if sys.argv[1] == "--extract":
        _extract_here(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        unpack(Path(sys.argv[1]).resolve())
