"""Use the GPU, say so, and use it again after each line of the input."""

from __future__ import annotations

import sys

import torch

made = torch.ones(1000, device="cuda")
print("ready", flush=True)
for _ in sys.stdin:
    print(float((made * 2).sum()), flush=True)
