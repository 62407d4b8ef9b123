"""A folder that is mounted in another mount namespace: only there, only where it was prepared."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from users import needs_root

pytestmark = needs_root

TARGET = "/run/grant"
# In a process of its own: one with threads cannot enter a mount namespace.
MOUNT = """
import os, sys
from pathlib import Path
from aliquot.containers.mounting import mount_in_container
from aliquot.model.errors import StateError
pid, root, source, target, placeholder = sys.argv[1:]
before = os.readlink("/proc/self/ns/mnt")
try:
    mount_in_container(int(pid or os.getpid()), *map(Path, (root, source, target, placeholder)))
except StateError as error:
    print(error.message)
assert os.readlink("/proc/self/ns/mnt") == before
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A container's files, with a folder for the mount, and the folders to mount."""
    for name in ("root/run/grant", "source", "placeholder"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "source/limits").write_text("8 GiB")
    return tmp_path / "root"


@contextmanager
def container(*mounted: Path) -> Iterator[int]:
    """A process in a mount namespace of its own, which has mounted one folder over another."""
    bind = f"mount --bind {shlex.join(map(str, mounted))} && " if mounted else ""
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{bind}echo ready && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def mount(pid: int | None, root: Path, target: str = TARGET) -> str:
    """Mount the source; why not, or nothing."""
    words = [str(pid or ""), root, root.with_name("source"), target, root.with_name("placeholder")]
    done = subprocess.run(
        [sys.executable, "-c", MOUNT, *map(str, words)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_it_is_there_alone_and_read_only(root: Path) -> None:
    place = root / "run/grant"
    with container(root.with_name("placeholder"), place) as pid:
        assert not mount(pid, root)
        seen = Path(f"/proc/{pid}/root{place}/limits")
        assert seen.read_text() == "8 GiB"
        assert os.statvfs(seen).f_flag & os.ST_RDONLY
        assert os.statvfs(seen).f_flag & os.ST_NOSUID
    assert list(place.iterdir()) == []


def test_nothing_is_mounted_where_no_place_was_prepared(root: Path) -> None:
    with container() as pid:
        assert "has not mounted" in mount(pid, root)
        assert "No such file" in mount(pid, root, "/run/none")
        assert list(Path(f"/proc/{pid}/root{root}/run/grant").iterdir()) == []


def test_a_link_is_followed_inside_the_files_alone(root: Path) -> None:
    """The host has a folder of that path, too: the placeholder itself."""
    (root / "run/grant").rmdir()
    (root / "run/grant").symlink_to(root.with_name("placeholder"))
    with container() as pid:
        assert "No such file" in mount(pid, root)


def test_the_namespace_must_be_another(root: Path) -> None:
    assert "no mount namespace of its own" in mount(None, root)
