"""The file of a simulated machine that a build of another version left behind."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from sim.conftest import Start

VERSION_AT = 8
COUNT = """
import pynvml
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)), flush=True)
input()
"""


@pytest.fixture
def file(sim_env: dict[str, str], start: Start) -> Path:
    """The file of a machine that a program has used."""
    program = start("nvml")
    assert program("call", "nvmlInit") is None
    program.end()
    return Path(sim_env["ALIQUOT_SIMULATE_STATE"]) / "machine"


def age(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(VERSION_AT)
        stream.write(struct.pack("<I", 4))


def version_of(file: Path) -> int:
    return int(struct.unpack_from("<I", file.read_bytes(), VERSION_AT)[0])


def start_counting(env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COUNT],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_is_made_anew_with_the_same_gpus(sim_env: dict[str, str], file: Path) -> None:
    before, found = version_of(file), []
    for spoil in (lambda: None, lambda: age(file), lambda: file.write_bytes(b"older")):
        spoil()
        with start_counting(sim_env) as program:
            found.append(program.communicate("\n")[0])
        assert version_of(file) == before
    assert found[0].startswith("GPU-")
    assert found == found[:1] * 3


def test_it_stays_while_a_process_has_it_open(sim_env: dict[str, str], file: Path) -> None:
    with start_counting(sim_env) as first:
        assert first.stdout
        assert first.stdout.readline().startswith("GPU-")
        age(file)
        with start_counting(sim_env) as second:
            said = second.communicate("\n")[1]
        assert f"{file} is of another version, and process {first.pid} uses it" in said
        assert version_of(file) == 4
        first.communicate("\n")
    with start_counting(sim_env) as third:
        assert third.communicate("\n")[0].startswith("GPU-")


def test_processes_that_find_it_at_once_make_one_machine(
    sim_env: dict[str, str], file: Path, start: Start
) -> None:
    age(file)
    programs = [start("driver") for _ in range(6)]
    for program in programs:
        program.ask("begin")
    for program in programs:
        program.answer()
    watcher = start("nvml")
    assert watcher("call", "nvmlInit") is None
    assert watcher("processes", 0).keys() == {str(program.pid) for program in programs}
