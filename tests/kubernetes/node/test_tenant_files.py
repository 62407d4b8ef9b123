"""A tenant's file system: paths that lead nowhere, calls that never return, musl images."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.kubernetes.node.tenant_files import BoundedCalls, exists_below, is_musl

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 20.0


def open_files() -> int:
    gc.collect()  # closes what earlier tests left to the collector
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with all sorts of links; next to it is a file that must never be found."""
    made = tmp_path / "root"
    (made / "usr/lib").mkdir(parents=True)
    (made / "usr/lib/file").touch()
    (tmp_path / "secret").touch()
    (made / "lib").symlink_to("usr/lib")
    (made / "absolute").symlink_to("/usr/lib")
    (made / "usr/up").symlink_to("../../../usr/lib")
    (made / "out").symlink_to("../secret")
    (made / "far-out").symlink_to(tmp_path / "secret")
    (made / "loop").symlink_to("loop")
    (made / "circle").symlink_to("usr/../circle/usr")
    (made / "long").symlink_to("usr/../" * 100 + "usr")
    return made


@pytest.mark.parametrize(
    "path",
    [
        *("usr/lib/file", "/usr/lib/file", "usr//lib/./file", "lib/file", "absolute/file"),
        *("usr/up/file", "../../usr/lib/file", "lib/../lib/file", "lib", ""),
    ],
)
def test_existing_paths_are_found(root: Path, path: str) -> None:
    assert exists_below(root, path)


@pytest.mark.parametrize(
    "path",
    ["out", "far-out", "../secret", "loop", "circle", "long", "gone", "lib/file/on", "lib/gone"],
)
def test_no_path_leads_out_of_the_root_or_on_for_ever(root: Path, path: str) -> None:
    before = open_files()
    assert not exists_below(root, path)
    assert open_files() == before


def test_nothing_exists_below_a_root_that_is_gone(tmp_path: Path) -> None:
    assert not exists_below(tmp_path / "gone", "lib")


def test_the_root_of_a_process_is_followed() -> None:
    assert exists_below(Path("/proc/self/root"), "proc/self/root/proc")


@pytest.mark.parametrize(
    ("files", "musl"),
    [
        (["lib/ld-musl-x86_64.so.1"], True),
        (["lib/ld-musl-x86_64.so.1", "lib64/ld-linux-x86-64.so.2"], False),
        (["lib/ld-musl-aarch64.so.1", "lib/ld-linux-aarch64.so.1"], False),
        (["lib/ld-musl-x86_64.so.1", "usr/glibc-compat/lib/ld-linux-x86-64.so.2"], False),
        (["lib64/ld-linux-x86-64.so.2"], False),
        ([], False),
    ],
)
def test_a_musl_image_is_recognized(tmp_path: Path, files: list[str], *, musl: bool) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert is_musl(tmp_path) is musl


def test_links_of_an_image_stay_inside_it(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for folder in (root, elsewhere):
        folder.mkdir()
    (elsewhere / "ld-musl-x86_64.so.1").touch()
    (root / "lib").symlink_to(elsewhere)
    assert not is_musl(root), "the link is resolved inside the image"
    inside = root / elsewhere.relative_to("/")
    inside.mkdir(parents=True)
    (inside / "ld-musl-x86_64.so.1").touch()
    assert is_musl(root)


def test_a_stuck_call_costs_its_tenant_one_slot_and_others_nothing() -> None:
    never = threading.Event()
    ran: list[str] = []

    async def go() -> None:
        calls = BoundedCalls(seconds=0.01, slots=2)

        async def call(tenant: str, function: Callable[[], object]) -> object:
            return await calls.call(tenant, function)

        assert await call("a", never.wait) is None
        assert await call("a", lambda: ran.append("a")) is None
        assert await call("b", never.wait) is None
        assert await call("c", lambda: ran.append("c")) is None, "there are two slots"
        assert ran == []
        assert threading.active_count() <= before + 2
        never.set()
        async with asyncio.timeout(PATIENCE):
            while await call("a", lambda: "again") != "again":
                await asyncio.sleep(0.01)

    before = threading.active_count()
    try:
        asyncio.run(go())
    finally:
        never.set()


def test_the_caller_gets_the_exception_of_a_call() -> None:
    async def go() -> None:
        calls = BoundedCalls(seconds=PATIENCE)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await calls.call("a", lambda: 1 // 0)

    asyncio.run(go())


def test_a_program_can_end_while_a_call_is_stuck() -> None:
    program = (
        "import asyncio, threading\n"
        "from aliquot.kubernetes.node.tenant_files import BoundedCalls\n"
        "never = threading.Event()\n"
        "print(asyncio.run(BoundedCalls(seconds=0.01).call('a', never.wait)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
