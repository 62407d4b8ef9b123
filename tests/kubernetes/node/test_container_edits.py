"""The edits of a container, for a driver that is made of small files."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from aliquot.devices import CUDA, NVML, Driver, parse_shape, simulated_driver, with_compat
from aliquot.kubernetes.node.grants.container_edits import (
    BindMount,
    Host,
    edits_for,
    prepare_edits,
    resolve_on_node,
)
from aliquot.model.errors import DriverError
from slices.stand_ins import build_driver

VERSION = "580.159.04"
DEBIAN, RED_HAT = "/usr/lib/x86_64-linux-gnu", "/usr/lib64"
GRANT = Path("/run/aliquot/kept/pod-1")


class Node:
    """A node's file system in a folder, with a driver as its installer leaves it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.library = root / "usr/lib/x86_64-linux-gnu"
        self.home = root / "var/lib/aliquot"
        self.devices = root / "dev"
        for folder in (self.home, self.devices, self.library, root / "usr/bin"):
            folder.mkdir(parents=True)
        for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1"):
            (self.devices / name).touch()
        built = build_driver(root / "build", "cuInit", "nvmlInit_v2").read_bytes()
        self.install("libcuda", "1", built)
        self.install("libnvidia-ml", "1", built)
        self.install("libnvidia-ptxjitcompiler", "1", b"compiler")
        self.install("libnvidia-nvvm", "4", b"more compiler")
        self.install("libnvidia-glcore", "1", b"graphics")
        self.install("libnvidia-opencl", "1", b"another way to the GPU")
        (root / "usr/bin/nvidia-smi").write_text("program")

    def install(self, name: str, major: str, data: bytes) -> None:
        """A library under its version's name, with a link for the linker to it."""
        file = self.library / f"{name}.so.{VERSION}"
        file.write_bytes(data)
        (self.library / f"{name}.so.{major}").symlink_to(file.name)

    @property
    def driver(self) -> Driver:
        return Driver(cuda=self.library / CUDA, nvml=self.library / NVML)

    @property
    def host(self) -> Host:
        return Host(self.root, self.devices, "x86_64")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def by_target(mounts: tuple[BindMount, ...]) -> dict[str, BindMount]:
    found = {str(mount.target): mount for mount in mounts}
    assert len(found) == len(mounts), "nothing is mounted twice"
    return found


def test_the_stand_in_has_every_name_in_every_folder(node: Node) -> None:
    mounts = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    stand_in = mounts[f"{DEBIAN}/{CUDA}"].source
    assert (node.root / stand_in.relative_to("/")).is_file()
    assert stand_in.is_relative_to("/var/lib/aliquot")
    for folder in (DEBIAN, RED_HAT):
        for name in ("libcuda.so", CUDA, f"libcuda.so.{VERSION}"):
            assert mounts[f"{folder}/{name}"].source == stand_in
        for name in ("libnvidia-ml.so", NVML, f"libnvidia-ml.so.{VERSION}"):
            assert mounts[f"{folder}/{name}"].source == stand_in.with_name(NVML)
    for folder in ("/usr/local/nvidia/lib64", "/usr/local/cuda/compat"):
        assert mounts[folder].source == stand_in.parent
    assert all(mount.read_only for mount in mounts.values())


def test_the_driver_is_where_only_the_stand_ins_look(node: Node) -> None:
    mounts = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    for name, file in ((CUDA, f"libcuda.so.{VERSION}"), (NVML, f"libnvidia-ml.so.{VERSION}")):
        assert mounts[f"/usr/local/aliquot/driver/{name}"].source == Path(DEBIAN) / file
    elsewhere = [mount for target, mount in mounts.items() if "/aliquot/" not in target]
    assert Path(DEBIAN) / f"libcuda.so.{VERSION}" not in {mount.source for mount in elsewhere}


def test_libraries_that_the_driver_loads_by_name_are_mounted(node: Node) -> None:
    mounts = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    compiler = Path(DEBIAN) / f"libnvidia-ptxjitcompiler.so.{VERSION}"
    for folder in (DEBIAN, RED_HAT):
        for name in ("libnvidia-ptxjitcompiler.so.1", compiler.name):
            assert mounts[f"{folder}/{name}"].source == compiler
        assert f"{folder}/libnvidia-nvvm.so.4" in mounts
    assert mounts["/usr/bin/nvidia-smi"].source == Path("/usr/bin/nvidia-smi")
    assert not any("glcore" in target for target in mounts)


def test_a_newer_cuda_library_of_the_node_is_the_driver(node: Node) -> None:
    """A forward-compatibility package, whose libraries come before those of the driver."""
    compat = node.root / "usr/local/cuda-99.0/compat"
    compat.mkdir(parents=True)
    (node.root / "usr/local/cuda").symlink_to("/usr/local/cuda-99.0")
    for name in (CUDA, "libnvidia-ptxjitcompiler.so.1"):
        (compat / f"{name}.99").write_bytes((node.library / name).read_bytes() + b"newer")
        (compat / name).symlink_to(f"{name}.99")
    folder = resolve_on_node(node.root / "usr/local/cuda/compat", node.root)
    driver = with_compat(node.driver, folder)
    mounts = by_target(prepare_edits(driver, node.home, node.host).mounts)
    where = Path("/usr/local/cuda-99.0/compat")
    assert mounts[f"/usr/local/aliquot/driver/{CUDA}"].source == where / f"{CUDA}.99"
    nvml = Path(DEBIAN) / f"libnvidia-ml.so.{VERSION}"
    assert mounts[f"/usr/local/aliquot/driver/{NVML}"].source == nvml
    compiler = "libnvidia-ptxjitcompiler.so.1"
    assert mounts[f"{DEBIAN}/{compiler}"].source == where / f"{compiler}.99"
    assert mounts["/usr/local/cuda/compat"].source == mounts[f"{DEBIAN}/{CUDA}"].source.parent


def test_a_compat_folder_without_a_driver_library_is_refused(node: Node) -> None:
    folder = node.root / "usr/local/cuda/compat"
    with pytest.raises(DriverError, match="is not a driver library") as caught:
        with_compat(node.driver, folder)
    assert str(folder / CUDA) in str(caught.value)


def test_opencl_which_has_no_limits_is_not_mounted(node: Node) -> None:
    mounts = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    assert not any("opencl" in target for target in mounts)


def test_a_driver_behind_links_of_debians_alternatives(node: Node) -> None:
    """Absolute links are resolved on the node, wherever the agent sees its file system."""
    current, alternatives = node.root / "usr/lib/nvidia/current", node.root / "etc/alternatives"
    for folder in (current.parent, alternatives):
        folder.mkdir(parents=True)
    node.library.rename(current)
    node.library.mkdir()
    for name in (CUDA, NVML):
        (node.library / name).symlink_to(f"/etc/alternatives/{name}")
        (alternatives / name).symlink_to(f"../../usr/lib/nvidia/current/{name}")
    mounts = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    source = Path("/usr/lib/nvidia/current") / f"libcuda.so.{VERSION}"
    assert mounts[f"/usr/local/aliquot/driver/{CUDA}"].source == source
    assert f"{DEBIAN}/libnvidia-nvvm.so.4" in mounts


def test_arm_has_another_library_folder(node: Node) -> None:
    host = Host(node.root, node.devices, "aarch64")
    mounts = by_target(prepare_edits(node.driver, node.home, host).mounts)
    assert f"/usr/lib/aarch64-linux-gnu/{CUDA}" in mounts
    assert not any(DEBIAN in target for target in mounts)


def test_a_container_gets_the_device_nodes_of_its_gpus_and_its_grant(node: Node) -> None:
    common = prepare_edits(node.driver, node.home, node.host)
    edits = edits_for(common, GRANT, [7, 3])
    assert [str(path) for path in edits.devices] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia3",
        "/dev/nvidia7",
    ]
    assert edits.mounts == (*common.mounts, BindMount(GRANT, PurePosixPath("/run/aliquot/grant")))
    assert edits.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_missing_device_node_is_an_error(node: Node) -> None:
    (node.devices / "nvidia-uvm-tools").unlink()
    assert len(prepare_edits(node.driver, node.home, node.host).control_nodes or ()) == 2
    (node.devices / "nvidia-uvm").unlink()
    with pytest.raises(DriverError, match="nvidia-uvm is missing") as caught:
        prepare_edits(node.driver, node.home, node.host)
    assert "nvidia-modprobe" in str(caught.value)


def test_simulated_gpus_need_a_folder_and_no_device_nodes(tmp_path: Path) -> None:
    meeting_place = tmp_path / "machine"
    driver = simulated_driver(parse_shape("h100:2"), meeting_place)
    edits = edits_for(prepare_edits(driver, tmp_path), GRANT, [0])
    mounts = by_target(edits.mounts)
    assert edits.devices == ()
    assert mounts["/run/aliquot/machine"] == BindMount(
        meeting_place, PurePosixPath("/run/aliquot/machine"), read_only=False
    )
    folder = mounts["/usr/local/aliquot/driver"].source
    assert {path.name for path in folder.iterdir()} == {CUDA, NVML, "shapes.conf"}
    assert folder.is_relative_to(tmp_path)
