"""The edits of a container, for a driver that is made of small files."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from aliquot.containers.container_edits import (
    BindMount,
    Host,
    check_sources,
    grant_edits,
    prepare_edits,
)
from aliquot.containers.driver_files import CAPABILITIES, parse_capabilities
from aliquot.devices import (
    CUDA,
    NVML,
    Driver,
    find_driver_in,
    find_driver_root,
    parse_shape,
    simulated_driver,
    with_compat,
)
from aliquot.devices.linker import resolve_below
from aliquot.model.errors import DriverError, NoGpuError
from slices.stand_ins import build_driver

VERSION = "580.159.04"
NEWER = "590.44.01"
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
        (root / "usr/bin/nvidia-smi").write_bytes(b"\x7fELF and no shared library")

    def install(self, name: str, major: str, data: bytes, version: str = VERSION) -> None:
        """A library under its version's name, with a link for the linker to it."""
        file = self.library / f"{name}.so.{version}"
        file.write_bytes(data)
        (self.library / f"{name}.so.{major}").unlink(missing_ok=True)
        (self.library / f"{name}.so.{major}").symlink_to(file.name)

    def update(self) -> None:
        """Install another version of the driver, which has a library less."""
        for name, major in (("libcuda", "1"), ("libnvidia-ml", "1"), ("libnvidia-nvvm", "4")):
            old = self.library / f"{name}.so.{VERSION}"
            self.install(name, major, old.read_bytes() + b"newer", NEWER)
            old.unlink()
        for path in self.library.glob("libnvidia-ptxjitcompiler*"):
            path.unlink()

    @property
    def driver(self) -> Driver:
        return Driver(cuda=self.library / CUDA, nvml=self.library / NVML)

    @property
    def host(self) -> Host:
        return self.host_of("x86_64")

    def host_of(self, machine: str) -> Host:
        return Host(self.root, self.root, self.devices, self.root / "proc", machine)

    def file(self, mount: BindMount) -> Path:
        """The file or folder that a runtime on the node mounts."""
        found = resolve_below(self.root / mount.source.relative_to("/"), self.root)
        assert found.exists(), mount
        return Path("/") / found.relative_to(self.root)


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
    assert node.file(mounts[f"{DEBIAN}/{CUDA}"]).is_relative_to("/var/lib/aliquot")
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
        assert node.file(mounts[f"/usr/local/aliquot/driver/{name}"]) == Path(DEBIAN) / file
    elsewhere = [mount for target, mount in mounts.items() if "/aliquot/" not in target]
    assert Path(DEBIAN) / f"libcuda.so.{VERSION}" not in set(map(node.file, elsewhere))


def test_libraries_that_the_driver_loads_by_name_are_mounted(node: Node) -> None:
    mounts = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    compiler = Path(DEBIAN) / f"libnvidia-ptxjitcompiler.so.{VERSION}"
    for folder in (DEBIAN, RED_HAT):
        for name in ("libnvidia-ptxjitcompiler.so.1", compiler.name):
            assert node.file(mounts[f"{folder}/{name}"]) == compiler
        assert f"{folder}/libnvidia-nvvm.so.4" in mounts
    assert node.file(mounts["/usr/bin/nvidia-smi"]) == Path("/usr/bin/nvidia-smi")


def test_each_file_of_the_driver_has_its_capability(node: Node) -> None:
    for name in ("libnvidia-encode", "libnvidia-cfg", "libnvidia-eglcore"):
        node.install(name, "1", name.encode())
    icd = node.root / "usr/share/vulkan/icd.d/nvidia_icd.json"
    icd.parent.mkdir(parents=True)
    icd.write_text("{}", "utf-8")
    edits = prepare_edits(node.driver, node.home, node.host)
    found = {Path(target).name: one.capability for target, one in by_target(edits.mounts).items()}
    wanted = {
        "libnvidia-ptxjitcompiler.so.1": "compute",
        "libnvidia-nvvm.so.4": "compute",
        "libnvidia-cfg.so.1": "utility",
        "nvidia-smi": "utility",
        "libnvidia-encode.so.1": "video",
        "libnvidia-eglcore.so.1": "graphics",
        "libnvidia-glcore.so.1": "graphics",
        "nvidia_icd.json": "graphics",
        CUDA: "",
        NVML: "",
    }
    assert {name: found[name] for name in wanted} == wanted


def test_a_container_gets_the_capabilities_that_it_wants(node: Node) -> None:
    node.install("libnvidia-encode", "1", b"video")
    edits = prepare_edits(node.driver, node.home, node.host)

    def names(wanted: frozenset[str] | None) -> set[str]:
        return {one.target.name for one in edits.of_capabilities(wanted).mounts}

    always = {one.target.name for one in edits.always().mounts}
    assert {CUDA, NVML} <= always
    assert edits.always().devices == edits.devices
    assert names(frozenset({"video"})) == {f"libnvidia-encode.so.{end}" for end in ("1", VERSION)}
    assert names(frozenset()) == set()
    every = {one.target.name for one in edits.mounts}
    assert names(None) | always == every
    assert names(frozenset(CAPABILITIES)) == names(None)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("all", None),
        ("compute,ALL", None),
        ("compute,utility", {"compute", "utility"}),
        (" graphics , video ", {"graphics", "video"}),
        ("display", {"graphics"}),
        ("", {"compute", "utility"}),
        ("compat32,unheard", set()),
    ],
)
def test_the_variable_is_read_as_nvidias_toolkit_reads_it(
    text: str, wanted: set[str] | None
) -> None:
    assert parse_capabilities(text) == wanted


def test_a_newer_cuda_library_of_the_node_is_the_driver(node: Node) -> None:
    """A forward-compatibility package, whose libraries come before those of the driver."""
    compat = node.root / "usr/local/cuda-99.0/compat"
    compat.mkdir(parents=True)
    (node.root / "usr/local/cuda").symlink_to("/usr/local/cuda-99.0")
    for name in (CUDA, "libnvidia-ptxjitcompiler.so.1"):
        (compat / f"{name}.99").write_bytes((node.library / name).read_bytes() + b"newer")
        (compat / name).symlink_to(f"{name}.99")
    for folder, version in ((compat, NEWER), (node.library, VERSION)):
        (folder / f"libnvidia-gpucomp.so.{version}").write_text(version)
    folder = node.host.resolve(node.root / "usr/local/cuda/compat")
    driver = with_compat(node.driver, folder)
    mounts = by_target(prepare_edits(driver, node.home, node.host).mounts)
    where = Path("/usr/local/cuda-99.0/compat")
    assert node.file(mounts[f"/usr/local/aliquot/driver/{CUDA}"]) == where / f"{CUDA}.99"
    nvml = Path(DEBIAN) / f"libnvidia-ml.so.{VERSION}"
    assert node.file(mounts[f"/usr/local/aliquot/driver/{NVML}"]) == nvml
    compiler = "libnvidia-ptxjitcompiler.so.1"
    assert node.file(mounts[f"{DEBIAN}/{compiler}"]) == where / f"{compiler}.99"
    own = f"libnvidia-ptxjitcompiler.so.{VERSION}"
    assert node.file(mounts[f"{DEBIAN}/{own}"]) == Path(DEBIAN) / own
    for place, version in ((where, NEWER), (Path(DEBIAN), VERSION)):
        name = f"libnvidia-gpucomp.so.{version}"
        assert node.file(mounts[f"{DEBIAN}/{name}"]) == place / name
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
    assert node.file(mounts[f"/usr/local/aliquot/driver/{CUDA}"]) == source
    assert f"{DEBIAN}/libnvidia-nvvm.so.4" in mounts


def test_arm_has_another_library_folder(node: Node) -> None:
    mounts = by_target(prepare_edits(node.driver, node.home, node.host_of("aarch64")).mounts)
    assert f"/usr/lib/aarch64-linux-gnu/{CUDA}" in mounts
    assert not any(DEBIAN in target for target in mounts)


def test_a_container_gets_the_device_nodes_of_its_gpus_and_its_grant(node: Node) -> None:
    common = prepare_edits(node.driver, node.home, node.host)
    edits = common + grant_edits(GRANT, [7, 3])
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
    assert len(prepare_edits(node.driver, node.home, node.host).devices) == 2
    (node.devices / "nvidia-uvm").unlink()
    with pytest.raises(DriverError, match="nvidia-uvm is missing, and /proc/devices") as caught:
        prepare_edits(node.driver, node.home, node.host)
    assert "nvidia-modprobe" in str(caught.value)


def test_simulated_gpus_need_a_folder_and_no_device_nodes(tmp_path: Path) -> None:
    meeting_place = tmp_path / "machine"
    driver = simulated_driver(parse_shape("h100:2"), meeting_place)
    edits = prepare_edits(driver, tmp_path) + grant_edits(GRANT, ())
    mounts = by_target(edits.mounts)
    assert edits.devices == ()
    assert mounts["/run/aliquot/machine"] == BindMount(
        meeting_place, PurePosixPath("/run/aliquot/machine"), read_only=False
    )
    folder = mounts["/usr/local/aliquot/driver"].source.resolve()
    assert {path.name for path in folder.iterdir()} == {CUDA, NVML, "shapes.conf"}
    assert folder.is_relative_to(tmp_path)


# --- an update of the driver ----------------------------------------------------------------------


def test_old_mounts_lead_to_the_new_driver(node: Node) -> None:
    """A kubelet tells the same mounts whenever a container starts, as long as its pod lives."""
    before = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    assert not any(VERSION in str(mount.source) for mount in before.values())
    node.update()
    after = prepare_edits(node.driver, node.home, node.host)
    driver = before[f"/usr/local/aliquot/driver/{CUDA}"]
    assert node.file(driver) == Path(DEBIAN) / f"libcuda.so.{NEWER}"
    for name in ("libnvidia-nvvm.so.4", f"libnvidia-nvvm.so.{VERSION}"):
        assert node.file(before[f"{DEBIAN}/{name}"]) == Path(DEBIAN) / f"libnvidia-nvvm.so.{NEWER}"
    stand_in = before[f"{DEBIAN}/{CUDA}"]
    assert node.file(stand_in) == node.file(by_target(after.mounts)[f"{DEBIAN}/{CUDA}"])
    gone = before[f"{DEBIAN}/libnvidia-ptxjitcompiler.so.1"]
    assert (node.root / node.file(gone).relative_to("/")).read_bytes() == b"", "and no folder"
    assert f"{DEBIAN}/libnvidia-nvvm.so.{NEWER}" in by_target(after.mounts)


def test_a_file_that_vanished_is_an_error_that_names_it(node: Node) -> None:
    edits = prepare_edits(node.driver, node.home, node.host)
    check_sources(edits, node.root)
    (node.library / f"libcuda.so.{VERSION}").unlink()
    with pytest.raises(DriverError, match=f"{DEBIAN}/libcuda.so.{VERSION} is missing"):
        check_sources(edits, node.root)


# --- what else a driver has -----------------------------------------------------------------------


def test_video_and_graphics_are_there_too(node: Node) -> None:
    node.install("libnvidia-encode", "1", b"video")
    node.install("libGLX_nvidia", "0", b"graphics")
    icd = node.root / "usr/share/vulkan/icd.d/nvidia_icd.json"
    icd.parent.mkdir(parents=True)
    icd.write_text("{}")
    mounts = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    for name in ("libnvidia-encode.so.1", "libGLX_nvidia.so.0", f"libnvidia-glcore.so.{VERSION}"):
        assert f"{DEBIAN}/{name}" in mounts
    assert f"/{icd.relative_to(node.root)}" in mounts


def test_a_driver_in_a_root_of_its_own(node: Node) -> None:
    """NVIDIA's GPU Operator has it in a container, whose absolute links start at its root."""
    root = node.root / "run/nvidia/driver"
    (root / "usr/lib").mkdir(parents=True)
    node.library.rename(root / DEBIAN[1:])
    (node.root / "usr/bin").rename(root / "usr/bin")
    library = root / DEBIAN[1:]
    (library / CUDA).unlink()
    (library / CUDA).symlink_to(f"{DEBIAN}/libcuda.so.{VERSION}")
    assert find_driver_root(node.root) == root
    driver = find_driver_in(root)
    host = Host(node.root, root, node.devices, node.root / "proc", "x86_64")
    mounts = by_target(prepare_edits(driver, node.home, host).mounts)
    there = Path("/run/nvidia/driver") / DEBIAN[1:]
    source = node.file(mounts[f"/usr/local/aliquot/driver/{CUDA}"])
    assert source == there / f"libcuda.so.{VERSION}"
    assert node.file(mounts[f"{DEBIAN}/libnvidia-nvvm.so.4"]).parent == there
    assert "/usr/bin/nvidia-smi" in mounts


def test_a_program_is_taken_and_not_a_script_that_calls_it(node: Node) -> None:
    folder = node.root / "usr/local/nvidia/bin"
    folder.mkdir(parents=True)
    (node.root / "usr/bin/nvidia-smi").rename(folder / "nvidia-smi")
    (node.root / "usr/bin/nvidia-smi").write_text("exec /usr/local/nvidia/bin/nvidia-smi")
    mounts = by_target(prepare_edits(node.driver, node.home, node.host).mounts)
    source = node.file(mounts["/usr/bin/nvidia-smi"])
    assert source == Path("/usr/local/nvidia/bin/nvidia-smi")


def test_a_driver_of_gke(node: Node) -> None:
    root = node.root / "home/kubernetes/bin/nvidia"
    root.mkdir(parents=True)
    node.library.rename(root / "lib64")
    (node.root / "usr/bin").rename(root / "bin")
    assert find_driver_root(node.root) == root
    assert find_driver_root(node.root, Path("/home/kubernetes/bin/nvidia")) == root
    with pytest.raises(NoGpuError, match="/opt/nvidia"):
        find_driver_root(node.root, Path("/opt/nvidia"))
    host = Host(node.root, root, node.devices, node.root / "proc", "x86_64")
    mounts = by_target(prepare_edits(find_driver_in(root), node.home, host).mounts)
    source = node.file(mounts[f"/usr/local/aliquot/driver/{CUDA}"])
    assert source == Path("/home/kubernetes/bin/nvidia/lib64") / f"libcuda.so.{VERSION}"
    assert "/usr/bin/nvidia-smi" in mounts
