"""Physical GPU memory under reserved addresses, pinned host memory and a gate: plain ctypes.

`Driver` is the driver's API as any program finds it. A call that the driver lacks raises
NotThereError, a call that fails raises DriverError.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
from pathlib import Path

from ptx import Cuda, DriverError

MIB = 1 << 20
GIB = 1 << 30
PINNED = ON_DEVICE = FILE_DESCRIPTOR = 1
READ_WRITE = 3
DEVICE_MAP = 2
NON_BLOCKING = 1
WAIT_UNTIL_AT_LEAST = 0


class NotThereError(DriverError):
    """The driver has no such call."""


class Location(c.Structure):
    _fields_ = (("type", c.c_int), ("id", c.c_int))


class AllocationProperties(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", Location),
        ("security", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    )


class Access(c.Structure):
    _fields_ = (("location", Location), ("flags", c.c_int))


class Driver(Cuda):
    """The first GPU. Each thread that makes calls calls `enter` first."""

    def __init__(self, *, own_context: bool = False) -> None:
        super().__init__()
        self.context = c.c_void_p()
        if own_context:
            self.call("cuCtxCreate_v2", c.byref(self.context), 0, 0)
        else:
            self.call("cuCtxGetCurrent", c.byref(self.context))

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self._driver, name, None)
        if function is None:
            raise NotThereError(name)
        whole = [c.c_uint64(one) if isinstance(one, int) else one for one in arguments]
        code = function(*whole)
        if code:
            message = f"{name} failed with code {code}"
            raise DriverError(message)

    def enter(self) -> None:
        self.call("cuCtxSetCurrent", self.context)

    def describe(self) -> dict[str, str]:
        """The GPU's name, and the driver's release and version."""
        name, version = c.create_string_buffer(100), c.c_int()
        self.call("cuDeviceGetName", name, len(name), 0)
        self.call("cuDriverGetVersion", c.byref(version))
        cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return {"gpu": name.value.decode(), "cuda": cuda, "driver": release()}

    def free_bytes(self) -> int:
        free, total = c.c_size_t(), c.c_size_t()
        self.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return free.value

    # --- physical memory and addresses -----------------------------------------------------------

    def reserve(self, size: int) -> int:
        address = c.c_uint64()
        self.call("cuMemAddressReserve", c.byref(address), size, 0, 0, 0)
        return address.value

    def create(self, size: int) -> int:
        handle = c.c_uint64()
        wanted = AllocationProperties(PINNED, FILE_DESCRIPTOR, Location(ON_DEVICE, 0))
        self.call("cuMemCreate", c.byref(handle), size, c.byref(wanted), 0)
        return handle.value

    def map(self, address: int, size: int, handle: int) -> None:
        self.call("cuMemMap", address, size, 0, handle, 0)

    def allow(self, address: int, size: int) -> None:
        access = Access(Location(ON_DEVICE, 0), READ_WRITE)
        self.call("cuMemSetAccess", address, size, c.byref(access), 1)

    def unmap(self, address: int, size: int) -> None:
        self.call("cuMemUnmap", address, size)

    def release(self, handle: int) -> None:
        self.call("cuMemRelease", handle)

    def export_handle(self, handle: int) -> int:
        """A file descriptor, which is the caller's to close."""
        descriptor = c.c_int(-1)
        self.call("cuMemExportToShareableHandle", c.byref(descriptor), handle, FILE_DESCRIPTOR, 0)
        return descriptor.value

    def import_handle(self, descriptor: int) -> int:
        handle = c.c_uint64()
        given = c.c_void_p(descriptor)
        self.call("cuMemImportFromShareableHandle", c.byref(handle), given, FILE_DESCRIPTOR)
        return handle.value

    # --- host memory -----------------------------------------------------------------------------

    def pinned(self, size: int) -> int:
        address = c.c_void_p()
        self.call("cuMemHostAlloc", c.byref(address), size, 0)
        return int(address.value or 0)

    def register(self, address: int, size: int) -> None:
        self.call("cuMemHostRegister_v2", c.c_void_p(address), size, DEVICE_MAP)

    # --- streams and copies ----------------------------------------------------------------------

    def make_stream(self, flags: int = NON_BLOCKING, priority: int | None = None) -> c.c_void_p:
        stream = c.c_void_p()
        if priority is None:
            self.call("cuStreamCreate", c.byref(stream), flags)
        else:
            at = c.c_int(priority)
            self.call("cuStreamCreateWithPriority", c.byref(stream), flags, at)
        return stream

    def greatest_priority(self) -> int:
        least, greatest = c.c_int(), c.c_int()
        self.call("cuCtxGetStreamPriorityRange", c.byref(least), c.byref(greatest))
        return greatest.value

    def event(self) -> c.c_void_p:
        event = c.c_void_p()
        self.call("cuEventCreate", c.byref(event), 2)  # without timing
        return event

    def copy_out(self, host: int, device: int, size: int, stream: c.c_void_p | None) -> None:
        self.call("cuMemcpyDtoHAsync_v2", c.c_void_p(host), device, size, stream)

    def copy_in(self, device: int, host: int, size: int, stream: c.c_void_p | None) -> None:
        self.call("cuMemcpyHtoDAsync_v2", device, c.c_void_p(host), size, stream)

    def wait_for(self, stream: c.c_void_p | None) -> None:
        self.call("cuStreamSynchronize", stream)

    def wait_value(self, stream: c.c_void_p | None, address: int, value: int) -> None:
        self.call("cuStreamWaitValue64_v2", stream, address, value, WAIT_UNTIL_AT_LEAST)


class Pages:
    """Host memory in a memfd, which processes share by its descriptor."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self.descriptor = os.memfd_create("pages", 0) if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, size)
        self._mapping = mmap.mmap(self.descriptor, size)
        self.view = memoryview(self._mapping)
        self.address = c.addressof(c.c_char.from_buffer(self._mapping))


class Gate:
    """A word in shared memory that streams wait for, as the gates of docs/compute.md do."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._word = c.c_uint64.from_address(pages.address)
        self._next = self._word.value
        self._device_address = c.c_uint64()

    def attach(self, driver: Driver) -> None:
        driver.register(self.pages.address, self.pages.size)
        host = c.c_void_p(self.pages.address)
        driver.call("cuMemHostGetDevicePointer_v2", c.byref(self._device_address), host, 0)

    def close(self) -> None:
        """Streams that get a wait from now on wait for the next `open`."""
        self._next = self._word.value + 1

    def insert(self, driver: Driver, stream: c.c_void_p | None) -> None:
        driver.wait_value(stream, self._device_address.value, self._next)

    def open(self) -> None:
        self._word.value += 1

    def value(self) -> int:
        return self._word.value


def release() -> str:
    """The release of the kernel's driver; `simulated` where there is none."""
    try:
        return Path("/sys/module/nvidia/version").read_text("ascii").strip()
    except OSError:
        return "simulated" if "ALIQUOT_SIMULATE" in os.environ else "unknown"
