"""Processes that race for one slice and are killed at any instruction never exceed its limit.

ALIQUOT_STORM_SECONDS and ALIQUOT_STORM_KILLS shorten it; ALIQUOT_TEST_NATIVE names another build,
whose sanitizer the tenants are then built with.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aliquot.devices import CUDA, NVML
from standin import pages
from standin.conftest import MakeMachine
from standin.machine import CONTEXT, GIB, TESTS, Grant, Machine
from support import wait_until

PROCESSES = 64
THREADS = 8
SECONDS = float(os.environ.get("ALIQUOT_STORM_SECONDS", "30"))
KILLS = int(os.environ.get("ALIQUOT_STORM_KILLS", "1000"))
# The slice's size, and the part of the time: large enough for every process's context, but not for
# all that they try to allocate; large enough for some of the contexts only. And whether the memory
# can leave the GPU.
SIZES = {
    "every context": (PROCESSES * CONTEXT + 8 * GIB, 1.0, False),
    "a part of the contexts": (PROCESSES // 4 * CONTEXT + 2 * GIB, 0.2, False),
    "memory that can leave": (PROCESSES // 4 * CONTEXT + 2 * GIB, 0.2, True),
}

SOURCES = TESTS / "native" / "storm"
NATIVE = TESTS.parent / "native"
COMPLAINT = re.compile(r"Sanitizer|runtime error|invariant broken|not true:|storm: ")
# A killed tenant cannot be asked for its leaks.
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def sanitizer_of(native: Path) -> list[str]:
    """The compiler flags of the build's sanitizer."""
    needed = subprocess.run(
        ["objdump", "-p", str(native / "lib" / CUDA)], capture_output=True, text=True, check=True
    ).stdout
    if "libtsan" in needed:
        return ["-fsanitize=thread"]
    return ["-fsanitize=address,undefined"] if "libasan" in needed else []


def headers() -> Path:
    """The folder with cuda.h."""
    finder = NATIVE / "tools" / "find_headers.py"
    found = subprocess.run(
        [sys.executable, str(finder)], capture_output=True, text=True, check=True
    )
    return Path(found.stdout.strip())


@pytest.fixture(scope="session")
def programs(native_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `storm` and `watch`."""
    folder = tmp_path_factory.mktemp("storm")
    flags = ["-std=gnu11", "-O1", "-g", "-pthread", f"-I{NATIVE / 'include'}", f"-I{headers()}"]
    for name in ("storm", "watch"):
        command = ["gcc", *flags, *sanitizer_of(native_dir), str(SOURCES / f"{name}.c")]
        subprocess.run([*command, "-o", str(folder / name), "-ldl"], check=True)
    return folder


@dataclass
class Storm:
    """Tenants that race on one grant; `said` has their output, a dot for each that started."""

    program: Path
    machine: Machine
    grant: Grant
    folder: Path
    random: random.Random = field(default_factory=lambda: random.Random(20261115))  # noqa: S311
    tenants: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0

    def __post_init__(self) -> None:
        # The stand-in by its path: a sanitizer's library must come before anything preloaded.
        self.environment = {
            **self.machine.inside(self.grant, LD_PRELOAD=None, LD_LIBRARY_PATH=None),
            **SANITIZERS,
        }
        self.command = [str(self.program), str(self.machine.library / CUDA), str(THREADS)]
        self.said = (self.folder / "said").open("wb")
        self.raged = (self.folder / "raged").open("wb")
        # Children left behind stay until this ends.
        self.until, self.end = os.pipe()

    def add(self) -> None:
        self.started += 1
        self.tenants.append(
            subprocess.Popen(
                [*self.command, str(self.started)],
                env=self.environment,
                stdin=self.until,
                stdout=self.raged,
                stderr=self.said,
            )
        )

    def kill_one(self) -> None:
        victim = self.tenants.pop(self.random.randrange(len(self.tenants)))
        self._kill(victim)

    def kill_all(self) -> None:
        while self.tenants:
            self._kill(self.tenants.pop())

    def _kill(self, victim: subprocess.Popen[bytes]) -> None:
        assert victim.poll() is None, f"ended by itself with {victim.returncode}: {self.words()}"
        victim.kill()
        victim.wait()

    def check(self) -> None:
        for tenant in self.tenants:
            assert tenant.poll() is None, f"ended with {tenant.returncode}: {self.words()}"

    def words(self) -> str:
        return (self.folder / "said").read_text("utf-8", "replace")[-4000:]

    def close(self) -> None:
        for tenant in self.tenants:
            tenant.kill()
            tenant.wait()
        os.close(self.end)
        os.close(self.until)
        self.said.close()
        self.raged.close()


@dataclass
class Seen:
    """The largest use seen at any instant."""

    looks: int
    ledger: int
    nvml_processes: int
    nvml_gpu: int
    limit: int


@contextmanager
def watched(program: Path, machine: Machine, grant: Grant) -> Iterator[list[Seen]]:
    """Sample as often as possible during the block; then the list holds what was seen."""
    pages_of = [str(grant.directory / name) for name in ("limits", "usage")]
    watcher = subprocess.Popen(
        [str(program), str(machine.driver / NVML), *pages_of],
        env={**machine.bare(), **SANITIZERS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: list[Seen] = []
    assert watcher.stdout
    assert watcher.stdout.readline() == "watching\n"
    try:
        yield seen
    finally:
        figures, _ = watcher.communicate(timeout=60)
        if watcher.returncode == 0:
            seen.append(Seen(*map(int, figures.split())))


def rage(storm: Storm, seconds: float, kills: int) -> None:
    """Kill one tenant after the other, evenly over the time, and replace each at once."""
    begin, killed = time.monotonic(), 0
    while (now := time.monotonic() - begin) < seconds or killed < kills:
        if killed < min(kills, kills * now / seconds):
            storm.kill_one()
            storm.add()
            killed += 1
        else:
            storm.check()
            time.sleep(0.001)  # the pace of the killing; nothing is waited for


def taken(limits: pages.Limits) -> list[int]:
    """The slots that are not free."""
    return [at for at, one in enumerate(limits.processes) if one.state != pages.FREE]


@pytest.mark.shares
@pytest.mark.timeout(SECONDS * 4 + 300)
@pytest.mark.parametrize("size", SIZES)
def test_the_limit_is_never_exceeded_and_no_charge_is_left(
    make_machine: MakeMachine, programs: Path, tmp_path: Path, size: str
) -> None:
    limit, part, swap = SIZES[size]
    machine = make_machine("h100:1")
    grant = machine.grant(limit, swap=swap)
    storm = Storm(programs / "storm", machine, grant, tmp_path)
    try:
        with watched(programs / "watch", machine, grant) as seen:
            for _ in range(PROCESSES):
                storm.add()
            rage(storm, SECONDS * part, int(KILLS * part))
            assert machine.status()["grants"][0]["broken"] is None
            storm.kill_all()
            limits, usage = grant.limits(), grant.usage()
            wait_until(lambda: not taken(limits), 30)
        (most,) = seen
        assert most.limit == limit
        assert most.looks > 100
        assert limit * 0.8 < most.ledger <= limit
        assert 0 < most.nvml_processes <= limit
        assert most.nvml_gpu <= limit

        assert grant.counted() == 0
        assert limits.slices[0].driver_bytes == 0
        assert all(pages.bytes_in(entry.held) == 0 for entry in usage.slices[0].entries)
        assert all(entry.managed == 0 for entry in usage.slices[0].entries)
        assert machine.grant_status(grant)["processes"] == []
        newcomer = machine.tenant(grant).start() if not sanitizer_of(machine.native) else None
        assert newcomer is None or newcomer("alloc", GIB)[0] == 0

        assert not COMPLAINT.search(storm.words()), storm.words()
        assert (tmp_path / "raged").stat().st_size >= PROCESSES // 4, "hardly any began"
    finally:
        storm.close()
    machine.close()
    assert not COMPLAINT.search(machine.said()), machine.said()[-4000:]
