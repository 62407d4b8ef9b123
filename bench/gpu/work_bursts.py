"""ResNet-50 training in bursts on demand: python work_bursts.py FOLDER STEPS.

For each file `go-N` that appears in the folder, N from 1 on, it does that many steps and writes how
many seconds they took to `done-N`. So two of them on one GPU can work in turn, for comparison.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path

import torch
from resnet import resnet50

IMAGE, BATCH, WARM = 224, 64, 20


def main(folder: Path, steps: int) -> None:
    torch.manual_seed(1)
    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(BATCH, 3, IMAGE, IMAGE, device="cuda")
    labels = torch.randint(1000, (BATCH,), device="cuda")

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def burst(number: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(number):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    burst(WARM)
    for number in count(1):
        write(folder / f"ready-{number}", "")
        while not (folder / f"go-{number}").exists():
            time.sleep(0.001)
        write(folder / f"done-{number}", str(burst(steps)))


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text, "ascii")
    part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
