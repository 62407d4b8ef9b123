"""A PyTorch parent and two children exchange tensors on the GPU, in a small slice.

    aliquot run --memory 4GiB -- python bench/gpu/exchange.py [--tensors 1000] [--mib 8] [--json]

Needs an NVIDIA GPU and PyTorch. The parent sends tensors to two children by torch.multiprocessing,
which shares GPU memory between processes (cuIpcGetMemHandle, cuIpcOpenMemHandle). A child checks
each tensor, drops it, and sends one of its own back, which the parent checks and drops. Printed are
the bytes of the slice in use when all processes are warm, at most, and when all tensors are gone.
Exit code 0: every tensor was right, and the slice is as full as at the start.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import multiprocessing

MIB = 1 << 20
CHILDREN = 2
READY, STOP = "ready", None
SETTLE_SECONDS = 5.0


@dataclass
class Result:
    tensors: int = 0
    wrong: int = 0
    start_bytes: int = 0
    peak_bytes: int = 0
    end_bytes: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        return self.wrong == 0 and self.end_bytes <= self.start_bytes


def used_bytes() -> int:
    """What the slice has in use, by all its processes and the driver."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def make_tensor(number: int, mib: int) -> Any:
    return torch.full((mib * MIB // 4,), float(number), device="cuda")


def is_right(tensor: Any, number: int) -> bool:
    return bool((tensor == float(number)).all().item())


def let_go() -> None:
    """Give back everything that this process no longer needs."""
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()


def child(into: Any, out: Any, mib: int) -> None:
    torch.zeros(1, device="cuda")
    out.put((READY, None, 0))
    while (message := into.get()) is not STOP:
        number, tensor = message
        wrong = not is_right(tensor, number)
        del tensor, message
        out.put((number, make_tensor(-number, mib), int(wrong)))
        let_go()
    let_go()
    out.put((READY, None, 0))
    into.get()  # until the parent has looked


def exchange_one(number: int, mib: int, queues: list[Any], back: Any, result: Result) -> None:
    """Send a tensor to a child, and get one back."""
    sent = make_tensor(number, mib)
    queues[number % CHILDREN].put((number, sent))
    answered, received, wrong = back.get()
    result.peak_bytes = max(result.peak_bytes, used_bytes())
    result.wrong += wrong + (not is_right(received, -answered))
    result.tensors += 2
    del sent, received
    let_go()


def exchange(tensors: int, mib: int) -> Result:
    context = multiprocessing.get_context("spawn")
    back = context.Queue()
    queues = [context.Queue() for _ in range(CHILDREN)]
    processes = [context.Process(target=child, args=(queue, back, mib)) for queue in queues]
    torch.zeros(1, device="cuda")
    for process in processes:
        process.start()
    for _ in processes:
        back.get()
    warm, result = Result(), Result()
    for number in range(2 * CHILDREN):
        exchange_one(number, mib, queues, back, warm)
    result.start_bytes = used_bytes()
    begun = time.monotonic()
    for number in range(tensors // 2):
        exchange_one(number, mib, queues, back, result)
    result.seconds = time.monotonic() - begun
    for queue in queues:
        queue.put(STOP)
    for _ in processes:
        back.get()
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        let_go()
        torch.cuda.synchronize()
        result.end_bytes = used_bytes()
        if result.end_bytes <= result.start_bytes:
            break
        time.sleep(0.1)
    for queue, process in zip(queues, processes, strict=True):
        queue.put(STOP)
        process.join()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensors", type=int, default=1000, help="in both directions together")
    parser.add_argument("--mib", type=int, default=8, help="size of a tensor")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    result = exchange(options.tensors, options.mib)
    if options.json:
        print(json.dumps({**asdict(result), "right": result.is_right}))
    else:
        print(f"{result.tensors} tensors, {result.wrong} wrong, {result.seconds:.1f} s")
        for name in ("start", "peak", "end"):
            print(f"in use at {name}: {getattr(result, name + '_bytes') / MIB:.0f} MiB")
    return 0 if result.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
