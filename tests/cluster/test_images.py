"""Images: what is put into one is in it, and the same things give the same image."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cluster.images import Image, busybox, linked_libraries
from cluster.python_image import HOME, ROOT, installed_files, project_image, required

MIB = 1 << 20
MOST_ADDED = 200 * MIB  # 184 in November 2026, most of it grpc, numpy and cryptography


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """A small tree with a program, a link and something to leave out."""
    folder = tmp_path / "rootfs"
    (folder / "usr" / "bin").mkdir(parents=True)
    (folder / "usr" / "bin" / "tool").write_text("#!/bin/sh\n")
    (folder / "usr" / "bin" / "tool").chmod(0o755)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "secret").mkdir()
    (folder / "secret" / "key").write_text("k")
    return folder


def test_a_layer_keeps_modes_and_links(rootfs: Path, tmp_path: Path) -> None:
    image = Image("x.test/tool:1", command=["/bin/tool"], env={"A": "b"})
    image.add(rootfs, "/", skip=lambda path: path.name == "secret")
    image.add_text("/etc/motd", "hello")
    layer, config, manifest = written(image, tmp_path / "image.tar")
    members = {member.name: member for member in layer}
    assert sorted(members) == ["bin", "etc", "etc/motd", "usr", "usr/bin", "usr/bin/tool"]
    assert members["usr/bin/tool"].mode == 0o755
    assert members["bin"].linkname == "usr/bin"
    assert manifest["RepoTags"] == ["x.test/tool:1"]
    assert config["config"]["Cmd"] == ["/bin/tool"]
    assert "A=b" in config["config"]["Env"]


def test_folders_come_before_their_contents(tmp_path: Path) -> None:
    image = Image("x.test/deep:1")
    image.add_text("/a/b/c", "")
    image.add_text("/a-b", "")
    layer, _, _ = written(image, tmp_path / "image.tar")
    names = [member.name for member in layer]
    assert all(str(Path(name).parent) in [".", *names[:at]] for at, name in enumerate(names))


def test_the_same_files_give_the_same_archive(rootfs: Path, tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        image = Image("x.test/same:1")
        image.add(rootfs, "/srv")
        image.write(tmp_path / name)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_program_brings_its_libraries(tmp_path: Path) -> None:
    program = Path(sys.executable).resolve()
    image = Image("x.test/linked:1")
    image.add_program(program, "/bin/python")
    layer, _, _ = written(image, tmp_path / "image.tar")
    names = {f"/{member.name}" for member in layer}
    libraries = {str(path) for path in linked_libraries([program])}
    assert any("libc.so" in name for name in libraries)
    assert {"/bin/python", *libraries} <= names


@pytest.mark.cluster  # has busybox installed
def test_busybox_has_a_shell(tmp_path: Path) -> None:
    layer, _, _ = written(busybox(), tmp_path / "image.tar")
    members = {member.name: member for member in layer}
    assert members["bin/sh"].linkname == "busybox"
    assert members["bin/busybox"].mode & 0o111


def test_requirements_are_followed_through_extras() -> None:
    names = {each.metadata["Name"].lower() for each in required(["aliquot[kubernetes]"])}
    assert {"aliquot", "grpcio", "lightkube", "numpy", "rich", "typer"} <= names
    assert "pytest" not in names


def test_what_an_image_adds_to_python_is_small() -> None:
    added = {path for each in required(["aliquot[kubernetes]"]) for path in installed_files(each)}
    added |= {path for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert MIB < sum(path.stat().st_size for path in added) < MOST_ADDED


@pytest.mark.cluster
def test_a_python_image_has_this_repository_at_a_place_of_its_own(tmp_path: Path) -> None:
    layer, config, _ = written(project_image("x.test/python:1"), tmp_path / "image.tar")
    names = {f"/{member.name}" for member in layer}
    python = sys.executable.replace(str(ROOT), HOME)
    assert config["config"]["Cmd"] == [python]
    assert {python, str(Path(sys.executable).resolve()), json.__file__} <= names
    assert f"{HOME}/src/aliquot/__init__.py" in names
    assert not any(name.startswith(f"{ROOT}/") for name in names)


def written(image: Image, archive: Path) -> tuple[list[tarfile.TarInfo], Any, Any]:
    """The members of its layer, its configuration and its manifest, as read from its archive."""
    image.write(archive)
    with tarfile.open(archive) as tar:
        [manifest] = json.loads(read(tar, "manifest.json"))
        config = json.loads(read(tar, manifest["Config"]))
        layer = read(tar, manifest["Layers"][0])
        [diff] = config["rootfs"]["diff_ids"]
        assert diff == f"sha256:{hashlib.sha256(layer).hexdigest()}"
    unpacked = archive.with_suffix(".unpacked")
    unpacked.write_bytes(layer)
    with tarfile.open(unpacked) as tar:
        return tar.getmembers(), config, manifest


def read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()
