"""A training that says its losses to the last bit: python work_losses.py STEPS SEED [LAYERS].

A deep network with Adam, in float32: 16 layers have 16 GiB of weights, gradients and moments. Its
data are drawn on the GPU, by a generator whose state is there. It prints a line for each step, its
number and its loss as a hexadecimal float, and knows nothing of being suspended. The same seed
gives the same losses.
"""

from __future__ import annotations

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else cuBLAS may sum in another order

import torch

WIDTH, BATCH = 8192, 128


def main(steps: int, seed: int, layers: int) -> None:
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(seed)
    parts: list[torch.nn.Module] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(WIDTH, WIDTH, device="cuda"), torch.nn.Tanh()]
    model = torch.nn.Sequential(*parts)
    adam = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)  # no copies beside them
    source = torch.Generator("cuda")
    source.manual_seed(seed)
    for step in range(1, steps + 1):
        batch = torch.randn(BATCH, WIDTH, device="cuda", generator=source)
        loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        print(step, loss.item().hex(), flush=True)
    print("most", torch.cuda.max_memory_allocated(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 16)
