"""A process that never calls CUDA: the stand-in is loaded and does nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from aliquot.devices import CUDA, NVML
from standin.machine import GIB, Grant, Machine

FLOOR = (2, 17)


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(GIB)


def coreutils() -> list[str]:
    listed = subprocess.run(
        ["dpkg-query", "--listfiles", "coreutils"], capture_output=True, text=True, check=False
    ).stdout.split()
    programs = [path for path in listed if re.fullmatch(r"(/usr)?/s?bin/[a-z0-9]+", path)]
    return programs or ["/bin/ls", "/bin/cat", "/bin/true", "/bin/sort"]


def test_programs_without_cuda_start_as_they_do_without_the_stand_in(
    machine: Machine, grant: Grant
) -> None:
    for program in coreutils():
        command = [program, "--version"]
        with_it = machine.run(grant, *command)
        without = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (with_it.returncode, with_it.stdout, with_it.stderr) == (
            without.returncode,
            without.stdout,
            without.stderr,
        ), program


def test_a_program_without_cuda_maps_no_driver(machine: Machine, grant: Grant) -> None:
    maps = machine.run(grant, "cat", "/proc/self/maps").stdout
    assert str(machine.library / CUDA) in maps
    assert str(machine.driver) not in maps
    assert NVML not in maps
    assert str(grant.directory) not in maps


def test_a_program_without_cuda_needs_no_grant_and_no_arbiter(
    machine: Machine, grant: Grant
) -> None:
    machine.stop_arbiter()
    done = machine.run(None, "cat", "/proc/self/comm")
    assert (done.returncode, done.stdout, done.stderr) == (0, "cat\n", "")


def test_shells_and_their_children_run_with_the_stand_in(machine: Machine, grant: Grant) -> None:
    done = machine.run(grant, "sh", "-c", "ls /proc/self/fd | cat | wc -l; exit 7")
    assert (done.returncode, done.stderr) == (7, "")


def test_no_descriptor_stays_open_in_a_tenant(machine: Machine, grant: Grant) -> None:
    """A child could inherit a descriptor of the arbiter's."""
    tenant = machine.tenant(grant).start()
    links = [fd.readlink() for fd in Path(f"/proc/{tenant.pid}/fd").iterdir()]
    ours = [str(link) for link in links if str(grant.directory) in str(link)]
    sockets = [str(link) for link in links if str(link).startswith("socket:")]
    assert ours == sockets == []


@pytest.mark.parametrize("name", [CUDA, NVML])
def test_the_stand_in_loads_on_an_old_system(native_dir: Path, name: str) -> None:
    library = str(native_dir / "lib" / name)
    if re.search(r"lib[atu]b?san", dumped("-p", library)):
        pytest.skip("a sanitized build needs its sanitizer's libraries")
    versions = {
        tuple(int(part) for part in number.split("."))
        for number in re.findall(r"GLIBC_([0-9.]+)", dumped("-T", library))
    }
    assert versions
    assert max(versions) <= FLOOR
    needed = set(re.findall(r"NEEDED\s+(\S+)", dumped("-p", library)))
    assert needed <= {"libc.so.6", "libdl.so.2"}


def dumped(flag: str, library: str) -> str:
    return subprocess.run(
        ["objdump", flag, library], capture_output=True, text=True, check=True
    ).stdout
