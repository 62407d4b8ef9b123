"""A plain Python program that an elastic job can run with any number of workers.

    aliquot submit --workers 1..4 -- python examples/plain.py --steps 2000 --save /tmp/plain.json

All workers take part in each step (here they sleep). Rank 0 counts the steps and saves regularly,
and at once after a notice or SIGTERM. A restarted program continues from what was saved.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from pathlib import Path

from aliquot import worker


def load(path: Path) -> int:
    """The step to continue from."""
    try:
        return int(json.loads(path.read_text())["step"])
    except FileNotFoundError:
        return 0


def save(path: Path, step: int) -> None:
    """Replace the checkpoint atomically."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"step": step}))
    temporary.replace(path)


def main() -> None:
    """Work until all steps are done or a notice comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--seconds", type=float, default=0.05, help="how long a step takes")
    parser.add_argument("--save", type=Path, required=True)
    options = parser.parse_args()

    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())  # as PID 1 it would ignore SIGTERM
    rank, size = worker.rank(), worker.size()
    step = load(options.save)
    print(f"starts at step {step}: rank {rank} of {size}", flush=True)
    while step < options.steps:
        time.sleep(options.seconds)
        step = step + 1 if rank == 0 else load(options.save)
        if rank == 0:
            worker.report(step=step, samples_per_second=size / options.seconds)
            if step % options.every == 0 or step == options.steps:
                save(options.save, step)
        if (notice := worker.notice()) is not None or ends.is_set():
            if rank == 0:
                save(options.save, step)
            why = f"{notice.kind} to {notice.size}" if notice else "SIGTERM"
            print(f"saved at step {step}: {why}", flush=True)
            worker.ready()
            sys.exit(0 if notice else 128 + signal.SIGTERM)  # not finished
    print(f"done at step {step}", flush=True)


if __name__ == "__main__":
    main()
