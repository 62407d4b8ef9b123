from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aliquot.devices import check_version, find_driver, linker, parse_shape
from aliquot.devices.driver import Driver, Shape, is_stand_in
from aliquot.model.errors import DriverError, InvalidValueError, NoGpuError
from support import compile_library

ANY = "int any(void) { return 0; }"


def driver_of_version(number: int) -> str:
    return f"int cuDriverGetVersion(int *version) {{ *version = {number}; return 0; }}"


def build_pair(folder: Path, cuda_version: int = 13000) -> Driver:
    return Driver(
        cuda=compile_library(folder, "libcuda.so.1", driver_of_version(cuda_version)),
        nvml=compile_library(folder, "libnvidia-ml.so.1", ANY),
    )


def search(*folders: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def test_the_first_folder_in_the_search_path_wins(tmp_path: Path) -> None:
    first, second = (build_pair(tmp_path / name) for name in ("first", "second"))
    found = find_driver(search(tmp_path / "first", tmp_path / "second"))
    assert found == first
    assert found != second


def test_a_library_for_another_machine_is_skipped(tmp_path: Path) -> None:
    compile_library(tmp_path / "arm", "libcuda.so.1", ANY, compiler="aarch64-linux-gnu-gcc")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "libcuda.so.1").write_text("no library")
    right = build_pair(tmp_path / "right")
    folders = search(tmp_path / "arm", tmp_path / "text", tmp_path / "right")
    assert find_driver(folders).cuda == right.cuda


def test_a_stand_in_is_never_taken_for_a_driver(tmp_path: Path) -> None:
    mark = "int aliquot_absent(void) { return 0; }"
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        assert is_stand_in(compile_library(tmp_path / "ours", name, mark))
    right = build_pair(tmp_path / "right")
    assert find_driver(search(tmp_path / "ours", tmp_path / "right")) == right


def test_the_ldconfig_cache_is_used(tmp_path: Path) -> None:
    libc = next(linker.find("libc.so.6", {}))
    assert libc.is_file()
    assert next(linker.find("libc.so.6", search(tmp_path))) == libc


def test_no_driver_points_to_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linker, "_cache", lambda: ())
    monkeypatch.setattr(linker, "_STANDARD", ())
    with pytest.raises(NoGpuError) as caught:
        find_driver(search(tmp_path))
    assert "libcuda.so.1" in caught.value.message
    assert "--simulate" in str(caught.value.hint)


def test_an_incomplete_driver_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linker, "_cache", lambda: ())
    monkeypatch.setattr(linker, "_STANDARD", ())
    build_pair(tmp_path).nvml.unlink()
    with pytest.raises(DriverError, match=r"libnvidia-ml\.so\.1 is not"):
        find_driver(search(tmp_path))


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"too old.*CUDA 11\.6.*needs 11\.7") as caught:
        check_version(build_pair(tmp_path, 11060))
    assert "R515" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("number", "version"), [(11070, (11, 7)), (12040, (12, 4)), (13000, (13, 0))]
)
def test_a_driver_that_is_new_enough(tmp_path: Path, number: int, version: tuple[int, int]) -> None:
    assert check_version(build_pair(tmp_path, number)) == version


def test_a_driver_that_cannot_be_loaded(tmp_path: Path) -> None:
    pair = build_pair(tmp_path)
    shutil.copy(pair.nvml, pair.cuda)
    with pytest.raises(DriverError, match=str(pair.cuda)):
        check_version(pair)


@pytest.mark.parametrize(
    ("text", "shape"),
    [("h100:8", Shape("h100", 8)), ("H100:1", Shape("h100", 1)), ("t4", Shape("t4", 1))],
)
def test_simulated_machines(text: str, shape: Shape) -> None:
    assert parse_shape(text) == shape


@pytest.mark.parametrize("text", ["", ":", "h100:", "h100:0", "h100:-1", "h100:x", "h100:8:8"])
def test_an_invalid_simulated_machine_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="not a simulated machine") as caught:
        parse_shape(text)
    assert "h100" in str(caught.value.hint)


def test_an_unknown_model_and_too_many_gpus_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="unknown model 'voodoo2'"):
        parse_shape("voodoo2:1")
    with pytest.raises(InvalidValueError, match="at most 16"):
        parse_shape("h100:17")
