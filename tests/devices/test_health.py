"""GPUs that become unhealthy and recover, as a simulated NVML reports it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import pytest

import support
from aliquot.devices import (
    Driver,
    find_driver_in,
    find_driver_root,
    parse_shape,
    simulated_driver,
)
from aliquot.devices.health import HealthReport, HealthWatch
from aliquot.devices.installed import read_installed
from aliquot.model.errors import NoGpuError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# In a process of its own: a process sees one driver, the first that it asked.
FOLLOW = """
import json, sys, threading
from dataclasses import replace
from pathlib import Path
from aliquot.devices import parse_shape, read_inventory, simulated_driver
from aliquot.devices.health import HealthWatch
from aliquot.devices.installed import read_installed
driver = simulated_driver(parse_shape("h100:2"), Path(sys.argv[1]))
if len(sys.argv) > 2:  # files that are installed as a real driver's
    cuda, nvml = (Path(sys.argv[2]) / path.name for path in (driver.cuda, driver.nvml))
    driver = replace(driver, cuda=cuda, nvml=nvml, shape=None)
loaded = read_installed(driver)
uuids = [gpu.uuid for gpu in read_inventory(driver).gpus]
def report(said):
    problems = [said.problems[uuid] for uuid in uuids]
    print(json.dumps([problems, said.nvml, said.replaced, len(said.found)]), flush=True)
HealthWatch(driver, loaded, uuids, report, threading.Event()).run()
"""


class Machine:
    """Two GPUs whose health a test writes, and what the watch reports."""

    def __init__(self, place: Path, told: IO[str]) -> None:
        self._file = place / "health"
        self._told = told
        self._problems: list[str] | None = None

    def say(self, line: str) -> list[str]:
        """Change something about a GPU; return why each GPU is unhealthy then."""
        self.append(line)
        return self.told()

    def append(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{line}\n")

    def told(self) -> list[str]:
        """Why each GPU is unhealthy, when that has changed."""
        while (problems := self.report()[0]) == self._problems:
            pass
        self._problems = problems
        return problems

    def report(self) -> tuple[list[str], str, str, int]:
        """Also why NVML cannot be used, what has replaced the driver, and how many GPUs answer."""
        problems, nvml, replaced, found = json.loads(self._told.readline())
        return problems, nvml, replaced, found

    def install(self, library: str, module: str) -> None:
        new = self._file.with_name("driver.new")
        new.write_text(f"library {library}\nmodule {module}\n")
        new.rename(self._file.with_name("driver"))


@contextmanager
def followed(place: Path, *libraries: Path) -> Iterator[Machine]:
    command = [sys.executable, "-c", FOLLOW, str(place), *map(str, libraries)]
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
            file.write("0 xid 31\n0 xid 94\n0 xid 45\n")  # NVIDIA: restart the program
        first, second = machine.say("1 xid 62")
        assert not first
        assert second.startswith("Xid error 62: a microcontroller of the GPU halted")


@pytest.mark.parametrize(
    ("number", "said"),
    [(79, "NVIDIA advises: restart the node"), (109, "reset the GPU"), (4711, "Xid error 4711")],
)
def test_an_xid_says_what_to_do(tmp_path: Path, number: int, said: str) -> None:
    with followed(tmp_path) as machine:
        assert machine.told() == ["", ""]
        assert said in machine.say(f"0 xid {number}")[0]


def test_an_xid_is_over_when_the_driver_needs_no_recovery(tmp_path: Path) -> None:
    with followed(tmp_path) as machine:
        assert machine.told() == ["", ""]
        machine.append("0 action 1")
        assert machine.told()[0] == "it needs a reset"
        assert machine.say("0 xid 62")[0].startswith("Xid error 62")
        assert machine.say("0 action 0") == ["", ""]


def test_an_xid_of_an_older_driver_is_over_when_the_gpu_was_lost_and_is_back(
    tmp_path: Path,
) -> None:
    with followed(tmp_path) as machine:
        assert machine.told() == ["", ""]
        assert machine.say("0 xid 79")[0].startswith("Xid error 79")
        assert "does not answer" in machine.say("0 lost")[0]
        assert machine.say("0 recovered") == ["", ""]


def test_libraries_without_their_module_make_all_gpus_unhealthy(tmp_path: Path) -> None:
    with followed(tmp_path) as machine:
        machine.report()
        machine.install("590.1", "580.159.04")
        problems, nvml, replaced, found = machine.report()
        assert problems == [nvml, nvml]
        assert "590.1 and its kernel module has 580.159.04" in nvml
        assert (replaced, found) == ("", 2)  # the old NVML still works
        machine.install("580.159.04", "580.159.04")
        machine.report()
        (tmp_path / "driver").unlink()
        assert machine.report() == (["", ""], "", "", 2)


def test_a_driver_that_was_replaced_is_reported(tmp_path: Path) -> None:
    with followed(tmp_path) as machine:
        machine.report()
        machine.install("590.1", "590.1")
        assert machine.report()[2] == "version 590.1"
        while not (said := machine.report())[1]:  # a new session of NVML fails
            pass
        assert "version mismatch" in said[1]
        assert (said[2], said[3]) == ("version 590.1", 0)


def test_libraries_that_are_gone_may_have_been_replaced_by_others_elsewhere(
    tmp_path: Path,
) -> None:
    libraries = tmp_path / "lib"
    shutil.copytree(simulated_driver(parse_shape("h100:2"), tmp_path).cuda.parent, libraries)
    with followed(tmp_path, libraries) as machine:
        assert machine.report() == (["", ""], "", "", 2)
        libraries.rename(tmp_path / "gone")
        problems, nvml, replaced, found = machine.report()
        assert problems == [nvml, nvml] == ["the driver's libraries are missing"] * 2
        assert (replaced, found) == ("another", 2)


def test_an_nvml_that_fails_is_tried_ever_more_rarely(tmp_path: Path) -> None:
    class Pauses(threading.Event):
        """Set after six pauses, none of which takes time."""

        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []

        def wait(self, timeout: float | None = None) -> bool:
            self.seconds.append(timeout or 0.0)
            if len(self.seconds) == 6:
                self.set()
            return self.is_set()

    pauses, reports = Pauses(), list[HealthReport]()
    driver = Driver(tmp_path / "libcuda.so.1", tmp_path / "libnvidia-ml.so.1")
    HealthWatch(driver, read_installed(driver), ["GPU-a"], reports.append, pauses).run()
    assert pauses.seconds == sorted(pauses.seconds)
    assert pauses.seconds[0] == 1.0
    assert 4.0 < pauses.seconds[-1] < 10.0, "longer, but not so long that NVML seems to hang"
    assert ["cannot be used" in report.nvml for report in reports] == [True]


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
        find_driver_root(tmp_path)
    real = simulated_driver(parse_shape("h100:1"), tmp_path)
    folder = tmp_path / root / f"usr/lib/{os.uname().machine}-linux-gnu"
    folder.mkdir(parents=True)
    for library in (real.cuda, real.nvml):
        (folder / library.name).write_bytes(library.read_bytes())
    assert find_driver_in(find_driver_root(tmp_path)).cuda == folder / "libcuda.so.1"
