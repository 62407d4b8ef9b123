"""A training that says its losses to the last bit: python work_resnet.py STEPS SEED [BATCH].

ResNet-50 in float32 on images drawn on the GPU. It prints `ready`, then a line for each step: its
number, its loss as a hexadecimal float, and when it was done. The same seed gives the same losses.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else cuBLAS may sum in another order

import torch
from resnet import resnet50

IMAGE = 224


def main(steps: int, seed: int, batch: int) -> None:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(seed)
    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    source = torch.Generator("cuda")
    source.manual_seed(seed)
    print("ready", flush=True)
    for step in range(1, steps + 1):
        images = torch.randn(batch, 3, IMAGE, IMAGE, device="cuda", generator=source)
        labels = torch.randint(1000, (batch,), device="cuda", generator=source)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item().hex(), time.time(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 64)
