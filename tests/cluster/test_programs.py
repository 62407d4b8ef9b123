"""Kubernetes' programs and its runtime: built once, whole or not at all. The compiler pretends."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.programs import (
    NAMES,
    RUNTIME_NAMES,
    ProgramsError,
    find_programs,
    find_runtime,
    provide_programs,
    provide_runtime,
)

# Writes what Go would write: one file for each package, at the place that -o names.
GO = """#!/bin/sh
PATH=/usr/bin:/bin
echo "$@" >> {calls}
[ "$1" = version ] && echo go version go{version} && exit
while [ "$1" != -o ]; do shift; done
folder=$2; shift 2
mkdir -p $folder
for package; do
    name=$(basename $package)
    [ $name = v3 ] && name=server
    echo program > $folder/$name; chmod +x $folder/$name
    echo "compiled $package" >&2
    [ $name = {breaks_at} ] && echo "cannot compile $name" >&2 && exit 1
done
exit 0
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ALIQUOT_KUBERNETES_BIN", raising=False)
    monkeypatch.delenv("ALIQUOT_RUNTIME_BIN", raising=False)
    monkeypatch.delenv("UV", raising=False)
    return Compiler(tmp_path)


class Compiler:
    """The pretended compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.write()

    def write(self, *, version: str = "1.26.0", breaks_at: str = "nothing") -> None:
        program = self.folder / "go"
        program.write_text(GO.format(calls=self.calls, version=version, breaks_at=breaks_at))
        program.chmod(0o755)

    @property
    def builds(self) -> int:
        return sum(line.startswith("build") for line in self.calls.read_text().splitlines())

    @property
    def kept(self) -> list[str]:
        cache = self.folder / "cache" / "aliquot" / "kubernetes"
        return [path.name for path in cache.iterdir() if path.is_dir()]


def test_programs_are_built_once(compiler: Compiler) -> None:
    programs = provide_programs()
    assert all(programs.path(name).is_file() for name in NAMES)
    assert find_programs() == programs
    assert provide_programs() == programs
    assert compiler.builds == 2  # Kubernetes and kwok


def test_the_runtime_is_built_next_to_kubernetes(compiler: Compiler) -> None:
    kubernetes = provide_programs()
    runtime = provide_runtime()
    assert all(runtime.path(name).is_file() for name in RUNTIME_NAMES)
    assert find_runtime() == provide_runtime() == runtime
    assert compiler.builds == 4  # and containerd, and runc
    assert find_programs() == kubernetes
    assert runtime.folder.parent != kubernetes.folder.parent


def test_a_broken_build_leaves_nothing_and_says_why(compiler: Compiler) -> None:
    compiler.write(breaks_at="kubelet")
    with pytest.raises(ProgramsError, match="cannot compile kubelet"):
        provide_programs()
    assert compiler.kept == []
    with pytest.raises(ProgramsError, match="make kubernetes"):
        find_programs()


def test_the_rest_of_a_killed_build_is_removed(compiler: Compiler) -> None:
    left = compiler.folder / "cache" / "aliquot" / "kubernetes" / "building-1" / "bin"
    left.mkdir(parents=True)
    programs = provide_programs()
    assert compiler.kept == [programs.folder.name]


def test_a_named_folder_is_used_as_it_is(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = provide_programs().folder
    monkeypatch.setenv("ALIQUOT_KUBERNETES_BIN", str(ready))
    assert provide_programs().folder == ready
    monkeypatch.setenv("ALIQUOT_KUBERNETES_BIN", str(tmp_path))
    with pytest.raises(ProgramsError, match=r"has no etcd, .* \(ALIQUOT_KUBERNETES_BIN\)"):
        find_programs()


def test_an_old_compiler_is_not_used(compiler: Compiler) -> None:
    compiler.write(version="1.25.9")
    with pytest.raises(ProgramsError, match=r"Go 1\.26 or newer is needed"):
        provide_programs()
