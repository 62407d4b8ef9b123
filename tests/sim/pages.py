"""Pages for values that a GPU waits for and writes, in every kind of memory that can hold them.

Each function in PAGES returns the driver's code, the address for the GPU, and the address at which
this process can write (0: none). The memory stays allocated until the program ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

from cuda.bindings import driver

PAGE = 65536
DEVICE_MAP, READ_ONLY = 2, 8  # CU_MEMHOSTREGISTER_...
F_SEAL_FUTURE_WRITE, MREMAP_MAYMOVE = 0x10, 1

libc = ctypes.CDLL(None)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]


def _pinned() -> tuple[int, int, int]:
    code, address = driver.cuMemHostAlloc(PAGE, 0)
    return int(code), int(address), int(address)


def _managed() -> tuple[int, int, int]:
    code, address = driver.cuMemAllocManaged(PAGE, 1)
    return int(code), int(address), int(address)


def _device() -> tuple[int, int, int]:
    code, address = driver.cuMemAlloc(PAGE)
    return int(code), int(address), 0


def _memfd() -> int:
    descriptor = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, PAGE)
    return descriptor


def _map(descriptor: int, protection: int) -> int:
    address = libc.mmap(None, PAGE, protection, mmap.MAP_SHARED, descriptor, 0)
    assert address != ctypes.c_void_p(-1).value
    return int(address)


def _registered() -> tuple[int, int, int]:
    address = _map(_memfd(), mmap.PROT_READ | mmap.PROT_WRITE)
    return int(driver.cuMemHostRegister(address, PAGE, DEVICE_MAP)[0]), address, address


def _sealed() -> tuple[int, int, int]:
    """As the arbiter's page: a second, writable mapping is made before the file is sealed."""
    descriptor = _memfd()
    writable = _map(descriptor, mmap.PROT_READ | mmap.PROT_WRITE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    address = _map(descriptor, mmap.PROT_READ)
    code = driver.cuMemHostRegister(address, PAGE, DEVICE_MAP | READ_ONLY)[0]
    return int(code), address, writable


def _duplicate() -> tuple[int, int, int]:
    """Each context registers another mapping of the same pages."""
    first = _map(_memfd(), mmap.PROT_READ | mmap.PROT_WRITE)
    second = int(libc.mremap(first, 0, PAGE, MREMAP_MAYMOVE))
    return int(driver.cuMemHostRegister(second, PAGE, DEVICE_MAP)[0]), second, first


PAGES = {
    "pinned": _pinned,
    "managed": _managed,
    "device": _device,
    "registered": _registered,
    "sealed": _sealed,
    "duplicate": _duplicate,
}
