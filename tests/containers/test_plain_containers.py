"""Plain containers by real runtimes: three with slices, and what holds for each."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot import devices
from aliquot.devices import CUDA, NVML
from aliquot.slices import control
from conftest import Cli
from containers.probe_images import is_limited_to, parse_probe, probe_image
from containers.runtimes import Containerd, ContainerRuntime, Podman, missing
from support import GIB, wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: containers"),
    pytest.mark.skipif(not shutil.which("busybox"), reason="needs busybox"),
]

SHAPE = ("--simulate", "h100:1")
OUT_OF_MEMORY = 2
PROBE = ("/bin/probe", CUDA, NVML)
HOLD = ("sh", "-c", f"sleep 2147483647 | exec {' '.join(PROBE)} {GIB} stay")
SLEEP = ("sleep", "2147483647")


@pytest.fixture(params=[Containerd, Podman])
def runtime(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[ContainerRuntime]:
    if why := missing(request.param):
        pytest.skip(why)
    folder = short_tmp / "images"
    folder.mkdir()
    image = probe_image("aliquot.test/probe:1", devices.native_dir(), folder)
    one: ContainerRuntime = request.param(short_tmp / "runtime", image)
    yield one
    one.close()


@pytest.fixture
def prefix(cli: Cli) -> Iterator[str]:
    """The beginning of the names of slices: runtimes of all tests read the same folder."""
    yield (name := f"t{os.getpid()}")
    found = json.loads(cli("slice", "list", "--json", *SHAPE).stdout)["slices"]
    if names := [one["name"] for one in found if one["name"].startswith(name)]:
        cli("slice", "delete", *names, *SHAPE)


def counted(state: Path, name: str) -> int:
    grants = control.status(state).grants
    return next(grant.use[0].counted_bytes for grant in grants if grant.name == name)


def test_three_containers_with_slices(
    cli: Cli, aliquot_state: Path, runtime: ContainerRuntime, prefix: str
) -> None:
    state = aliquot_state / "simulated" / "h100-1"
    sizes = {f"{prefix}-{name}": size for name, size in (("over", 2), ("kill", 3), ("exec", 5))}
    for name, size in sizes.items():
        done = cli("slice", "create", "--memory", f"{size}GiB", "--name", name, *SHAPE)
        assert done.returncode == 0, done.stderr
    over, killed, executed = sizes
    devices_of = {name: f"aliquot.io/slice={name}" for name in sizes}

    runtime.start(killed, devices_of[killed], *HOLD)
    runtime.start(executed, devices_of[executed], *SLEEP)
    done = runtime.run(over, devices_of[over], *PROBE, str(3 * GIB))
    found = parse_probe(done.stdout)
    assert found["alloc"] == OUT_OF_MEMORY, "more than its own slice, and less than the GPU"
    assert is_limited_to(found, 2 * GIB)

    for command in (PROBE, ("env", "-i", *PROBE), ("sh", "-l", "-c", " ".join(PROBE))):
        found = parse_probe(runtime.execute(executed, *command).stdout)
        assert is_limited_to(found, 5 * GIB), command

    wait_until(lambda: counted(state, killed) > GIB)
    begun = time.monotonic()
    runtime.kill(killed)
    wait_until(lambda: counted(state, killed) == 0)
    assert time.monotonic() - begun < 1


def test_a_deleted_slice_starts_no_container(
    cli: Cli, runtime: ContainerRuntime, prefix: str
) -> None:
    name = f"{prefix}-gone"
    cli("slice", "create", "--memory", "2GiB", "--name", name, *SHAPE)
    cli("slice", "delete", name, *SHAPE)
    done = runtime.run(name, f"aliquot.io/slice={name}", *PROBE)
    assert done.returncode != 0
    assert name in done.stderr
