"""A Hugging Face Trainer run that an elastic job can run at any size, on CPUs or GPUs.

    aliquot submit --workers 1..2 -- python examples/trainer.py --save /tmp/trainer

It needs only a callback of thirty lines, which reports progress and speed and, after a notice, has
the Trainer save and stop. A restarted run, at any size, continues from the last complete
checkpoint. `max_steps` ends the run, because the number of steps in an epoch depends on the number
of workers. The model is small and made from its configuration, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from aliquot import worker

BATCH = 8
TOKENS, LENGTH = 64, 32


class Elastic(TrainerCallback):
    """Reports progress to the pool, and stops the run after a notice."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began, self._first = 0.0, 0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002 - the Trainer gives it
        **_: object,
    ) -> None:
        """Measure speed from the end of the first step, which takes longer."""
        self._first = state.global_step + 1
        where = f"rank {args.process_index} of {args.world_size}"
        print(f"starts at step {state.global_step}: {where}", flush=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """All processes agree on the step at which they stop: the Trainer saves together."""
        time.sleep(self._seconds)
        if state.global_step == self._first:
            self._began = time.monotonic()
        if state.is_world_process_zero:
            steps, seconds = state.global_step - self._first, time.monotonic() - self._began
            samples = steps * args.train_batch_size * args.world_size
            speed = samples / seconds if samples else None
            worker.report(step=state.global_step, samples_per_second=speed)
        if any_is_told(args.device):
            control.should_save = control.should_log = control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002 - as above
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        """Print the loss since the last time."""
        if state.is_world_process_zero and logs and "loss" in logs:
            print(f"at step {state.global_step}: loss {float(logs['loss']):.4f}", flush=True)


def main() -> None:
    """Train until all steps are done or a notice comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="to wait in each step, where CPUs are few"
    )
    parser.add_argument("--save", type=Path, required=True)
    options = parser.parse_args()

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=TOKENS,
            n_positions=LENGTH,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(options.save),
        max_steps=options.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_steps=options.every,
        save_total_limit=2,
        logging_steps=options.every,
        ignore_data_skip=True,  # the data order depends on the size, so there is nothing to skip
        use_cpu=not gpu,
        ddp_backend="nccl" if gpu else "gloo",
        ddp_find_unused_parameters=False,
        report_to=[],
        disable_tqdm=True,
    )
    callback = Elastic(options.seconds)
    trainer = Trainer(model, arguments, train_dataset=dataset(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=last_whole(options.save))
    if dist.is_initialized():
        dist.barrier()  # no rank is ready before rank 0 has saved
        dist.destroy_process_group()
    worker.ready()


def any_is_told(device: torch.device) -> bool:
    """Whether any process has a notice."""
    noticed = worker.notice() is not None
    if not dist.is_initialized():
        return noticed
    value = torch.tensor(int(noticed), device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value.item())


def last_whole(folder: Path) -> str | None:
    """The newest complete checkpoint: the Trainer writes its state last."""
    found = {
        int(path.name.rpartition("-")[2]): path
        for path in folder.glob("checkpoint-*")
        if path.name.rpartition("-")[2].isdecimal() and is_json(path / "trainer_state.json")
    }
    return str(found[max(found)]) if found else None


def is_json(path: Path) -> bool:
    """Whether the file exists and is complete."""
    try:
        json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return True


def dataset() -> list[dict[str, torch.Tensor]]:
    """Sequences that count up in strides, which a small model learns quickly."""
    starts, strides = torch.arange(TOKENS), torch.arange(1, 9)
    counted = torch.arange(LENGTH)
    rows = (start + stride * counted for start in starts for stride in strides)
    return [{"input_ids": row % TOKENS, "labels": row % TOKENS} for row in rows]


if __name__ == "__main__":
    main()
