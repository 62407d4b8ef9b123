"""Programs that fill their GPU with one framework each: python tenants.py NAME.

Each works first (a real kernel), then takes memory in smaller and smaller pieces until the
framework itself says "out of memory", prints one JSON line, waits for a line on its input while
it is looked at from outside, gives its memory back and works once more: stopped, not broken.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
PIECES = (256 * MIB, 32 * MIB, 1 * MIB)


def fill(
    take: Callable[[int], object], is_full: Callable[[Exception], bool]
) -> tuple[list[object], str]:
    """Take pieces until each size is refused with the framework's own error."""
    held, error = [], ""
    for size in PIECES:
        while True:
            try:
                held.append(take(size))
            except Exception as exception:
                if not is_full(exception):
                    raise
                error = type(exception).__name__
                break
    return held, error


def report(error: str, **seen: Any) -> None:
    print(json.dumps({"error": error, "pid": os.getpid(), **seen}), flush=True)
    sys.stdin.readline()


def torch_program() -> None:
    import torch

    def work() -> float:
        a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
        return float((a @ a).float().sum())

    work()
    total = torch.cuda.mem_get_info()[1]
    full = torch.cuda.OutOfMemoryError
    held, error = fill(
        lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"),
        lambda exception: isinstance(exception, full),
    )
    report(
        error,
        total=total,
        version=torch.__version__,
        backend=torch.cuda.memory.get_allocator_backend(),
    )
    held.clear()
    torch.cuda.empty_cache()
    work()


def torch_graph() -> None:
    import torch

    x = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            y = torch.relu(x + 1) * 2
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.relu(x + 1) * 2
        z = torch.cat([y, y])
    held, error = fill(
        lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"),
        lambda exception: isinstance(exception, torch.cuda.OutOfMemoryError),
    )
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    assert float(z[-1]) == 2.0
    report(error, total=torch.cuda.mem_get_info()[1], version=torch.__version__)
    held.clear()
    graph.replay()
    torch.cuda.synchronize()


def jax_program() -> None:
    import jax
    import jax.numpy as jnp

    def work() -> float:
        return float(jnp.dot(jnp.ones((512, 512)), jnp.ones((512, 512))).sum())

    work()
    held, error = fill(
        lambda size: jnp.empty(size, dtype=jnp.uint8).block_until_ready(),
        lambda exception: "RESOURCE_EXHAUSTED" in str(exception),
    )
    report(error, version=jax.__version__)
    held.clear()
    work()


def cupy_program(*, asynchronous: bool) -> None:
    import cupy

    if asynchronous:
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)

    def work() -> float:
        return float((cupy.ones((512, 512)) @ cupy.ones((512, 512))).sum())

    work()
    held, error = fill(
        lambda size: cupy.empty(size, dtype=cupy.uint8),
        lambda exception: (
            isinstance(exception, cupy.cuda.memory.OutOfMemoryError)
            or "OutOfMemory" in str(exception)
            or "cudaErrorMemoryAllocation" in str(exception)
        ),
    )
    report(error, total=cupy.cuda.Device().mem_info[1], version=cupy.__version__)
    held.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    work()


def numba_program() -> None:
    import numpy as np

    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # gone from NumPy 2.5; Numba 0.6x still looks for it
    import numba
    from numba import cuda

    @cuda.jit
    def add_one(values):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < values.size:
            values[i] += 1

    def work() -> float:
        values = cuda.to_device(np.zeros(1024, dtype=np.float32))
        add_one[8, 128](values)
        return float(values.copy_to_host().sum())

    work()
    held, error = fill(
        lambda size: cuda.device_array(size, dtype=np.uint8),
        lambda exception: "OUT_OF_MEMORY" in str(exception),
    )
    report(error, total=cuda.current_context().get_memory_info().total, version=numba.__version__)
    held.clear()
    cuda.current_context().deallocations.clear()
    assert work() == 1024.0


def triton_program() -> None:
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def double(pointer, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(pointer + at, mask=at < size)
        tl.store(pointer + at, value * 2, mask=at < size)

    def work() -> float:
        x = torch.ones(4096, device="cuda")
        double[(4,)](x, 4096, BLOCK=1024)
        return float(x.sum())

    assert work() == 8192.0
    held, error = fill(
        lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"),
        lambda exception: isinstance(exception, torch.cuda.OutOfMemoryError),
    )
    report(error, total=torch.cuda.mem_get_info()[1], version=triton.__version__)
    held.clear()
    assert work() == 8192.0


class DriverError(Exception):
    pass


def driver_program() -> None:
    """The driver API by its plainest door, each kind of memory in turn."""
    from cuda.bindings import driver

    def call(function: Any, *arguments: Any) -> Any:
        result, *values = function(*arguments)
        if result != driver.CUresult.CUDA_SUCCESS:
            raise DriverError(result.name)
        return values[0] if len(values) == 1 else values

    call(driver.cuInit, 0)
    device = call(driver.cuDeviceGet, 0)
    context = call(driver.cuDevicePrimaryCtxRetain, device)
    call(driver.cuCtxSetCurrent, context)
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    turn = 0

    def take(size: int) -> tuple[str, Any]:
        nonlocal turn
        turn += 1
        kind = ("plain", "physical", "pitch", "pool")[turn % 4]
        if kind == "physical":
            size = -(-size // (2 * MIB)) * 2 * MIB
            return kind, call(driver.cuMemCreate, size, properties, 0)
        if kind == "pitch":
            return kind, call(driver.cuMemAllocPitch, 4096, size // 4096, 16)[0]
        if kind == "pool" and size >= 32 * MIB:
            return kind, call(driver.cuMemAllocAsync, size, driver.CUstream(0))
        return "plain", call(driver.cuMemAlloc, size)

    held, error = fill(take, lambda exception: "OUT_OF_MEMORY" in str(exception))
    report(error, total=call(driver.cuMemGetInfo)[1], version="cuda-bindings")
    for kind, handle in held:
        call(driver.cuMemRelease if kind == "physical" else driver.cuMemFree, handle)
    call(driver.cuMemFree, call(driver.cuMemAlloc, 256 * MIB))


PROGRAMS: dict[str, Callable[[], None]] = {
    "torch": torch_program,
    "torch-graph": torch_graph,
    "jax": jax_program,
    "cupy": lambda: cupy_program(asynchronous=False),
    "cupy-async": lambda: cupy_program(asynchronous=True),
    "numba": numba_program,
    "triton": triton_program,
    "driver": driver_program,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
