r"""PyTorch DDP that an elastic job can run at any size, on CPUs (gloo) or GPUs (nccl).

As a plain command, each worker one process:

    aliquot submit --workers 1..4 -- python examples/ddp.py --save /tmp/ddp.pt

or under torchrun, which starts the processes of a worker (here one for each of its GPUs):

    aliquot submit --workers 1..2 --gpus 2 -- sh -c 'torchrun --nnodes $WORLD_SIZE \
        --node-rank $RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT \
        --nproc-per-node 2 examples/ddp.py --save /tmp/ddp.pt'

Rank 0 saves every hundred steps, and at once when a change is coming. At which step that is must be
the same for all: they agree on it with one all-reduce, which also brings the mean of their losses.
What a step trains on follows from its number and the rank alone, so a step that is done again sees
what it saw before.
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
MOST_RANKS = 1 << 20


def main() -> None:
    """Train until all steps are done, or until asked to make room."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="to wait in each step, where CPUs are few"
    )
    parser.add_argument("--save", type=Path, required=True)
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)
    )
    model = DistributedDataParallel(model.to(device), device_ids=[device] if gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = load(options.save, model, optimizer, device)
    print(f"starts at step {step}: rank {rank} of {size}", flush=True)

    leave, losses = False, []
    first, began = step + 1, 0.0  # the first step takes longer
    while step < options.steps and not leave:
        samples, wanted = data(step, rank, device)
        loss = (model(samples) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(options.seconds)
        leave, mean = agree(loss, device)
        losses.append(mean)
        began = time.monotonic() if step == first else began
        if rank == 0:
            samples, seconds = (step - first) * BATCH * size, time.monotonic() - began
            speed = samples / seconds if samples else None
            worker.report(step=step, samples_per_second=speed)
            if leave or step % options.every == 0 or step == options.steps:
                save(options.save, model, optimizer, step)
                print(f"saved at step {step}: loss {sum(losses) / len(losses):.4f}", flush=True)
                losses = []
    dist.barrier()  # nobody is ready before all is saved
    worker.ready()
    dist.destroy_process_group()


def data(step: int, rank: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What this rank trains on in this step."""
    random = torch.Generator().manual_seed(step * MOST_RANKS + rank)
    samples = torch.randn(BATCH, 256, generator=random).to(device)
    return samples, samples.sum(1, keepdim=True) / 16


def agree(loss: torch.Tensor, device: torch.device) -> tuple[bool, float]:
    """Whether any of the workers has been asked to make room, and the mean loss of all."""
    asked = float(worker.notice() is not None)
    words = torch.tensor([asked, loss.item()], device=device)
    dist.all_reduce(words)
    return bool(words[0] > 0), float(words[1]) / dist.get_world_size()


def load(
    path: Path,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
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
