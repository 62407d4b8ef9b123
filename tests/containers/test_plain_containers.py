"""Plain containers by real runtimes: three with slices, and what holds for each."""

from __future__ import annotations

import json
import os
import select
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot import devices
from aliquot.devices import CUDA, NVML
from aliquot.slices import control
from cluster.images import Image
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


@pytest.fixture
def image(short_tmp: Path) -> Image:
    folder = short_tmp / "images"
    folder.mkdir()
    return probe_image("aliquot.test/probe:1", devices.native_dir(), folder)


@pytest.fixture(params=[Containerd, Podman])
def runtime(
    request: pytest.FixtureRequest, short_tmp: Path, image: Image
) -> Iterator[ContainerRuntime]:
    if why := missing(request.param):
        pytest.skip(why)
    one: ContainerRuntime = request.param(short_tmp / "runtime", image)
    yield one
    one.close()


@pytest.fixture
def prefix(cli: Cli) -> Iterator[str]:
    """The beginning of the names of slices: runtimes of all tests read the same folder."""
    yield f"t{os.getpid()}"
    found = json.loads(cli("slice", "list", "--json", *SHAPE).stdout)
    if names := [one["name"] for one in (*found["slices"], *found["sizes"])]:
        cli("slice", "delete", *names, *SHAPE)


@pytest.fixture
def state(aliquot_state: Path) -> Path:
    return aliquot_state / "simulated" / "h100-1"


def counted(state: Path, name: str) -> int:
    grants = control.status(state).grants
    return next(grant.use[0].counted_bytes for grant in grants if grant.name == name)


def process_in(state: Path, name: str) -> int:
    """The process that uses the GPU in a grant."""
    (grant,) = (grant for grant in control.status(state).grants if grant.name == name)
    (process,) = grant.processes
    return process.pid


def kill(runtime: ContainerRuntime, container: str, pid: int) -> float:
    """Kill a container; when the process of it died."""
    process = os.pidfd_open(pid)
    try:
        runtime.kill(container)
        assert select.select([process], [], [], 60)[0]
        return time.monotonic()
    finally:
        os.close(process)


def publish(cli: Cli, name: str, *options: str) -> str:
    """Publish a size; its device."""
    done = cli("slice", "publish", name, *options, *SHAPE)
    assert done.returncode == 0, done.stderr
    return f"aliquot.io/slice={name}"


def test_three_containers_with_slices(
    cli: Cli, state: Path, runtime: ContainerRuntime, prefix: str
) -> None:
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
    died = kill(runtime, killed, process_in(state, killed))
    wait_until(lambda: counted(state, killed) == 0)
    assert time.monotonic() - died < 1


def test_a_deleted_slice_starts_no_container(
    cli: Cli, runtime: ContainerRuntime, prefix: str
) -> None:
    name = f"{prefix}-gone"
    cli("slice", "create", "--memory", "2GiB", "--name", name, *SHAPE)
    cli("slice", "delete", name, *SHAPE)
    done = runtime.run(name, f"aliquot.io/slice={name}", *PROBE)
    assert done.returncode != 0
    assert name in done.stderr


def test_every_container_of_a_size_has_a_slice_of_its_own(
    cli: Cli, state: Path, runtime: ContainerRuntime, prefix: str
) -> None:
    device = publish(cli, f"{prefix}-size", "--memory", "3GiB", "--compute", "40")
    assert control.status(state).grants == ()
    killed, executed, over = (f"{prefix}-{name}" for name in ("kill", "exec", "over"))
    runtime.start(killed, device, *HOLD)
    runtime.start(executed, device, *SLEEP)
    wait_until(lambda: any(grant.processes for grant in control.status(state).grants))
    first, second = control.status(state).grants
    assert {first.slices[0].memory_bytes, second.slices[0].memory_bytes} == {3 * GIB}
    assert first.cgroup_is_told
    assert second.cgroup_is_told
    (listed,) = json.loads(cli("slice", "list", "--json", *SHAPE).stdout)["sizes"]
    assert sorted(listed["grants"]) == sorted([first.name, second.name])

    refused = runtime.run(over, device, *PROBE)
    assert refused.returncode != 0
    assert "no GPU has 3 GiB and 40% of its compute time free" in refused.stderr + refused.stdout

    for command in (PROBE, ("env", "-i", *PROBE), ("sh", "-l", "-c", " ".join(PROBE))):
        found = parse_probe(runtime.execute(executed, *command).stdout)
        assert is_limited_to(found, 3 * GIB), command

    if second.processes:
        first, second = second, first
    died = kill(runtime, killed, process_in(state, first.name))
    wait_until(lambda: [grant.name for grant in control.status(state).grants] == [second.name])
    assert time.monotonic() - died < 1
    found = parse_probe(runtime.run(over, device, *PROBE, str(4 * GIB)).stdout)
    assert found["alloc"] == OUT_OF_MEMORY
    assert is_limited_to(found, 3 * GIB)


def test_a_container_of_a_size_needs_an_arbiter(
    cli: Cli, state: Path, runtime: ContainerRuntime, prefix: str
) -> None:
    device = publish(cli, f"{prefix}-size", "--memory", "3GiB")
    control.end_for_next(state)
    wait_until(lambda: not control.answers(state))
    refused = runtime.run(f"{prefix}-alone", device, *PROBE)
    assert refused.returncode != 0
    assert "no arbiter answers" in refused.stderr + refused.stdout


@pytest.mark.skipif(bool(missing(Containerd)), reason="containerd is not built: make kubernetes")
def test_no_link_of_an_image_leads_the_mount_outside(
    cli: Cli, state: Path, image: Image, short_tmp: Path, prefix: str
) -> None:
    """When the hook runs, an absolute link in the image would still lead to the host's files."""
    outside = short_tmp / "outside"
    (outside / "aliquot/grant").mkdir(parents=True)
    image.add_link("/run", str(outside))
    device = publish(cli, f"{prefix}-size", "--memory", "3GiB")
    runtime = Containerd(short_tmp / "runtime", image)
    try:
        done = runtime.run(f"{prefix}-link", device, *PROBE)
        assert is_limited_to(parse_probe(done.stdout), 3 * GIB), done.stderr
    finally:
        runtime.close()
    assert list((outside / "aliquot/grant").iterdir()) == []
    wait_until(lambda: control.status(state).grants == ())
