"""A program that holds memory and waits for input, as a notebook does: work_notebook.py GIB.

Each tensor of 1 GiB is filled by a formula of its own. For each line it reads it computes one sum
("sum") or compares every byte ("all"), and writes whether that was right.
"""

from __future__ import annotations

import sys

import torch

COUNT = (1 << 30) // 8


def fill(number: int) -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.int64, device="cuda").mul_(2 * number + 1)


def main(size: int) -> None:
    tensors = [fill(number) for number in range(size)]
    sums = [int(tensor.sum()) for tensor in tensors]
    torch.cuda.synchronize()
    print("right", flush=True)
    for turn, line in enumerate(sys.stdin):
        if line.strip() == "all":
            for tensor in tensors:
                tensor[1:] -= tensor[:-1].clone()
            right = all(
                int(tensor[0]) == 0 and bool((tensor[1:] == 2 * number + 1).all())
                for number, tensor in enumerate(tensors)
            )
        else:
            right = int(tensors[turn % size].sum()) == sums[turn % size]
        print("right" if right else "WRONG", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
