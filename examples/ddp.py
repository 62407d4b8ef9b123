r"""PyTorch DDP that an elastic job can run at any size, on CPUs (gloo) or GPUs (nccl).

As a plain command, each worker one process:

    aliquot submit --workers 1..4 -- python examples/ddp.py --save /tmp/ddp.pt

or under torchrun, which starts the processes of a worker (here one for each of its GPUs):

    aliquot submit --workers 1..4 --gpus 2 -- sh -c 'torchrun --nnodes $WORLD_SIZE \
        --node-rank $RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT \
        --nproc-per-node 2 examples/ddp.py --save /tmp/ddp.pt'

Rank 0 saves every hundred steps, and at once when a change is coming. Which step that is must be
the same for all: they agree on it with one all-reduce.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from aliquot import worker

BATCH = 64


def main() -> None:
    """Train until all steps are done, or until asked to make room."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save", type=Path, required=True)
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else "cpu"
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)
    )
    model = DistributedDataParallel(model.to(device), device_ids=[device] if gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = load(options.save, model, optimizer, device)

    began, first = time.monotonic(), step
    while step < options.steps:
        samples = torch.randn(BATCH, 256, device=device)
        loss = (model(samples) - samples.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        leave = agree(worker.notice() is not None, device)
        if dist.get_rank() == 0:
            speed = (step - first) * BATCH * dist.get_world_size() / (time.monotonic() - began)
            worker.report(step=step, samples_per_second=speed)
            if leave or step % 100 == 0:
                save(options.save, model, optimizer, step)
        if leave:
            worker.ready()
            break
    dist.destroy_process_group()


def agree(mine: bool, device: torch.device | str) -> bool:  # noqa: FBT001 - one word
    """Whether any of the workers has been asked to make room."""
    word = torch.tensor(int(mine), device=device)
    dist.all_reduce(word, op=dist.ReduceOp.MAX)
    return bool(word.item())


def load(
    path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, device: object
) -> int:
    """Go on from what was saved."""
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=device)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(
    path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Save whole or not at all."""
    beside = path.with_suffix(".new")
    words = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(words, beside)
    beside.replace(path)


if __name__ == "__main__":
    main()
