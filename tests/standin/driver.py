"""The driver API for tests: plain ctypes, every call answers [code, values...].

Nothing but the standard library: it runs inside tenants, on whatever `libcuda.so.1` they find.
A value that the driver did not write stays UNTOUCHED, so that a test sees whether it did.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable

Answer = list[int]

UNTOUCHED = 0x5555_5555
PER_THREAD_DEFAULT_STREAM = 2
PINNED = 1
ON_DEVICE = 1
FILE_DESCRIPTOR = 1
RELEASE_THRESHOLD, RESERVED_NOW, USED_NOW = 4, 5, 7
UINT8, UINT32, FLOAT = 1, 3, 0x20
BC1, BC7, NV12, UNORM8X4 = 0x91, 0x9D, 0xB0, 0xC2
LAYERED, SPARSE = 1, 0x40
STACK_SIZE, PRINTF_BUFFER, MALLOC_HEAP = 0, 1, 2
MAP, UNMAP = 1, 2

SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry aliquot_spin(.param .u64 aliquot_spin_param_0)
{
    ret;
}
"""


class _Location(c.Structure):
    _fields_ = (("type", c.c_int), ("id", c.c_int))


class _AllocationProperties(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", _Location),
        ("security", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    )


class _PoolProperties(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", _Location),
        ("security", c.c_void_p),
        ("most", c.c_size_t),
        ("rest", c.c_ubyte * 56),
    )


class _IpcHandle(c.Structure):
    _fields_ = (("bytes", c.c_ubyte * 64),)


class _Array(c.Structure):
    _fields_ = (
        ("width", c.c_size_t),
        ("height", c.c_size_t),
        ("format", c.c_int),
        ("channels", c.c_uint),
    )


class _Array3D(c.Structure):
    _fields_ = (
        ("width", c.c_size_t),
        ("height", c.c_size_t),
        ("depth", c.c_size_t),
        ("format", c.c_int),
        ("channels", c.c_uint),
        ("flags", c.c_uint),
    )


class _MapInfo(c.Structure):
    """CUarrayMapInfo for a whole array."""

    _fields_ = (
        ("resource_type", c.c_int),
        ("resource", c.c_uint64),
        ("subresource_type", c.c_int),
        ("padding", c.c_int),
        ("level", c.c_uint * 8),
        ("operation", c.c_int),
        ("handle_type", c.c_int),
        ("handle", c.c_uint64),
        ("offset", c.c_uint64),
        ("devices", c.c_uint),
        ("rest", c.c_uint * 3),
    )


def _handle(value: int) -> c.c_void_p:
    return c.c_void_p(value)


def _size(value: int) -> c.c_size_t:
    return c.c_size_t(value)


def _address(value: int) -> c.c_uint64:
    return c.c_uint64(value)


def _physical(device: int) -> _AllocationProperties:
    return _AllocationProperties(type=PINNED, location=_Location(ON_DEVICE, device))


class Driver:
    """The library by its name or path; `get` says how functions are looked up."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self.library = c.CDLL(library)
        self._per_thread = False

    def use_per_thread_streams(self) -> Answer:
        """From now on, look functions up as programs built with that option do."""
        self._per_thread = True
        return [0]

    def _function(self, name: str) -> Callable[..., int]:
        if not self._per_thread:
            return self.library[name]
        base, _, version = name.partition("_v")
        function, status = c.c_void_p(), c.c_int(-1)
        wanted = 13000 if version != "1" else 3000
        code = self.library.cuGetProcAddress_v2(
            base.encode(),
            c.byref(function),
            wanted,
            c.c_uint64(PER_THREAD_DEFAULT_STREAM),
            c.byref(status),
        )
        if code or not function.value:
            raise LookupError(f"{name}: code {code}, status {status.value}")
        return c.CFUNCTYPE(c.c_int)(function.value)

    def _call(self, name: str, *arguments: object) -> Answer:
        return [self._function(name)(*arguments)]

    def _make(self, name: str, *arguments: object) -> Answer:
        """A call that writes its result to its first argument."""
        made = c.c_uint64(UNTOUCHED)
        return [self._function(name)(c.byref(made), *arguments), made.value]

    # --- the machine

    def init(self, flags: int = 0) -> Answer:
        return self._call("cuInit", flags)

    def count(self) -> Answer:
        number = c.c_int(UNTOUCHED)
        return [*self._call("cuDeviceGetCount", c.byref(number)), number.value]

    def uuid(self, device: int) -> tuple[int, str]:
        raw = (c.c_ubyte * 16)()
        (code,) = self._call("cuDeviceGetUuid_v2", c.byref(raw), device)
        return code, bytes(raw).hex()

    def total(self, device: int) -> Answer:
        return self._make("cuDeviceTotalMem_v2", device)

    def info(self) -> Answer:
        free, total = _size(UNTOUCHED), _size(UNTOUCHED)
        return [
            *self._call("cuMemGetInfo_v2", c.byref(free), c.byref(total)),
            free.value,
            total.value,
        ]

    # --- contexts

    def retain(self, device: int = 0) -> Answer:
        return self._make("cuDevicePrimaryCtxRetain", device)

    def release(self, device: int = 0) -> Answer:
        return self._call("cuDevicePrimaryCtxRelease_v2", device)

    def reset(self, device: int = 0) -> Answer:
        return self._call("cuDevicePrimaryCtxReset_v2", device)

    def primary_state(self, device: int = 0) -> Answer:
        flags, active = c.c_uint(UNTOUCHED), c.c_int(UNTOUCHED)
        code = self._call("cuDevicePrimaryCtxGetState", device, c.byref(flags), c.byref(active))
        return [*code, flags.value, active.value]

    def create_context(self, device: int = 0, flags: int = 0) -> Answer:
        return self._make("cuCtxCreate_v2", flags, device)

    def destroy_context(self, context: int) -> Answer:
        return self._call("cuCtxDestroy_v2", _handle(context))

    def set_current(self, context: int) -> Answer:
        return self._call("cuCtxSetCurrent", _handle(context))

    def current(self) -> Answer:
        return self._make("cuCtxGetCurrent")

    def push(self, context: int) -> Answer:
        return self._call("cuCtxPushCurrent_v2", _handle(context))

    def pop(self) -> Answer:
        return self._make("cuCtxPopCurrent_v2")

    def device(self) -> Answer:
        number = c.c_int(UNTOUCHED)
        return [*self._call("cuCtxGetDevice", c.byref(number)), number.value]

    def synchronize(self) -> Answer:
        return self._call("cuCtxSynchronize")

    def start(self, device: int = 0) -> Answer:
        """What every program does first: init, the primary context, made current."""
        code = self.init()
        if code[0] == 0:
            code = self.retain(device)
        return code[:1] if code[0] else self.set_current(code[1])

    def set_limit(self, limit: int, value: int) -> Answer:
        return self._call("cuCtxSetLimit", limit, _size(value))

    def get_limit(self, limit: int) -> Answer:
        return self._make("cuCtxGetLimit", limit)

    # --- the interface of CUDA 3.1, with pointers of 32 bits

    def create_context_v1(self, device: int = 0) -> Answer:
        return self._make("cuCtxCreate", 0, device)

    def _make_v1(self, name: str, *arguments: object) -> Answer:
        made = c.c_uint(UNTOUCHED)
        return [self._function(name)(c.byref(made), *arguments), made.value]

    def alloc_v1(self, size: int) -> Answer:
        return self._make_v1("cuMemAlloc", c.c_uint(size))

    def alloc_pitch_v1(self, width: int, height: int) -> Answer:
        return self._make_v1(
            "cuMemAllocPitch", c.byref(c.c_uint()), c.c_uint(width), c.c_uint(height), 4
        )

    def free_v1(self, pointer: int) -> Answer:
        return self._call("cuMemFree", c.c_uint(pointer))

    def info_v1(self) -> Answer:
        total = c.c_uint(UNTOUCHED)
        return [*self._make_v1("cuMemGetInfo", c.byref(total)), total.value]

    def create_array_v1(self, width: int, height: int) -> Answer:
        wanted = (c.c_uint * 4)(width, height, FLOAT, 4)
        return self._make("cuArrayCreate", wanted)

    def create_array3d_v1(self, width: int, height: int, depth: int) -> Answer:
        wanted = (c.c_uint * 6)(width, height, depth, FLOAT, 4, 0)
        return self._make("cuArray3DCreate", wanted)

    # --- plain memory

    def alloc(self, size: int) -> Answer:
        return self._make("cuMemAlloc_v2", _size(size))

    def alloc_pitch(self, width: int, height: int, element: int = 4) -> Answer:
        pointer, pitch = _address(UNTOUCHED), _size(UNTOUCHED)
        code = self._call(
            "cuMemAllocPitch_v2",
            c.byref(pointer),
            c.byref(pitch),
            _size(width),
            _size(height),
            element,
        )
        return [*code, pointer.value, pitch.value]

    def call_with_nothing(self, name: str) -> Answer:
        return self._call(name, *[None] * 4)

    def alloc_managed(self, size: int, flags: int = 1) -> Answer:
        return self._make("cuMemAllocManaged", _size(size), flags)

    def free(self, pointer: int) -> Answer:
        return self._call("cuMemFree_v2", _address(pointer))

    def range_of(self, pointer: int) -> Answer:
        base, size = _address(UNTOUCHED), _size(UNTOUCHED)
        code = self._call(
            "cuMemGetAddressRange_v2", c.byref(base), c.byref(size), _address(pointer)
        )
        return [*code, base.value, size.value]

    def attribute_of(self, pointer: int, which: int) -> Answer:
        """One attribute of a pointer, over bytes that are all ones before."""
        out = (c.c_ubyte * 8)(*[0xFF] * 8)
        code = self._call("cuPointerGetAttribute", out, which, _address(pointer))[0]
        return [code, int.from_bytes(bytes(out), "little")]

    def attributes_of(self, pointer: int, which: list[int]) -> Answer:
        """The same of several by one call."""
        outs = [(c.c_ubyte * 8)(*[0xFF] * 8) for _ in which]
        asked = (c.c_int * len(which))(*which)
        places = (c.c_void_p * len(which))(*[c.addressof(out) for out in outs])
        code = self._call("cuPointerGetAttributes", len(which), asked, places, _address(pointer))
        return [*code, *[int.from_bytes(bytes(out), "little") for out in outs]]

    def set_sync_memops(self, pointer: int, value: int) -> Answer:
        flag = c.c_uint(value)
        return self._call("cuPointerSetAttribute", c.byref(flag), 6, _address(pointer))

    def access_of(self, pointer: int) -> Answer:
        flags, location = c.c_ulonglong(7), (c.c_int * 2)(1, 0)
        code = self._call("cuMemGetAccess", c.byref(flags), location, _address(pointer))
        return [*code, flags.value]

    def set_access(self, pointer: int, size: int) -> Answer:
        access = (c.c_int * 3)(1, 0, 3)
        return self._call("cuMemSetAccess", _address(pointer), _size(size), access, _size(1))

    def fill(self, pointer: int, value: int, size: int) -> Answer:
        return self._call("cuMemsetD8_v2", _address(pointer), c.c_ubyte(value), _size(size))

    def read(self, pointer: int, size: int) -> Answer:
        data = (c.c_ubyte * size)()
        return [*self._call("cuMemcpyDtoH_v2", data, _address(pointer), _size(size)), *data]

    # --- in stream order

    def alloc_async(self, size: int, stream: int = 0) -> Answer:
        return self._make("cuMemAllocAsync", _size(size), _handle(stream))

    def alloc_from(self, pool: int, size: int, stream: int = 0) -> Answer:
        return self._make("cuMemAllocFromPoolAsync", _size(size), _handle(pool), _handle(stream))

    def free_async(self, pointer: int, stream: int = 0) -> Answer:
        return self._call("cuMemFreeAsync", _address(pointer), _handle(stream))

    def create_pool(self, device: int = 0) -> Answer:
        wanted = _PoolProperties(type=PINNED, location=_Location(ON_DEVICE, device))
        return self._make("cuMemPoolCreate", c.byref(wanted))

    def destroy_pool(self, pool: int) -> Answer:
        return self._call("cuMemPoolDestroy", _handle(pool))

    def trim_pool(self, pool: int, keep: int = 0) -> Answer:
        return self._call("cuMemPoolTrimTo", _handle(pool), _size(keep))

    def export_pool(self, pool: int) -> Answer:
        return self._make(
            "cuMemPoolExportToShareableHandle", _handle(pool), FILE_DESCRIPTOR, c.c_uint64(0)
        )

    def pool_attribute(self, pool: int, what: int) -> Answer:
        value = c.c_uint64(UNTOUCHED)
        return [
            *self._call("cuMemPoolGetAttribute", _handle(pool), what, c.byref(value)),
            value.value,
        ]

    def set_pool_attribute(self, pool: int, what: int, value: int) -> Answer:
        return self._call("cuMemPoolSetAttribute", _handle(pool), what, c.byref(c.c_uint64(value)))

    def default_pool(self, device: int = 0) -> Answer:
        return self._make("cuDeviceGetDefaultMemPool", device)

    def device_pool(self, device: int = 0) -> Answer:
        return self._make("cuDeviceGetMemPool", device)

    def set_device_pool(self, pool: int, device: int = 0) -> Answer:
        return self._call("cuDeviceSetMemPool", device, _handle(pool))

    def create_stream(self, flags: int = 1) -> Answer:
        return self._make("cuStreamCreate", flags)

    def destroy_stream(self, stream: int) -> Answer:
        return self._call("cuStreamDestroy_v2", _handle(stream))

    def synchronize_stream(self, stream: int = 0) -> Answer:
        return self._call("cuStreamSynchronize", _handle(stream))

    def create_event(self, flags: int = 0) -> Answer:
        return self._make("cuEventCreate", flags)

    def record_event(self, event: int, stream: int = 0) -> Answer:
        return self._call("cuEventRecord", _handle(event), _handle(stream))

    def synchronize_event(self, event: int) -> Answer:
        return self._call("cuEventSynchronize", _handle(event))

    def destroy_event(self, event: int) -> Answer:
        return self._call("cuEventDestroy_v2", _handle(event))

    # --- memory of other processes

    def ipc_handle(self, pointer: int) -> tuple[int, str]:
        handle = _IpcHandle()
        (code,) = self._call("cuIpcGetMemHandle", c.byref(handle), _address(pointer))
        return code, bytes(handle.bytes).hex()

    def open_ipc(self, handle: str) -> Answer:
        return self._make(
            "cuIpcOpenMemHandle_v2", _IpcHandle.from_buffer_copy(bytes.fromhex(handle)), 1
        )

    def close_ipc(self, pointer: int) -> Answer:
        return self._call("cuIpcCloseMemHandle", _address(pointer))

    # --- physical memory and where it is mapped

    def granularity(self, device: int = 0) -> Answer:
        return self._make("cuMemGetAllocationGranularity", c.byref(_physical(device)), 0)

    def create_physical(self, size: int, device: int = 0) -> Answer:
        return self._make("cuMemCreate", _size(size), c.byref(_physical(device)), c.c_uint64(0))

    def release_physical(self, handle: int) -> Answer:
        return self._call("cuMemRelease", c.c_uint64(handle))

    def create_shareable(self, size: int, device: int = 0) -> Answer:
        """Physical memory that can be exported as a file descriptor."""
        wanted = _physical(device)
        wanted.handle_types = FILE_DESCRIPTOR
        return self._make("cuMemCreate", _size(size), c.byref(wanted), c.c_uint64(0))

    def export_physical(self, handle: int) -> Answer:
        return self._make(
            "cuMemExportToShareableHandle", c.c_uint64(handle), FILE_DESCRIPTOR, c.c_uint64(0)
        )

    def import_physical(self, descriptor: int) -> Answer:
        return self._make("cuMemImportFromShareableHandle", _handle(descriptor), FILE_DESCRIPTOR)

    def range_descriptor(self, pointer: int, size: int) -> Answer:
        """A descriptor of a range of memory, for other devices (dma-buf)."""
        descriptor = c.c_int(UNTOUCHED)
        return [
            *self._call(
                "cuMemGetHandleForAddressRange",
                c.byref(descriptor),
                _address(pointer),
                _size(size),
                1,
                c.c_uint64(0),
            ),
            descriptor.value,
        ]

    def reserve_addresses(self, size: int) -> Answer:
        none = c.c_uint64(0)
        return self._make("cuMemAddressReserve", _size(size), _size(0), none, none)

    def free_addresses(self, address: int, size: int) -> Answer:
        return self._call("cuMemAddressFree", _address(address), _size(size))

    def map(self, address: int, size: int, handle: int, offset: int = 0) -> Answer:
        return self._call(
            "cuMemMap",
            _address(address),
            _size(size),
            _size(offset),
            c.c_uint64(handle),
            c.c_uint64(0),
        )

    def unmap(self, address: int, size: int) -> Answer:
        return self._call("cuMemUnmap", _address(address), _size(size))

    def retain_physical(self, address: int) -> Answer:
        return self._make("cuMemRetainAllocationHandle", _handle(address))

    # --- work

    def load_spin(self) -> Answer:
        """Load a module with a kernel that takes a given time. Returns the kernel."""
        (code, module) = self._make("cuModuleLoadData", SPIN)
        return (
            [code, 0]
            if code
            else self._make("cuModuleGetFunction", _handle(module), b"aliquot_spin")
        )

    def spin(self, kernel: int, nanoseconds: int, times: int = 1) -> Answer:
        """Launch it that often; returns when the last one is done."""
        argument = c.c_uint64(nanoseconds)
        arguments = (c.c_void_p * 1)(c.addressof(argument))
        for _ in range(times):
            (code,) = self._call(
                "cuLaunchKernel", _handle(kernel), 1, 1, 1, 1, 1, 1, 0, None, arguments, None
            )
            if code:
                return [code]
        return self.synchronize()

    # --- arrays

    def create_array(
        self, width: int, height: int, layout: int = FLOAT, channels: int = 4
    ) -> Answer:
        wanted = _Array(width, height, layout, channels)
        return self._make("cuArrayCreate_v2", c.byref(wanted))

    def create_array3d(
        self, width: int, height: int, depth: int, channels: int = 4, flags: int = 0
    ) -> Answer:
        wanted = _Array3D(width, height, depth, FLOAT, channels, flags)
        return self._make("cuArray3DCreate_v2", c.byref(wanted))

    def create_sparse_array(self, width: int, height: int) -> Answer:
        wanted = _Array3D(width, height, 0, FLOAT, 1, SPARSE)
        return self._make("cuArray3DCreate_v2", c.byref(wanted))

    def map_array(self, array: int, handle: int, operation: int = MAP) -> Answer:
        info = _MapInfo(resource=array, handle=handle, operation=operation, devices=1)
        return self._call("cuMemMapArrayAsync", c.byref(info), 1, None)

    def bind_multicast(self, holder: int, handle: int, size: int) -> Answer:
        zero = c.c_uint64(0)
        memory = (zero, c.c_uint64(handle), _size(0), _size(size), zero)
        return self._call("cuMulticastBindMem", c.c_uint64(holder), *memory)

    def destroy_array(self, array: int) -> Answer:
        return self._call("cuArrayDestroy", _handle(array))

    def create_mipmap(self, width: int, height: int, levels: int, channels: int = 4) -> Answer:
        wanted = _Array3D(width, height, 0, FLOAT, channels, 0)
        return self._make("cuMipmappedArrayCreate", c.byref(wanted), levels)

    def destroy_mipmap(self, mipmap: int) -> Answer:
        return self._call("cuMipmappedArrayDestroy", _handle(mipmap))
