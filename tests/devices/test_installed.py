"""Which driver is installed now: a real one's files, and its kernel module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aliquot.devices import CUDA, NVML, Driver, installed

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = "580.159.04", "590.1.02"


class Machine:
    """A folder of libraries as NVIDIA's packages have them, and the module's version."""

    def __init__(self, folder: Path) -> None:
        self.module = folder / "version"
        self._folder = folder
        self.driver = Driver(cuda=folder / CUDA, nvml=folder / NVML)

    def install(self, version: str) -> None:
        for name in (CUDA, NVML):
            file = self._folder / name.replace(".1", f".{version}")
            file.write_text(version)
            link = self._folder / f"{name}.new"
            link.symlink_to(file.name)
            link.rename(self._folder / name)

    def load(self, version: str) -> None:
        self.module.write_text(f"{version}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    one = Machine(tmp_path)
    monkeypatch.setattr(installed, "MODULE", one.module)
    one.install(OLD)
    one.load(OLD)
    return one


def test_the_same_driver_stays_the_same(machine: Machine) -> None:
    first = installed.read_installed(machine.driver)
    assert (first.library, first.module, first.problem) == (OLD, OLD, "")
    assert installed.read_installed(machine.driver) == first


def test_an_update_is_noticed_at_each_of_its_steps(machine: Machine) -> None:
    first = installed.read_installed(machine.driver)
    machine.install(NEW)
    halfway = installed.read_installed(machine.driver)
    assert NEW in halfway.problem
    assert OLD in halfway.problem
    machine.load(NEW)
    done = installed.read_installed(machine.driver)
    assert done.problem == ""
    assert len({first, halfway, done}) == 3


def test_libraries_of_the_same_version_that_were_installed_again_are_others(
    machine: Machine,
) -> None:
    first = installed.read_installed(machine.driver)
    file = machine.driver.nvml.resolve()
    file.rename(file.with_suffix(".old"))
    file.write_text(OLD)
    again = installed.read_installed(machine.driver)
    assert again != first
    assert again.problem == ""


def test_a_driver_that_was_removed(machine: Machine) -> None:
    machine.driver.cuda.unlink()
    assert installed.read_installed(machine.driver).problem == "the driver's libraries are missing"


def test_a_kernel_that_does_not_tell_its_module_is_not_held_against_it(machine: Machine) -> None:
    machine.module.unlink()
    machine.install(NEW)
    assert installed.read_installed(machine.driver).problem == ""
