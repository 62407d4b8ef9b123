"""A simulated driver of another version, as written to the machine's driver file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sim.conftest import Start
from sim.program import Program

NOT_LOADED, MISMATCH = "error 9", "error 18"
NO_DEVICE, CUDA_MISMATCH = 100, 803
OLD, NEW = "580.159.04", "590.1.02"

Install = Callable[..., None]


@pytest.fixture
def install(sim_env: dict[str, str]) -> Install:
    """Writes the versions of the libraries and of the module."""

    def write(library: str = NEW, module: str = NEW) -> None:
        file = Path(sim_env["ALIQUOT_SIMULATE_STATE"]) / "driver"
        new = file.with_suffix(".new")
        new.write_text(f"library {library}\nmodule {module}\n")
        new.rename(file)

    return write


def version(nvml: Program) -> str:
    found: str = nvml("call", "nvmlSystemGetDriverVersion")
    return found


def test_each_process_keeps_the_version_it_loaded(
    start: Start, nvml: Program, install: Install
) -> None:
    assert version(nvml) == OLD
    install(module=OLD)
    assert version(nvml) == OLD
    assert nvml("of", 0, "nvmlDeviceGetIndex") == 0
    install()
    assert version(nvml) == OLD
    assert nvml("call", "nvmlDeviceGetHandleByIndex", 0) == NOT_LOADED
    new = start("nvml")
    assert new("call", "nvmlInit") is None
    assert version(new) == NEW
    assert new("call", "nvmlSystemGetNVMLVersion") == f"13.{NEW}"
    assert new("of", 0, "nvmlDeviceGetIndex") == 0


@pytest.mark.parametrize("versions", [(NEW, OLD), (OLD, NEW)])
def test_libraries_and_a_module_of_two_versions_do_not_start(
    start: Start, install: Install, versions: tuple[str, str]
) -> None:
    install(*versions)
    assert start("nvml")("call", "nvmlInit") == MISMATCH
    assert start("driver")("call", "cuInit", 0)[0] == CUDA_MISMATCH


def test_a_module_that_is_not_loaded(start: Start, install: Install) -> None:
    install(module="none")
    assert start("nvml")("call", "nvmlInit") == NOT_LOADED
    assert start("driver")("call", "cuInit", 0)[0] == NO_DEVICE


def test_programs_go_on_while_the_driver_is_replaced(start: Start, install: Install) -> None:
    program = start("driver")
    program("begin")
    install()
    assert program("call", "cuMemAlloc", 1 << 20)[0] == 0
    assert start("driver")("call", "cuInit", 0)[0] == 0
