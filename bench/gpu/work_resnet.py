"""A training that says its losses to the last bit: python work_resnet.py STEPS SEED [fill].

ResNet-50 in float32 on images drawn on the GPU. It prints `ready`, then a line for each step: its
number, its loss as a hexadecimal float, and when it was done. The same seed gives the same losses.
With `fill` it takes all the memory that it can get after a few steps, prints `filled` and how many
bytes PyTorch had then, and keeps what the training leaves.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else cuBLAS may sum in another order

import torch
from resnet import resnet50

IMAGE, BATCH = 224, 64
PIECE, SPARE = 64 << 20, 8 << 30  # SPARE is for the training
FILL_AT = 3  # the step after which its memory has its size


def fill() -> list[torch.Tensor]:
    """Take memory until there is none, and give back what the training needs; the rest."""
    pieces = []
    try:
        while True:
            pieces.append(torch.empty(PIECE, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        print("filled", torch.cuda.max_memory_reserved(), flush=True)
    del pieces[: SPARE // PIECE]
    torch.cuda.empty_cache()
    return pieces


def main(steps: int, seed: int, *, fills: bool) -> None:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(seed)
    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    source = torch.Generator("cuda")
    source.manual_seed(seed)
    kept: list[torch.Tensor] = []
    print("ready", flush=True)
    for step in range(1, steps + 1):
        images = torch.randn(BATCH, 3, IMAGE, IMAGE, device="cuda", generator=source)
        labels = torch.randint(1000, (BATCH,), device="cuda", generator=source)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item().hex(), time.time(), flush=True)
        if fills and step == FILL_AT:
            kept = fill()
    print("kept", len(kept) * PIECE, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), fills="fill" in sys.argv[3:])
