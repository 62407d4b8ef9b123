"""A service that answers every 10 ms: python work_service.py GIB [--fills].

It holds that many GiB and does one inference step (work_torch.py: latency) each 10 ms. It writes
`ready`, and then for each step when it began, by the monotonic clock, and how many milliseconds it
took. `--fills` does a memset instead of the step and holds nothing: for a simulated GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

EVERY_SECONDS = 0.010


def inference(gib: int) -> Callable[[], object]:
    import torch
    from work_torch import make

    work = make("latency")
    held = torch.zeros(gib << 28, dtype=torch.float32, device="cuda")
    held.fill_(1.0)

    def step() -> object:
        work.step()
        return held

    return step


def fill() -> Callable[[], object]:
    import ctypes

    from work_fills import call

    device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(1 << 20))

    def step() -> object:
        call("cuMemsetD8_v2", at, ctypes.c_uint8(1), ctypes.c_size_t(1 << 20))
        call("cuCtxSynchronize")
        return at

    return step


def main(gib: int, *, fills: bool) -> None:
    step = fill() if fills else inference(gib)
    for _ in range(20):
        step()
    print("ready", flush=True)
    due = time.monotonic()
    while True:
        begin = time.monotonic()
        step()
        print(f"{begin:.6f} {(time.monotonic() - begin) * 1000:.3f}", flush=True)
        due = max(due + EVERY_SECONDS, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]), fills="--fills" in sys.argv)
