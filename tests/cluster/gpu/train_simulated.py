"""The same for a simulated GPU, which computes nothing: python train_simulated.py STEPS SEED.

Each step keeps the GPU busy and changes a buffer in its memory by what it read from it: a step that
is lost or done twice changes all later sums. The kernels of the next step are launched before it
waits for this one's, so that the GPU always has work. It prints what work_resnet.py prints.
Standard library only.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import sys
import time

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry aliquot_spin(.param .u64 n) { ret; }
"""
BYTES = 4096
KERNELS, KERNEL_NS = 20, 500_000
STREAM_NON_BLOCKING = 1


def main(steps: int, seed: int) -> None:
    cuda = c.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = cuda[name](*arguments)
        if code:
            sys.exit(f"{name}: CUDA error {code}")

    context, module, function, stream = (c.c_void_p() for _ in range(4))
    memory, buffer = c.c_uint64(), c.create_string_buffer(BYTES)
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", c.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", c.byref(module), PTX)
    call("cuModuleGetFunction", c.byref(function), module, b"aliquot_spin")
    call("cuStreamCreate", c.byref(stream), STREAM_NON_BLOCKING)
    call("cuMemAlloc_v2", c.byref(memory), c.c_size_t(BYTES))
    call("cuMemsetD8_v2", memory, c.c_ubyte(seed % 256), c.c_size_t(BYTES))
    time_ns = c.c_uint64(KERNEL_NS)
    parameters = (c.c_void_p * 1)(c.addressof(time_ns))
    done = [c.c_void_p(), c.c_void_p()]  # when the kernels of even and odd steps have ended
    for event in done:
        call("cuEventCreate", c.byref(event), 0)

    def launch(step: int) -> None:
        for _ in range(KERNELS):
            call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)
        call("cuEventRecord", done[step % 2], stream)

    print("ready", flush=True)
    launch(1)
    for step in range(1, steps + 1):
        launch(step + 1)
        call("cuEventSynchronize", done[step % 2])
        call("cuMemcpyDtoH_v2", buffer, memory, c.c_size_t(BYTES))
        digest = hashlib.sha256(buffer.raw).digest()
        call("cuMemcpyHtoD_v2", memory, digest, c.c_size_t(len(digest)))
        print(step, digest.hex()[:16], time.time(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
