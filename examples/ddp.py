r"""PyTorch DDP that an elastic job can run at any size, on CPUs (gloo) or GPUs (nccl).

As a plain command, with one process per worker:

    aliquot submit --workers 1..4 -- python examples/ddp.py --save /tmp/ddp.pt

or under torchrun, which starts the processes of a worker (here one per GPU):

    aliquot submit --workers 1..2 --gpus 2 -- sh -c 'torchrun --nnodes $WORLD_SIZE \
        --node-rank $RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT \
        --nproc-per-node 2 examples/ddp.py --save /tmp/ddp.pt'

Rank 0 saves every hundred steps, and at once after a notice. All ranks must stop at the same step:
they agree on it with one all-reduce, which also computes their mean loss. The data of a step
depends only on its number and the rank, so a repeated step sees the same data.
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
    """Train until all steps are done or a notice comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="to wait in each step, if there are few CPUs"
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

    stop, losses = False, []
    first, began = step + 1, 0.0  # the first step takes longer
    while step < options.steps and not stop:
        samples, wanted = data(step, rank, device)
        loss = (model(samples) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(options.seconds)
        stop, mean = agree(loss, device)
        losses.append(mean)
        began = time.monotonic() if step == first else began
        if rank == 0:
            samples, seconds = (step - first) * BATCH * size, time.monotonic() - began
            speed = samples / seconds if samples else None
            worker.report(step=step, samples_per_second=speed)
            if stop or step % options.every == 0 or step == options.steps:
                save(options.save, model, optimizer, step)
                print(f"saved at step {step}: loss {sum(losses) / len(losses):.4f}", flush=True)
                losses = []
    dist.barrier()  # no rank is ready before rank 0 has saved
    worker.ready()
    dist.destroy_process_group()


def data(step: int, rank: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The data of this rank in this step."""
    random = torch.Generator().manual_seed(step * MOST_RANKS + rank)
    samples = torch.randn(BATCH, 256, generator=random).to(device)
    return samples, samples.sum(1, keepdim=True) / 16


def agree(loss: torch.Tensor, device: torch.device) -> tuple[bool, float]:
    """Whether any worker has a notice, and the mean loss of all workers."""
    asked = float(worker.notice() is not None)
    values = torch.tensor([asked, loss.item()], device=device)
    dist.all_reduce(values)
    return bool(values[0] > 0), float(values[1]) / dist.get_world_size()


def load(
    path: Path,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> int:
    """Load the checkpoint, if there is one; the step to continue from."""
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=device)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(
    path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Replace the checkpoint atomically."""
    temporary = path.with_suffix(".new")
    checkpoint = {
        "model": model.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    torch.save(checkpoint, temporary)
    temporary.replace(path)


if __name__ == "__main__":
    main()
