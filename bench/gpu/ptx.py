"""Kernels from PTX text, through the driver's API as any program finds it: plain ctypes."""

from __future__ import annotations

import ctypes as c

# On the simulated GPU this takes as long as it is told to; its text is not looked at there.
SPIN = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry aliquot_spin(.param .u64 aliquot_spin_param_0) { ret; }
"""

# Writes to address 0: on a real GPU the context is lost with CUDA_ERROR_ILLEGAL_ADDRESS.
ILLEGAL = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry aliquot_illegal()
{
    .reg .b64 %place;
    .reg .b32 %value;
    mov.u64 %place, 0;
    mov.u32 %value, 1;
    st.global.u32 [%place], %value;
    ret;
}
"""


class DriverError(Exception):
    """A driver call that failed."""


class Cuda:
    """The first GPU's primary context, and the few calls that are needed."""

    def __init__(self) -> None:
        self._driver = c.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = c.c_int(), c.c_void_p()
        self.call("cuDeviceGet", c.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise DriverError(f"{name} failed with code {code}")

    def kernel(self, source: str, name: str) -> c.c_void_p:
        module, function = c.c_void_p(), c.c_void_p()
        self.call("cuModuleLoadData", c.byref(module), source.encode())
        self.call("cuModuleGetFunction", c.byref(function), module, name.encode())
        return function

    def stream(self) -> c.c_void_p:
        stream = c.c_void_p()
        self.call("cuStreamCreate", c.byref(stream), 1)
        return stream

    def launch(
        self, kernel: c.c_void_p, argument: int | None = None, stream: c.c_void_p | None = None
    ) -> None:
        value = c.c_uint64(argument or 0)
        values = (c.c_void_p * 1)(c.addressof(value))
        given = None if argument is None else values
        self.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, given, None)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")


def illegal_access() -> str:
    """Make one, in this process's context; what the driver said of it."""
    cuda = Cuda()
    cuda.launch(cuda.kernel(ILLEGAL, "aliquot_illegal"))
    try:
        cuda.synchronize()
    except DriverError as error:
        return str(error)
    return "nothing was said"
