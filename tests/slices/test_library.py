from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.devices import CUDA, NVML, Driver, Shape, elf, native_file
from aliquot.model.errors import DriverError, NestedGrantError, StateError
from aliquot.slices import library, tenant
from aliquot.slices.tenant import tenant_environment
from slices.stand_ins import build_driver

ALL_NAMES = {CUDA, "libcuda.so", NVML, "libnvidia-ml.so"}


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALIQUOT_STATE", str(tmp_path / "state"))


@pytest.fixture
def sim() -> Driver:
    return Driver(cuda=native_file("sim", CUDA), nvml=native_file("sim", NVML))


def with_names(driver: Driver, folder: Path, *names: str) -> Driver:
    return Driver(cuda=build_driver(folder, *names), nvml=driver.nvml)


def test_all_library_names_exist(sim: Driver) -> None:
    folder = library.prepare_library(sim)
    assert {path.name for path in folder.iterdir()} >= ALL_NAMES
    assert (folder / "libcuda.so").resolve() == (folder / CUDA).resolve()


def test_the_folder_can_be_mounted_elsewhere(sim: Driver, tmp_path: Path) -> None:
    """Neither it nor a simulated driver next to it has links to the outside."""
    (tmp_path / "host").mkdir()
    simulated = replace(sim, shape=Shape("h100", 1))
    folder = library.prepare_library(simulated, tmp_path / "host")
    assert folder.is_relative_to(tmp_path / "host")
    for path in (*folder.iterdir(), *library.prepared_driver(folder).iterdir()):
        assert path.resolve().parent == path.parent
    assert (library.prepared_driver(folder) / "shapes.conf").is_file()


def test_a_stand_in_exports_the_symbols_of_its_driver(sim: Driver, tmp_path: Path) -> None:
    driver = with_names(sim, tmp_path / "d", "cuInit", "cuMemAlloc_v2", "cuFromTheFuture_v9")
    exported = elf.read_file(library.prepare_library(driver) / CUDA).exported()
    assert {"cuInit", "cuMemAlloc_v2", "cuFromTheFuture_v9"} == {
        name for name in exported if name.startswith("cu")
    }
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cuFromTheFuture_v9"
    path = str(library.prepare_library(driver) / CUDA)
    subprocess.run([sys.executable, "-c", code, path], check=True)


def test_the_folder_is_made_once(sim: Driver) -> None:
    first = library.prepare_library(sim)
    before = (first / CUDA).lstat()
    assert library.prepare_library(sim) == first
    assert (first / CUDA).lstat() == before


def test_another_driver_gets_another_folder(sim: Driver, tmp_path: Path) -> None:
    driver = with_names(sim, tmp_path / "d", "cuInit")
    first = library.prepare_library(driver)
    build_driver(tmp_path / "d", "cuInit", "cuNew")
    assert library.prepare_library(driver) != first


def test_a_damaged_folder_is_made_again(sim: Driver) -> None:
    folder = library.prepare_library(sim)
    (folder / "libcuda.so").unlink()
    assert library.prepare_library(sim) == folder
    assert (folder / "libcuda.so").is_file()


def test_a_stand_in_that_a_power_failure_emptied_is_made_again(sim: Driver) -> None:
    file = library.prepare_library(sim) / CUDA
    data = file.read_bytes()
    file.write_bytes(b"")
    assert (library.prepare_library(sim) / CUDA).read_bytes() == data


def test_concurrent_starts_make_one_folder(sim: Driver) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(library.prepare_library, [sim] * 16))
    assert len(folders) == 1
    assert list(library.home().iterdir()) == [folders.pop().parent]


def test_the_cache_is_used_if_the_state_is_noexec(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(library, "_cache", lambda: cache)
    real = os.statvfs

    def statvfs(path: Path) -> object:
        if Path(path).is_relative_to(cache):
            return real(path)
        return os.statvfs_result((*real(path)[:8], os.ST_NOEXEC, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert library.home() == cache / "library"


def test_a_driver_file_that_is_not_a_library(sim: Driver, tmp_path: Path) -> None:
    (tmp_path / CUDA).write_text("no library")
    with pytest.raises(DriverError, match="cannot be read"):
        library.prepare_library(Driver(cuda=tmp_path / CUDA, nvml=sim.nvml))


def test_a_full_disk_is_reported(
    monkeypatch: pytest.MonkeyPatch, sim: Driver, tmp_path: Path
) -> None:
    driver = with_names(sim, tmp_path / "d", "cuInit")

    def full(_path: Path, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StateError, match="No space left"):
        library.prepare_library(driver)
    assert not any(library.home().iterdir())


def test_a_driver_in_two_folders_gets_one_folder(sim: Driver, tmp_path: Path) -> None:
    shutil.copy(sim.cuda, tmp_path / CUDA)
    apart = Driver(cuda=tmp_path / CUDA, nvml=sim.nvml)
    folder = library.prepare_library(apart)
    together = library.driver_directory(folder, apart)
    assert (together / CUDA).resolve() == apart.cuda
    assert (together / NVML).resolve() == sim.nvml.resolve()
    assert library.driver_directory(folder, sim) == sim.cuda.parent


def test_the_tenants_environment_keeps_other_variables(sim: Driver) -> None:
    before = {"LD_LIBRARY_PATH": "/a:/b", "LD_PRELOAD": "/c.so", "HOME": "/h"}
    before["CUDA_VISIBLE_DEVICES"] = "1"  # except for this, which names GPUs of the machine
    after = tenant_environment(before, Path("/lib"), sim, "/grants/g#5")
    assert after == {
        "LD_LIBRARY_PATH": "/lib:/a:/b",
        "LD_PRELOAD": "/c.so:/lib/libcuda.so.1",
        "ASAN_OPTIONS": "verify_asan_link_order=0",
        "HOME": "/h",
        "ALIQUOT_GRANT": "/grants/g#5",
        "ALIQUOT_DRIVER_DIR": str(sim.cuda.parent),
    }


def test_a_container_with_a_grant_cannot_nest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tenant, "CONTAINER_GRANT", tmp_path / "grant")
    tenant.refuse_nested({})
    (tmp_path / "grant").mkdir()
    with pytest.raises(NestedGrantError, match="of this container"):
        tenant.refuse_nested({})


@pytest.mark.parametrize("character", " :;")
def test_a_path_that_the_linker_would_split_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sim: Driver, character: str
) -> None:
    monkeypatch.setenv("ALIQUOT_STATE", str(tmp_path / f"a{character}b"))
    with pytest.raises(StateError, match="cannot use the path") as caught:
        library.prepare_library(sim)
    assert "without space, colon or semicolon" in str(caught.value.hint)
