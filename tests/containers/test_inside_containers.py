"""Programs inside containers with the agent's edits: none of them can bypass the grant."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import support
from aliquot import devices
from aliquot.containers.container_edits import (
    ContainerEdits,
    grant_edits,
    prepare_edits,
)
from aliquot.devices import CUDA, NVML, parse_shape, simulated_driver
from aliquot.kubernetes.node.tenant_files import is_musl
from aliquot.model import Grant, Life, Slice
from aliquot.slices import control
from containers.probe_images import (
    MULTIARCH,
    USER,
    add_stranger,
    is_limited_to,
    musl_image,
    parse_probe,
    probe_image,
)
from containers.runc import Container, Root, Runtime, unpack
from standin.machine import Machine
from standin.test_loading import build as build_loads
from support import GIB, MIB, wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: containers"),
    pytest.mark.skipif(not shutil.which("runc"), reason="needs runc: apt-get install runc"),
    pytest.mark.skipif(not shutil.which("busybox"), reason="needs busybox"),
]

LIMIT = 2 * GIB
USED = GIB + 518 * MIB  # by a program with a context and 1 GiB
OUT_OF_MEMORY, NO_DEVICE, NOT_READY = 2, 100, 802
PRIVATE = "/usr/local/aliquot/driver"


@dataclass
class Node:
    """A simulated machine with its arbiter, and what containers on it get."""

    machine: Machine
    common: ContainerEdits

    def make_grant(self, name: str = "pod", memory: int = LIMIT) -> ContainerEdits:
        """Make a container's grant; the container's edits."""
        part = Slice(gpu_uuid=self.machine.uuids()[0], memory_bytes=memory)
        control.make(self.machine.state, name, [part], kept=True)
        return self.common + grant_edits(self.machine.state / "kept" / name, ())

    def grant(self, name: str = "pod") -> Grant:
        grants = control.status(self.machine.state).grants
        return next(grant for grant in grants if grant.name == name)

    def counted(self, name: str = "pod") -> int:
        return self.grant(name).use[0].counted_bytes


@pytest.fixture(scope="session")
def native_dir() -> Path:
    """The compiled parts: those of a build named by ALIQUOT_TEST_NATIVE, or the installed ones."""
    named = os.environ.get("ALIQUOT_TEST_NATIVE")
    return Path(named) if named else devices.native_dir()


@pytest.fixture
def node(native_dir: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr("aliquot.devices.native.native_dir", lambda: native_dir)
    short_tmp.chmod(0o755)
    meeting_place, home = short_tmp / "gpus", short_tmp / "home"
    for folder in (meeting_place, home):
        folder.mkdir()
    driver = simulated_driver(parse_shape("h100:1"), meeting_place)
    common = prepare_edits(driver, home)
    machine = Machine(
        native=native_dir,
        library=home,
        state=short_tmp / "state",
        meeting_place=meeting_place,
        shape="h100:1",
        driver=native_dir / "sim",
    )
    machine.start_arbiter()
    yield Node(machine, common)
    machine.close()


@pytest.fixture(scope="session")
def glibc(native_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A small image with this machine's C library."""
    folder = tmp_path_factory.mktemp("glibc")
    image = probe_image("probe", native_dir, folder)
    add_stranger(image, folder)
    return unpack(image, folder / "rootfs")


@pytest.fixture
def runtime(short_tmp: Path) -> Iterator[Runtime]:
    folder = short_tmp / f"c{os.getpid()}"
    folder.mkdir()
    runtime = Runtime(folder)
    yield runtime
    runtime.close()


Start = Callable[..., Container]


@pytest.fixture
def start(runtime: Runtime, glibc: Root) -> Start:
    """Starts a container that sleeps, of the small image or of another."""

    def begin(edits: ContainerEdits, root: Root = glibc, **settings: object) -> Container:
        container = runtime.start(root, edits, **settings)  # type: ignore[arg-type]
        wait_until(lambda: container.has_started() or container.process.poll() is not None)
        assert container.process.poll() is None, container.process.stderr
        return container

    return begin


def seen(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    assert done.returncode == 0, done.stdout + done.stderr
    return parse_probe(done.stdout)


class TestEveryWayToLoadTheDriver:
    def test_by_every_name(self, node: Node, start: Start) -> None:
        container = start(node.make_grant())
        folders = ("", f"{MULTIARCH}/", "/usr/lib64/", "/usr/lib/", "/usr/local/nvidia/lib64/")
        for folder in folders:
            assert is_limited_to(
                seen(container.execute("probe", folder + CUDA, folder + NVML)), LIMIT
            ), folder
        for folder in folders[:3]:
            names = (folder + name.removesuffix(".1") for name in (CUDA, NVML))
            assert is_limited_to(seen(container.execute("probe", *names)), LIMIT), folder

    def test_in_every_environment(self, node: Node, start: Start, glibc: Root) -> None:
        root = glibc.copy(node.machine.state.parent / "image")
        root.write("/etc/profile", "unset LD_PRELOAD; export LD_LIBRARY_PATH=/nowhere PATH=/bin\n")
        container = start(node.make_grant(), root)
        probe = ("probe", CUDA, NVML)
        for command in (
            probe,
            ("env", "-i", "/bin/probe", CUDA, NVML),
            ("sh", "-l", "-c", " ".join(probe)),
            ("su", "-", "user", "-c", " ".join(probe)),
            ("env", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64", *probe),
            ("env", "LD_LIBRARY_PATH=/usr/local/cuda/compat", *probe),
        ):
            assert is_limited_to(seen(container.execute(*command)), LIMIT), command

    def test_closed_and_opened_again(self, node: Node, start: Start, glibc: Root) -> None:
        root = glibc.copy(node.machine.state.parent / "image")
        program = build_loads(node.machine.state.parent / "loads")
        root.write("/bin/loads", program.read_bytes(), 0o755)
        container = start(node.make_grant(), root)
        for step, name in (("take", CUDA), ("memory", NVML)):
            opened = (f"open:{name}", step, "close")
            done = container.execute("loads", *opened, *opened)
            assert done.returncode == 0, done.stderr
            _, first, _, second = done.stdout.splitlines()
            assert first == second
            assert int(second) * MIB <= LIMIT

    def test_as_a_user_without_rights(self, node: Node, start: Start) -> None:
        container = start(node.make_grant(), user=USER)
        assert is_limited_to(seen(container.execute("probe", CUDA, NVML, user=USER)), LIMIT)

    def test_an_image_with_a_driver_of_its_own(self, node: Node, start: Start, glibc: Root) -> None:
        """cuda-compat as NVIDIA's images have it: behind links, and in the linker's cache."""
        root = glibc.copy(node.machine.state.parent / "image")
        folder = node.machine.state.parent / "compat"
        other = support.compile_library(folder, CUDA, "int cuInit(int f) { return 77; }")
        compat = "/usr/local/cuda-12.4/compat"
        root.write(f"{compat}/libcuda.so.550.54.14", other.read_bytes(), 0o755)
        (root.folder / f"{compat[1:]}/{CUDA}").symlink_to("libcuda.so.550.54.14")
        (root.folder / "usr/local/cuda").symlink_to("cuda-12.4")
        root.write("/etc/ld.so.conf", "/usr/local/cuda/compat\n")
        subprocess.run(["ldconfig", "-r", str(root.folder)], check=True, capture_output=True)
        container = start(node.make_grant(), root)
        for name in (CUDA, f"/usr/local/cuda/compat/{CUDA}", f"{compat}/{CUDA}"):
            assert is_limited_to(seen(container.execute("probe", name, NVML)), LIMIT), name

    def test_an_image_with_its_own_preload(self, node: Node, start: Start, glibc: Root) -> None:
        root = glibc.copy(node.machine.state.parent / "image")
        source = (
            'int puts(const char *); __attribute__((constructor)) void f(void) { puts("own=1"); }'
        )
        library = support.compile_library(root.folder / "usr/lib", "libown.so", source)
        root.write("/etc/ld.so.preload", f"/usr/lib/{library.name}\n")
        found = seen(start(node.make_grant(), root).execute("probe", CUDA, NVML))
        assert found["own"] == 1
        assert is_limited_to(found, LIMIT)


class TestGrants:
    def test_a_container_is_limited_to_its_memory(self, node: Node, start: Start) -> None:
        container = start(node.make_grant())
        too_much = seen(container.execute("probe", CUDA, NVML, str(LIMIT)))
        assert too_much["alloc"] == OUT_OF_MEMORY
        program = container.begin("probe", CUDA, NVML, str(GIB), "stay")
        assert program.stdout
        assert parse_probe(program.stdout.readline())["alloc"] == 0
        assert node.counted() == USED
        (process,) = node.grant().processes
        assert process.name == "probe"
        assert Path(f"/proc/{process.pid}/ns/pid").stat() != Path("/proc/self/ns/pid").stat()
        program.communicate()
        wait_until(lambda: node.counted() == 0 and not node.grant().processes)
        assert node.grant().life is Life.KEPT

    def test_containers_have_grants_of_their_own(self, node: Node, start: Start) -> None:
        sizes = {"one": 2 * GIB, "two": 3 * GIB, "three": 5 * GIB}
        containers = {name: start(node.make_grant(name, size)) for name, size in sizes.items()}
        programs = []
        for name, container in containers.items():
            programs.append(container.begin("probe", CUDA, NVML, str(GIB), "stay"))
            line = programs[-1].stdout.readline()  # type: ignore[union-attr]
            assert is_limited_to(parse_probe(line), sizes[name])
        assert {name: node.counted(name) for name in sizes} == dict.fromkeys(sizes, USED)
        containers["two"].kill()
        wait_until(lambda: node.counted("two") == 0)
        assert node.counted("one") == node.counted("three") == USED
        for program in programs:
            program.communicate()

    def test_a_restarted_container_joins_its_grant_again(self, node: Node, start: Start) -> None:
        edits = node.make_grant()
        for _ in range(2):
            container = start(edits)
            assert is_limited_to(seen(container.execute("probe", CUDA, NVML, str(GIB))), LIMIT)
            container.kill()

    def test_a_restarted_arbiter_is_found(self, node: Node, start: Start) -> None:
        container = start(node.make_grant())
        node.machine.stop_arbiter()
        assert container.execute("probe", CUDA, "-").stdout.startswith(f"init={NOT_READY} ")
        node.machine.start_arbiter()
        assert is_limited_to(seen(container.execute("probe", CUDA, NVML)), LIMIT)

    def test_an_ended_grant_lets_nobody_join(self, node: Node, start: Start) -> None:
        container = start(node.make_grant())
        program = container.begin("probe", CUDA, NVML, str(GIB), "stay")
        assert program.stdout
        program.stdout.readline()
        assert control.end(node.machine.state, "pod") is False
        done = container.execute("probe", CUDA, "-")
        assert done.stdout.startswith(f"init={NOT_READY} ")
        assert "no process can join it" in done.stderr
        program.communicate()
        wait_until(lambda: not control.status(node.machine.state).grants)

    def test_an_empty_folder_instead_of_a_grant_gives_no_gpu(
        self, node: Node, start: Start, tmp_path: Path
    ) -> None:
        """What a container of a named size would have if its runtime ran no hook."""
        container = start(node.common + grant_edits(tmp_path, ()))
        done = container.execute("probe", CUDA, NVML, env={"ALIQUOT_GRANT": "/tmp"})
        found = parse_probe(done.stdout)
        assert found["init"] == NOT_READY
        assert found["nvml_init"] != 0

    def test_all_mounts_are_read_only(self, node: Node, start: Start) -> None:
        container = start(node.make_grant())
        for path in (f"{MULTIARCH}/{CUDA}", "/run/aliquot/grant/usage", f"{PRIVATE}/{CUDA}"):
            done = container.execute("sh", "-c", f"echo > {path}")
            assert "Read-only file system" in done.stderr


class TestProgramsThatCannotBeLimited:
    def test_a_static_program_with_its_own_driver_is_reported(
        self, node: Node, start: Start
    ) -> None:
        program = start(node.make_grant()).begin("/bin/stranger")
        assert program.stdout
        assert program.stdout.readline() == "taken\n"
        (gpu,) = control.status(node.machine.state).gpus
        (stranger,) = gpu.strangers
        assert (stranger.name, stranger.bytes) == ("stranger", GIB)
        assert node.counted() == 0
        program.communicate()

    def test_no_variable_leads_to_another_grant_or_driver(
        self, node: Node, start: Start, glibc: Root
    ) -> None:
        root = glibc.copy(node.machine.state.parent / "image")
        root.write("/bin/mighty", (root.folder / "bin/probe").read_bytes(), 0o4755)
        source = 'int puts(const char *); int cuInit(int f) { return puts("evil=1"); }'
        support.compile_library(root.folder / "tmp", CUDA, source)
        container = start(node.make_grant(), root)
        env = {"ALIQUOT_DRIVER_DIR": "/tmp", "ALIQUOT_GRANT": "/tmp"}
        for program in ("probe", "mighty"):  # setuid or not
            found = seen(container.execute(program, CUDA, NVML, user=USER, env=env))
            assert "evil" not in found
            assert is_limited_to(found, LIMIT)

    @pytest.mark.skipif(not shutil.which("musl-gcc"), reason="needs musl-gcc: musl-tools")
    def test_a_musl_program_gets_an_error(self, node: Node, start: Start, tmp_path: Path) -> None:
        root = unpack(musl_image("musl", tmp_path), tmp_path / "rootfs")
        container = start(node.make_grant(), root)
        assert is_musl(container.root)
        done = container.execute("probe", CUDA, "-")
        assert done.stdout.startswith(f"init={NO_DEVICE} ")
        assert "needs glibc" in done.stderr
        assert control.status(node.machine.state).gpus[0].strangers == ()
