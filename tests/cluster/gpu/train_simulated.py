"""The same for a simulated GPU, which computes nothing: train_simulated.py STEPS SEED [fill].

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
PIECE, OUT_OF_MEMORY = 64 << 20, 2
FILL_AT = 3
STREAM_NON_BLOCKING = 1


def fill(cuda: c.CDLL) -> int:
    address, taken = c.c_uint64(), 0
    while (code := cuda.cuMemAlloc_v2(c.byref(address), c.c_size_t(PIECE))) == 0:
        taken += PIECE
    if code != OUT_OF_MEMORY:
        sys.exit(f"cuMemAlloc: CUDA error {code}")
    return taken


def main(steps: int, seed: int, *, fills: bool) -> None:
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
        if fills and step == FILL_AT:
            print("filled", fill(cuda), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), fills="fill" in sys.argv[3:])
