"""Two trainings in turns on a GPU that has room for one: suspended and resumed by the pool.

    python bench/gpu/suspend.py [--turns 6] [--steps 1500] [--layers 16] [--jobs 2] [--swap]

Needs an NVIDIA GPU with a driver from R570 on, and PyTorch. A pool of its own, in which a job that
does nothing has all of the GPU but room for one and a half trainings. Each training
(work_losses.py, 16 GiB) runs to its end alone first: those are the losses it should have. Then both
are submitted, and take turns of a few seconds: one is suspended, the other resumed. With `--swap`
their memory leaves the GPU and its contexts stay, otherwise the driver's checkpoint takes all; the
first one is suspended when the host's memory is ready for it, and how long that took is said. With
`--jobs 1` one training is suspended and resumed.
Said are the seconds from the request to suspend to Suspended, and from the request to resume to the
first new step, what the GPU had in use, and whether the losses are the same to the last bit. Exit
code 0: they are. The requests are the pool's, as `aliquot suspend` sends them; to start the command
takes 0.2 s more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from aliquot.model import format_bytes
from aliquot.pool.client import connect
from aliquot.slices import control

HERE = Path(__file__).parent
GIB = 1 << 30
BESIDE_LAYERS_GIB = 3  # what a training takes beside 1 GiB for each layer
SPARE_GIB = 5
TURN_SECONDS = 4.0
TRAININGS = (("one", 1), ("two", 2))  # their names and seeds
WAIT_SECONDS = 120.0


class Pool:
    """`aliquot up` in a folder of its own."""

    def __init__(self, folder: Path, ending: ExitStack, *, swap: bool) -> None:
        self.state, self.swaps = folder, swap
        os.environ["ALIQUOT_STATE"] = str(folder)
        self._log = (folder / "up.log").open("wb")
        up = subprocess.Popen([*ALIQUOT, "up"], stdout=self._log, stderr=self._log)
        ending.callback(up.wait)
        ending.callback(up.terminate)
        ending.callback(self._cancel_all)
        self.until(lambda: self.ask("jobs", check=False).returncode == 0)
        self.client = connect(None)

    def ask(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*ALIQUOT, *words], check=check, capture_output=True, text=True)

    def train(self, name: str, steps: int, seed: int, layers: int) -> None:
        program = [sys.executable, str(HERE / "work_losses.py"), str(steps), str(seed), str(layers)]
        room, swap = f"{layers + BESIDE_LAYERS_GIB}GiB", ["--swap"] if self.swaps else []
        self.ask("submit", "--name", name, "--memory", room, *swap, "--", *program)

    def occupy(self, name: str, memory: int) -> None:
        self.ask("submit", "--name", name, "--memory", str(memory), "--", "sleep", "3600")

    def until_it_works(self, name: str) -> None:
        self.until(lambda: len(self.lines(name)) > 5)

    def job(self, name: str) -> dict[str, Any]:
        """The state of a job."""
        state: dict[str, Any] = self.client.job(name)["state"]
        return state

    def lines(self, name: str) -> list[str]:
        return self.ask("logs", name, check=False).stdout.splitlines()

    def said_since(self, name: str, start: int) -> bytes:
        """What its program wrote from that byte on."""
        return self.client.log(name, 0, start).content

    def used(self) -> int:
        return control.status(self.state).gpus[0].gpu.used_bytes

    def host_is_ready(self) -> bool:
        """Whether the host has memory for what the trainings have on the GPU."""
        mover = control.status(self.state).answer["gpus"][0]["mover"]
        return bool(mover["ready_bytes"] >= mover["wanted_bytes"])

    def until(self, so: Any) -> float:
        """How long it took to be so."""
        begin = time.monotonic()
        while not so():
            assert time.monotonic() - begin < WAIT_SECONDS, (self.state / "up.log").read_text()
            time.sleep(0.005)
        return time.monotonic() - begin

    def _cancel_all(self) -> None:
        self.ask("cancel", "--all", check=False)
        self.until(lambda: not json.loads(self.ask("jobs", "--json").stdout)["jobs"])


def is_over(pool: Pool, name: str) -> bool:
    state = pool.job(name)["phase"]
    assert state not in {"Failed", "Cancelled"}, "\n".join(pool.lines(name)[-20:])
    return bool(state == "Succeeded")


def alone(pool: Pool, name: str, steps: int, seed: int, layers: int) -> list[str]:
    pool.train(name, steps, seed, layers)
    pool.until(lambda: is_over(pool, name))
    return pool.lines(name)


def suspend(pool: Pool, name: str) -> dict[str, Any] | None:
    """None: it has ended meanwhile."""
    before, begin = pool.used(), time.monotonic()
    if is_over(pool, name):
        return None
    pool.client.request(name, "suspend")
    pool.until(lambda: pool.job(name)["phase"] in {"Suspended", "Succeeded"})
    if is_over(pool, name):
        return None
    assert "is on the host" in pool.job(name)["reason"], pool.job(name)
    took = time.monotonic() - begin
    return {"job": name, "out_seconds": took, "used_before": before, "used_after": pool.used()}


def resume(pool: Pool, name: str) -> dict[str, Any]:
    written, begin = len(pool.said_since(name, 0)), time.monotonic()
    pool.client.request(name, "resume")
    pool.until(lambda: pool.said_since(name, written))
    return {"job": name, "back_seconds": time.monotonic() - begin, "used": pool.used()}


def take_turns(pool: Pool, names: list[str], turns: int) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []

    def say(one: dict[str, Any]) -> None:
        said.append(one)
        print(one, file=sys.stderr, flush=True)

    running, other = names[0], names[-1]
    pool.until_it_works(running)
    if pool.swaps:
        say({"ready_seconds": pool.until(pool.host_is_ready)})
    for turn in range(turns):
        time.sleep(TURN_SECONDS)
        out = suspend(pool, running)
        if out is None:
            break
        say(out)
        if turn or other == running:
            say(resume(pool, other))
        else:  # it has waited for room
            pool.until_it_works(other)
        running, other = other, running
    return said


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        pool = Pool(folder, ending, swap=options.swap)
        total = control.status(folder).gpus[0].gpu.memory_bytes
        room = (options.layers + BESIDE_LAYERS_GIB + SPARE_GIB) * GIB
        pool.occupy("rest", total - room)
        trainings = dict(TRAININGS[: options.jobs])
        size = options.steps, options.layers
        should = {
            name: alone(pool, f"{name}-alone", size[0], seed, size[1])
            for name, seed in trainings.items()
        }
        for name, seed in trainings.items():
            pool.train(name, size[0], seed, size[1])
        said = take_turns(pool, list(trainings), options.turns)
        for name in trainings:
            if not is_over(pool, name):
                pool.ask("resume", name, check=False)
        for name in trainings:
            pool.until(lambda name=name: is_over(pool, name))
        same = {name: pool.lines(name) == should[name] for name in trainings}
        most = {name: int(should[name][-1].split()[1]) for name in trainings}
        return {"turns": said, "same": same, "allocated": most, "steps": options.steps}


def show(result: dict[str, Any]) -> None:
    outs = [one["out_seconds"] for one in result["turns"] if "out_seconds" in one]
    backs = [one["back_seconds"] for one in result["turns"] if "back_seconds" in one]
    for what, seconds in (("suspended", outs), ("resumed", backs)):
        if seconds:
            spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
            print(f"{what} {len(seconds)} times: {median(seconds):.2f} s ({spread})")
    for one in result["turns"]:
        if "ready_seconds" in one:
            print(f"the host's memory was ready {one['ready_seconds']:.1f} s after the first steps")
    for name, allocated in result["allocated"].items():
        same = "the same" if result["same"][name] else "NOT THE SAME"
        words = f"{format_bytes(allocated)} at most, {result['steps']} steps"
        print(f"{name}: {words}, losses {same} as undisturbed")


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--turns", type=int, default=6)
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--layers", type=int, default=16)
    options.add_argument("--jobs", type=int, choices=(1, 2), default=2)
    options.add_argument("--swap", action="store_true", help="memory that leaves the GPU")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    result = measure(chosen)
    print(json.dumps(result, indent=1)) if chosen.json else show(result)
    return 0 if all(result["same"].values()) else 1


ALIQUOT = (sys.executable, "-m", "aliquot")

if __name__ == "__main__":
    sys.exit(main())
