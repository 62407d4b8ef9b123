"""What a machine with a GPU, but without a network, lacks for the tests of `gpu/`, in a few files.

    PYTHONPATH=tests .venv/bin/python -m cluster.carry build/carry 48     parts of at most 48 MiB
    python3 tests/cluster/unpack.py build/carry                           there, as root

It has the environment in .venv with its Python, Kubernetes' programs and its runtime, Helm, and the
programs of Debian's packages that a node needs, with their libraries. Each part is a folder, so
that they can travel one by one. An archive that is there already is kept, even if another
checkout packed it: after a change of native/ remove aliquot.tar.xz, which takes a second.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from cluster.images import linked_libraries
from cluster.node import CNI_PROGRAMS
from cluster.programs import find_programs, find_runtime
from cluster.python_image import installed_files, required
from cluster.unpack import SUFFIX, origin_of
from kubernetes.chart import find_helm

ROOT = Path(__file__).parents[2]
TESTS = ("aliquot[kubernetes,console]", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
PLUGINS = ("ptp", "host-local", "loopback")
SYSTEM = ("busybox", "conntrack", "ip", "openssl")
IPTABLES = ("iptables", "iptables-save", "iptables-restore")
IP6TABLES = tuple(name.replace("ip", "ip6", 1) for name in IPTABLES)
_LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}
_LEFT_OUT |= {"site-packages", "__pycache__"}
# Every machine has these, and they belong together.
_C_LIBRARY = ("ld-linux", "libc.so", "libm.so", "libresolv.so", "libpthread.so", "libdl.so")
MIB = 1 << 20


@dataclass
class Item:
    """Files by their names in an archive."""

    name: str
    files: dict[str, Path] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """The archive, as a whole or not at all."""
        part = path.with_name(f".{path.name}")
        with subprocess.Popen(
            ["xz", "-0", "-T1", "--stdout"], stdin=subprocess.PIPE, stdout=part.open("wb")
        ) as packer:
            assert packer.stdin
            with tarfile.open(fileobj=packer.stdin, mode="w|") as tar:
                for name, file in self.files.items():
                    tar.add(file, name, recursive=False)
            packer.stdin.close()
        if packer.returncode:
            sys.exit(f"xz failed for {self.name}")
        origin_of(path).write_text(str(ROOT), "utf-8")
        part.rename(path)


def items() -> list[Item]:
    """Everything, in archives of a few MiB each; the project's own compiled parts by themselves."""
    found = [environment("python", interpreter())]
    found += [environment(name, distribution(name)) for name in ("numpy", "aliquot")]
    known = {path for one in found for path in one.files.values()}
    rest = {path for each in required(TESTS) for path in files_of(each)}
    found.append(environment("environment", sorted(rest - known)))
    programs, runtime = find_programs(), find_runtime()
    found += [Item(name, {f"kubernetes/{name}": programs.path(name)}) for name in programs.names]
    runtimes = {f"runtime/{name}": runtime.path(name) for name in runtime.names}
    found += [Item("runtime", runtimes), Item("helm", {"helm/helm": find_helm()}), system()]
    return found


def environment(name: str, files: Iterable[Path]) -> Item:
    """Files of this repository, of its Python and of the libraries that these are linked with."""
    item = Item(name)
    for file in files:
        inside = file.is_relative_to(ROOT)
        place = f"tree/{file.relative_to(ROOT)}" if inside else f"root{file}"
        item.files[place] = file
    return with_libraries(item)


def interpreter() -> list[Path]:
    """This Python without what only developers use, and the links of .venv."""
    program = Path(sys.executable).resolve()
    prefix = Path(sysconfig.get_path("stdlib"))
    found = [program, *walk(prefix), *walk(Path(sysconfig.get_config_var("LIBDIR")), "libpython*")]
    scripts = Path(sysconfig.get_path("scripts"))
    folders = (scripts, program.parent)
    links = [path for each in folders for path in each.iterdir() if path.resolve() == program]
    return [*found, Path(sys.prefix, "pyvenv.cfg"), *links]


def walk(folder: Path, pattern: str = "*") -> list[Path]:
    """The files in a folder and in those inside it."""
    if pattern != "*":
        return [path for path in folder.glob(pattern) if path.suffix != ".a"]
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        found += [
            Path(place, name)
            for name in names
            if not name.endswith(".a") and not name.startswith("_tkinter")
        ]
    return found


def distribution(name: str) -> list[Path]:
    """The files of an installed distribution."""
    return list(files_of(metadata.distribution(canonicalize_name(name))))


def files_of(one: metadata.Distribution) -> Iterable[Path]:
    """The same, of one that was found already."""
    return (path for path in installed_files(one) if "tests" not in path.parts[-4:-1])


def system() -> Item:
    """The programs of Debian's packages, and the plugins of pods' networks."""
    item = Item("system")
    for name in (*SYSTEM, *IPTABLES, *IP6TABLES):
        found = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
        if found is None:
            sys.exit(f"{name} is not installed: make cluster-packages")
        item.files[f"bin/{name}"] = Path(found).resolve()
    for name in PLUGINS:
        item.files[f"root{CNI_PROGRAMS}/{name}"] = Path(CNI_PROGRAMS, name)
    for file in Path("/usr/lib", sysconfig.get_config_var("MULTIARCH"), "xtables").glob("*.so"):
        item.files[f"root{file}"] = file
    return with_libraries(item)


def with_libraries(item: Item) -> Item:
    """The item, with the libraries of Debian that its programs are linked with."""
    compiled = [path for path in item.files.values() if is_compiled(path)]
    for library in linked_libraries(compiled):
        if not library.is_relative_to(ROOT) and not library.name.startswith(_C_LIBRARY):
            item.files[f"lib/{library.name}"] = library.resolve()
    return item


def is_compiled(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def pack(folder: Path, most: int) -> None:
    """Write the parts, each of at most so many MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"*/*{SUFFIX}"):
        origin_of(old).rename(origin_of(folder / old.name))
        old.rename(folder / old.name)
    archives = []
    for item in items():
        archives.append(folder / f"{item.name}{SUFFIX}")
        if not archives[-1].exists():
            item.write(archives[-1])
            print(f"{item.name}: {archives[-1].stat().st_size / MIB:.1f} MiB", flush=True)
    parts: list[list[Path]] = []
    for archive in sorted(archives, key=lambda path: -path.stat().st_size):
        for part in parts:
            if sum(one.stat().st_size for one in [*part, archive]) <= most * MIB:
                part.append(archive)
                break
        else:
            parts.append([archive])
    for number, part in enumerate(parts, 1):
        place = folder / str(number)
        place.mkdir(exist_ok=True)
        for archive in part:
            origin_of(archive).rename(origin_of(place / archive.name))
            archive.rename(place / archive.name)
        size = sum(one.stat().st_size for one in place.iterdir()) / MIB
        print(f"{place}: {size:.1f} MiB, {', '.join(sorted(one.name for one in part))}")


if __name__ == "__main__":
    pack(Path(sys.argv[1]), int(sys.argv[2]))
