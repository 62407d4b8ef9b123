"""The examples, run by the commands in their docstrings: they grow, shrink and lose no work.

Each resizable example fills the machine, shrinks for a gang, and grows back when the gang is gone.
"""

from __future__ import annotations

import ast
import re
import shlex
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from examples.conftest import PYTHON, ROOT
from support import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pool.conftest import PoolUp

EVERY = 5
SECONDS = 0.2  # for each step, so that more workers are faster where there are few CPUs
STARTS = re.compile(r"^starts at step (\d+): rank 0 of (\d+)$", re.MULTILINE)
LOSSES = re.compile(r"^(starts|(?:saved )?at step \d+: loss ([\d.]+)$)", re.MULTILINE)

pytestmark = pytest.mark.timeout(600)  # on a busy machine; alone each takes under a minute


@dataclass(frozen=True)
class Drill:
    """What a run printed: step and number of processes of each start, and the reported steps."""

    starts: list[tuple[int, int]]
    reported: list[int]
    log: str

    def kept_its_work(self) -> bool:
        """Whether every start lost at most the steps since a checkpoint."""
        steps = [step for step, _ in self.starts[1:]]
        return all(step >= told - EVERY for step, told in zip(steps, self.reported, strict=False))

    def curves(self) -> list[list[float]]:
        """The losses of each start that printed some."""
        curves: list[list[float]] = []
        for word, loss in LOSSES.findall(self.log):
            if word == "starts":
                curves.append([])
            else:
                curves[-1].append(float(loss))
        return [curve for curve in curves if curve]


def commands(example: str, save: Path) -> list[list[str]]:
    """The commands in an example's docstring, with the test's path and without a last step."""
    words = ast.get_docstring(ast.parse((ROOT / "examples" / example).read_text())) or ""
    found = [part for part in words.split("\n\n") if part.startswith("    aliquot submit ")]
    options = f"--save {save} --steps 1000000 --every {EVERY} --seconds {SECONDS}"
    texts = [re.sub(r"(--steps \d+ )?--save /tmp/[a-z.]+", options, part) for part in found]
    assert all(options in text for text in texts), found
    return [shlex.split(text)[2:] for text in texts]


def drill(pool: PoolUp, command: Sequence[str], most: int, gang: int, fewer: int) -> Drill:
    """Let it fill the machine, shrink for a gang, and grow back."""
    pool.submit("--name", "big", *command)
    pool.wait_for("big", "Running", size=most)
    reported = [wait_for_steps(pool, 1, 4 * EVERY)]
    pool.submit("--name", "gang", "--workers", str(gang), "--", "sleep", "3600")
    pool.wait_for("gang", "Running")
    pool.wait_for("big", "Running", size=fewer)
    reported.append(wait_for_steps(pool, 2, EVERY))
    pool.ask("cancel", "gang")
    pool.wait_for("big", "Running", size=most)
    wait_for_steps(pool, 3, EVERY)
    log = pool.log("big")
    starts = [(int(step), int(size)) for step, size in STARTS.findall(log)]
    states = [state for state, _ in pool.history("big")]
    assert states[:6] == ["Pending", "Starting", "Running", "Shrinking", "Starting", "Running"]
    assert set(states[6::3]) == {"Growing"}
    assert pool.job("big")["state"]["retries"] == 0
    assert set(pool.job("big")["speeds"]) >= {str(most), str(fewer)}
    pool.ask("cancel", "big")
    pool.wait_for("big", "Cancelled")
    pool.leaves_nothing()
    return Drill(starts, reported, log)


def wait_for_steps(pool: PoolUp, start: int, steps: int) -> int:
    """The step it reports after so many steps since that start."""
    deadline = time.monotonic() + 180
    while True:
        job, found = pool.job("big"), STARTS.findall(pool.log("big"))
        step = int(job["progress"].get("step") or 0)
        assert job["state"]["phase"] != "Failed", f"{job}\n{pool.log('big')}"
        if len(found) >= start and step >= int(found[-1][0]) + steps:
            return step
        assert time.monotonic() < deadline, f"{job}\n{pool.log('big')}"
        time.sleep(0.05)


def check_training(seen: Drill) -> None:
    assert seen.kept_its_work(), seen
    first, *later = seen.curves()
    assert len(later) >= 2, seen.log
    for before, after in pairwise([first, *later]):
        assert after[0] < 0.5 * first[0] or after[0] < 1.5 * before[-1], "the curve began again"
        assert after[0] < 0.9 * first[0], "the curve began again"


def test_plain_program(pool: PoolUp, tmp_path: Path) -> None:
    [command] = commands("plain.py", tmp_path / "plain.json")
    seen = drill(pool, command, most=4, gang=2, fewer=2)
    assert seen.kept_its_work(), seen
    assert [size for _, size in seen.starts][:2] == [4, 2]
    assert seen.starts[-1][1] == 4


def test_a_program_that_saves_nothing_is_frozen_and_continues(pool: PoolUp) -> None:
    def numbers() -> list[int]:
        return [int(line) for line in pool.log("counts").splitlines()]

    pool.submit("--name", "counts", "--", PYTHON, str(ROOT / "examples" / "counts_on_gpu.py"))
    wait_until(lambda: len(numbers()) > 1, 60)
    pool.ask("suspend", "counts")
    pool.wait_for("counts", "Suspended")
    before = len(numbers())
    pool.ask("resume", "counts")
    wait_until(lambda: len(numbers()) > before + 1, 60)
    assert numbers() == [*range(1, len(numbers()) + 1)]
    pool.ask("cancel", "counts")
    pool.wait_for("counts", "Cancelled")
    pool.leaves_nothing()


@pytest.mark.usefixtures("torch")
def test_ddp(pool: PoolUp, tmp_path: Path) -> None:
    command, _ = commands("ddp.py", tmp_path / "ddp.pt")
    check_training(drill(pool, command, most=4, gang=2, fewer=2))


@pytest.mark.usefixtures("torch")
def test_ddp_under_torchrun(pool: PoolUp, tmp_path: Path) -> None:
    _, command = commands("ddp.py", tmp_path / "ddp.pt")
    seen = drill(pool, command, most=2, gang=2, fewer=1)
    assert [size for _, size in seen.starts] == [4, 2, 4]
    check_training(seen)


@pytest.mark.usefixtures("transformers")
def test_hugging_face_trainer(pool: PoolUp, tmp_path: Path) -> None:
    [command] = commands("trainer.py", tmp_path / "trainer")
    seen = drill(pool, command, most=2, gang=3, fewer=1)
    assert [size for _, size in seen.starts] == [2, 1, 2]
    check_training(seen)
