"""The driver and the GPUs of this machine, or of a simulated one.

- `device_location`: the NUMA node and the device node of each GPU.
- `driver`: finding the driver, its version, and simulated drivers.
- `elf`: the dynamic symbols of a shared library.
- `health`: following the health of GPUs.
- `installed`: which driver is installed now, and whether programs can begin to use it.
- `inventory`: the GPUs of a machine, as NVML reports them.
- `linker`: which file the dynamic linker takes for a library name.
- `links`: how GPUs are connected.
- `mig`: instances of GPUs through NVML.
- `native`: where the compiled parts of Aliquot are.
- `telemetry`: what a GPU does now: utilisation, power, temperature, clock.
- `xid`: which Xid errors mean that a GPU cannot be used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot import lazy

if TYPE_CHECKING:
    from aliquot.devices.driver import (
        Driver,
        Shape,
        ambient_driver,
        check_version,
        cuda_version,
        find_driver,
        find_driver_in,
        find_driver_root,
        parse_shape,
        simulated_driver,
        with_compat,
    )
    from aliquot.devices.inventory import Inventory, read_inventory
    from aliquot.devices.native import CUDA, NVML, native_dir, native_file
    from aliquot.devices.telemetry import Sensors, Telemetry

__all__ = [
    "CUDA",
    "NVML",
    "Driver",
    "Inventory",
    "Sensors",
    "Shape",
    "Telemetry",
    "ambient_driver",
    "check_version",
    "cuda_version",
    "find_driver",
    "find_driver_in",
    "find_driver_root",
    "native_dir",
    "native_file",
    "parse_shape",
    "read_inventory",
    "simulated_driver",
    "with_compat",
]

__getattr__ = lazy.names_of(
    __name__,
    {
        "driver": "Driver Shape ambient_driver check_version cuda_version find_driver "
        "find_driver_in find_driver_root parse_shape simulated_driver with_compat",
        "inventory": "Inventory read_inventory",
        "native": "CUDA NVML native_dir native_file",
        "telemetry": "Sensors Telemetry",
    },
)
