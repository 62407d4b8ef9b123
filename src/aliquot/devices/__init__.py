"""What this machine has: its driver, its GPUs and their links, or a simulated machine's."""

from aliquot.devices.driver import (
    Driver,
    Shape,
    ambient_driver,
    check_version,
    cuda_version,
    driver_below,
    find_driver,
    parse_shape,
    simulated_driver,
)
from aliquot.devices.inventory import Inventory, read_inventory
from aliquot.devices.native import CUDA, NVML, native_dir, native_file

__all__ = [
    "CUDA",
    "NVML",
    "Driver",
    "Inventory",
    "Shape",
    "ambient_driver",
    "check_version",
    "cuda_version",
    "driver_below",
    "find_driver",
    "native_dir",
    "native_file",
    "parse_shape",
    "read_inventory",
    "simulated_driver",
]
