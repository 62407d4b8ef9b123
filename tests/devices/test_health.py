"""GPUs that become unhealthy and recover, as a simulated NVML reports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import pytest

import support
from aliquot.devices import find_driver_in, parse_shape, simulated_driver
from aliquot.model.errors import NoGpuError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# In a process of its own: a process sees one driver, the first that it asked.
FOLLOW = """
import json, sys, threading
from pathlib import Path
from aliquot.devices import parse_shape, read_inventory, simulated_driver
from aliquot.devices.health import HealthWatch
driver = simulated_driver(parse_shape("h100:2"), Path(sys.argv[1]))
uuids = [gpu.uuid for gpu in read_inventory(driver).gpus]
def report(reasons):
    print(json.dumps([reasons[uuid] for uuid in uuids]), flush=True)
HealthWatch(driver, uuids, report, threading.Event()).run()
"""


class Machine:
    """Two GPUs whose health a test writes, and what the watch reports."""

    def __init__(self, place: Path, told: IO[str]) -> None:
        self._file = place / "health"
        self._told = told

    def say(self, line: str) -> list[str]:
        """Change something about a GPU; return why each GPU is unhealthy then."""
        with self._file.open("a") as file:
            file.write(f"{line}\n")
        return self.told()

    def told(self) -> list[str]:
        told: list[str] = json.loads(self._told.readline())
        return told


@contextmanager
def followed(place: Path) -> Iterator[Machine]:
    command = [sys.executable, "-c", FOLLOW, str(place)]
    with subprocess.Popen(
        command, env=support.environment(), stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout
        try:
            yield Machine(place, watch.stdout)
        finally:
            watch.kill()


def test_a_lost_gpu_is_unhealthy_until_it_recovers(tmp_path: Path) -> None:
    with followed(tmp_path) as machine:
        assert machine.told() == ["", ""]
        first, second = machine.say("1 lost")
        assert not first
        assert "does not answer" in second
        assert machine.say("1 recovered") == ["", ""]


def test_memory_errors_make_a_gpu_unhealthy(tmp_path: Path) -> None:
    with followed(tmp_path) as machine:
        assert machine.told() == ["", ""]
        first, second = machine.say("0 ecc 3")
        assert first
        assert not second
        assert machine.say("0 recovered") == ["", ""]


def test_only_xids_not_caused_by_programs_make_a_gpu_unhealthy(tmp_path: Path) -> None:
    with followed(tmp_path) as machine:
        assert machine.told() == ["", ""]
        with (tmp_path / "health").open("a") as file:
            file.write("0 xid 31\n")  # a program's fault
        assert machine.say("1 xid 62") == ["", "Xid error 62"]


def test_skip_lost_leaves_a_lost_gpu_out(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("0 lost\n")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from aliquot.devices import parse_shape, read_inventory, simulated_driver\n"
        "from aliquot.devices.device_location import read_locations\n"
        "driver = simulated_driver(parse_shape('h100:3'), Path(sys.argv[1]))\n"
        "gpus = read_inventory(driver, skip_lost=True).gpus\n"
        "print([(gpu.index, [link.index for link in gpu.links]) for gpu in gpus])\n"
        "print([one.minor for one in read_locations(driver, gpus).values()])\n"
        "read_inventory(driver)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=support.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["[(1, [2]), (2, [1])]", "[1, 2]"]
    assert "DriverError" in done.stderr


@pytest.mark.parametrize("root", [".", "run/nvidia/driver"])
def test_the_driver_in_another_root_is_found(tmp_path: Path, root: str) -> None:
    with pytest.raises(NoGpuError, match="no GPU driver found in"):
        find_driver_in(tmp_path)
    real = simulated_driver(parse_shape("h100:1"), tmp_path)
    folder = tmp_path / root / f"usr/lib/{os.uname().machine}-linux-gnu"
    folder.mkdir(parents=True)
    for library in (real.cuda, real.nvml):
        (folder / library.name).write_bytes(library.read_bytes())
    assert find_driver_in(tmp_path).cuda == folder / "libcuda.so.1"
