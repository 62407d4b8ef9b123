"""Device nodes of the driver, made where they are missing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from aliquot.containers.device_nodes import provide_control_nodes, provide_gpu_nodes
from aliquot.model.errors import DriverError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: device nodes")

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
508 nvidia-uvm

Block devices:
  8 nvidia-uvm
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "devices").write_text(DEVICES)
    for minor, name in ((0, "0000:01:00.0"), (3, "0000:c1:00.0")):
        folder = proc / "driver/nvidia/gpus" / name
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: H200\nDevice Minor: \t {minor}\n")
    return proc


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    try:
        os.mknod(folder / "try", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    (folder / "try").unlink()
    return folder


def numbers(folder: Path) -> dict[str, tuple[int, int]]:
    found = {path.name: path.stat() for path in folder.iterdir()}
    assert all(one.st_mode == stat.S_IFCHR | 0o666 for one in found.values())
    return {name: (os.major(one.st_rdev), os.minor(one.st_rdev)) for name, one in found.items()}


def tell(proc: Path, **options: int) -> None:
    """Write what the kernel's module says about its options: all of them, in decimal."""
    defaults = {"DeviceFileUID": 0, "DeviceFileGID": 0, "DeviceFileMode": 0o666}
    lines = (f"{name}: {value}\n" for name, value in (defaults | options).items())
    text = 'ResmanDebugLevel: 4294967295\nRegistryDwords: ""\n'
    (proc / "driver/nvidia/params").write_text(text + "".join(lines))


def test_missing_nodes_are_made(proc: Path, devices: Path) -> None:
    names = provide_control_nodes(devices, proc)
    wanted = {
        "nvidiactl": (195, 255),
        "nvidia-uvm": (508, 0),
        "nvidia-uvm-tools": (508, 1),
        "nvidia-modeset": (195, 254),
    }
    assert [path.name for path in names] == list(wanted)
    assert numbers(devices) == wanted
    provide_gpu_nodes(devices, proc)
    assert numbers(devices) == {**wanted, "nvidia0": (195, 0), "nvidia3": (195, 3)}


def test_a_node_with_the_number_of_another_boot_is_made_anew(proc: Path, devices: Path) -> None:
    provide_control_nodes(devices, proc)
    (proc / "devices").write_text(DEVICES.replace("508", "511"))
    provide_control_nodes(devices, proc)
    assert numbers(devices)["nvidia-uvm"] == (511, 0)


def test_a_module_that_is_not_loaded_is_an_error(proc: Path, devices: Path) -> None:
    (proc / "devices").write_text(DEVICES.replace("508 nvidia-uvm", "508 other"))
    with pytest.raises(DriverError, match=r"nvidia-uvm is missing.* module nvidia-uvm"):
        provide_control_nodes(devices, proc)


def test_nodes_get_the_owner_and_mode_that_the_driver_was_told(proc: Path, devices: Path) -> None:
    tell(proc, DeviceFileUID=7, DeviceFileGID=44, DeviceFileMode=0o660)
    provide_control_nodes(devices, proc)
    provide_gpu_nodes(devices, proc)
    made = [path.stat() for path in devices.iterdir()]
    wanted = (stat.S_IFCHR | 0o660, 7, 44)
    assert {(one.st_mode, one.st_uid, one.st_gid) for one in made} == {wanted}


def test_no_node_is_made_if_the_driver_was_told_so(proc: Path, devices: Path) -> None:
    tell(proc, ModifyDeviceFiles=0)
    provide_gpu_nodes(devices, proc)
    with pytest.raises(DriverError, match="ModifyDeviceFiles=0") as caught:
        provide_control_nodes(devices, proc)
    assert str(devices / "nvidiactl") in caught.value.message
    assert not list(devices.iterdir())
    tell(proc, ModifyDeviceFiles=1)
    provide_control_nodes(devices, proc)
    tell(proc, ModifyDeviceFiles=0)
    (proc / "devices").write_text(DEVICES.replace("508", "511"))
    assert provide_control_nodes(devices, proc), "they are there"
    assert numbers(devices)["nvidia-uvm"] == (508, 0), "and stay as they are"
