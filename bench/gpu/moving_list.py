"""Memory that moves, all figures one after the other in one call of at most nine minutes.

    python bench/gpu/moving_list.py --out DIR [--list 1] [--only suspend,turns] [--seconds 560]

Needs an NVIDIA GPU and PyTorch. A list is what fits nine minutes; what has no time left is named
and left out, so the most wanted comes first.

list 1  suspend   programs of 16 and 64 GiB are suspended and resumed five times; bars 0.5 and 1.6 s
                  each way, one that holds its memory with the driver alone (work_hold.py)
        turns     two trainings of 76 GiB in slices of 80, ten whole rounds, beside a service of 8
                  GiB (overcommit.py); bars 93 %, 15 s off, 1 point of the shares, 1.3 times the p99
        exchange  a parked notebook of 40 GiB computes when another has left (parking.py); bar 1.5 s
list 2  three     three trainings of 56 GiB in slices of 60, ten whole rounds (overcommit.py)
        room      a parked notebook of 40 GiB computes where there is room (parking.py); bar 1.1 s
        shared    1,000 tensors between processes, with --swap and without (exchange.py)
        cost      what it costs while nothing moves (moving.py --quick); bar 0.5 %

Writes DIR/moving_list.json and each stage's output to DIR/STAGE.log after every stage. Exit code 0:
all were run and met their bars. `--simulate h200:1` tries the logic of suspend and turns.
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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from aliquot import slices
from aliquot.devices import parse_shape
from aliquot.slices import control, moving
from aliquot.slices.arbiter_process import ArbiterSettings

HERE = Path(__file__).parent
ALIQUOT = (sys.executable, "-m", "aliquot")
GIB = 1 << 30
MOST_SECONDS = {16: 0.5, 64: 1.6}
BESIDE_GIB = 1  # a program's context
MOVES = 5
READY_SECONDS = 60.0
BEFORE_ROUNDS = 140.0  # until both trainings have had a turn


@dataclass
class Stage:
    """What is run, and how long it takes on an H200."""

    name: str
    seconds: float
    command: tuple[str, ...] = ()  # empty: `suspend`, which is here

    def argv(self, simulate: str | None) -> list[str]:
        program, *words = self.command
        where = ["--simulate", simulate] if simulate else []
        return [sys.executable, str(HERE / program), *words, *where]


def turns(count: int, size: int, layers: int, *more: str) -> tuple[str, ...]:
    size_words = ["--count", str(count), "--slice", str(size), "--layers", str(layers)]
    time_words = ["--alone", "10", "--alone-one", "--rounds", "10"]
    return ("overcommit.py", *size_words, *time_words, "--overcommit", "1.5", *more)


LISTS = {
    1: [
        Stage("suspend", 90),
        Stage("turns", 400, turns(2, 80, 74, "--service", "8", "--host-memory", "70")),
        Stage("exchange", 85, ("parking.py", "--two", "--cells", "4")),
    ],
    2: [
        Stage("three", 330, turns(3, 60, 54, "--host-memory", "92")),
        Stage("room", 50, ("parking.py", "--cells", "3")),
        Stage("shared", 80, ("exchange.py", "--tensors", "500")),
        Stage("cost", 100, ("moving.py", "--quick", "--only", "speed")),
    ],
}
SIMULATED = {
    "suspend": (),
    "turns": (
        "overcommit.py",
        *("--slice", "137", "--alone", "1", "--rounds", "2", "--seconds", "60"),
        *("--swap-wait", "4", "--service", "1", "--overcommit", "2", "--host-memory", "300"),
    ),
}


class Holder:
    """A program that holds memory, in a swappable slice of its own."""

    def __init__(self, name: str, gib: int, options: argparse.Namespace, ending: ExitStack) -> None:
        self.name = name
        simulate = options.simulate
        where = ["--simulate", simulate] if simulate else []
        size = ["1", "64"] if simulate else [str(gib)]
        memory = ["--memory", f"{gib + BESIDE_GIB}GiB", "--swap", "--name", name]
        program = [sys.executable, str(HERE / "work_hold.py"), *size]
        self._process = subprocess.Popen(
            [*ALIQUOT, "run", *where, *memory, "--", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ending.callback(self._process.wait)
        ending.callback(self._process.kill)
        self._answer()

    def does(self, text: str) -> float:
        begin = time.monotonic()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        self._answer()
        return time.monotonic() - begin

    def _answer(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != "right\n":
            sys.exit(f"{self.name}: {line or 'has ended'}")


def until_host_is_ready(state: Path, held: int) -> float:
    """Seconds until the host has memory for that many bytes of the GPU."""
    begin = time.monotonic()
    while time.monotonic() - begin < READY_SECONDS:
        mover = control.status(state).answer["gpus"][0]["mover"]
        if mover["ready_bytes"] >= max(held, mover["wanted_bytes"]) * 0.98:
            break
        time.sleep(0.05)
    return time.monotonic() - begin


def suspend(options: argparse.Namespace) -> dict[str, Any]:
    """Both programs at once on the GPU, so that the host's memory is made ready in one go."""
    found: dict[str, Any] = {}
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="ml-")))
        os.environ["ALIQUOT_STATE"] = str(folder)
        where = slices.locate(parse_shape(options.simulate) if options.simulate else None)
        slices.prepare(where)
        ArbiterSettings(host_bytes=(4 if options.simulate else 84) * GIB).store(where.directory)
        state = where.directory
        holders = {gib: Holder(f"holds-{gib}", gib, options, ending) for gib in MOST_SECONDS}
        held = (len(holders) if options.simulate else sum(MOST_SECONDS)) * GIB
        found["ready_seconds"] = until_host_is_ready(state, held)
        for gib, holder in holders.items():
            out, back = [], []
            for _ in range(MOVES):
                begin = time.monotonic()
                moving.freeze(state, holder.name)
                out.append(time.monotonic() - begin)
                begin = time.monotonic()
                moving.thaw(state, holder.name)
                holder.does("look")
                back.append(time.monotonic() - begin)
            holder.does("all")
            found[str(gib)] = {"out": out, "back": back}
            for what, seconds in (("out", out), ("back", back)):
                spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
                print(f"{gib} GiB {what}: {median(seconds):.3f} s ({spread}, {MOVES} times)")
        print(f"the host's memory was ready after {found['ready_seconds']:.1f} s; all bytes right")
    return found


def is_met(found: dict[str, Any]) -> bool:
    return all(
        median(found[str(gib)][way]) <= most
        for gib, most in MOST_SECONDS.items()
        for way in ("out", "back")
    )


def run_stage(stage: Stage, options: argparse.Namespace, left: float) -> dict[str, Any]:
    log = options.out / f"{stage.name}.log"
    if not stage.command:
        found = suspend(options)
        return {**found, "met": is_met(found)}
    argv = stage.argv(options.simulate)
    if stage.name == "shared":
        return shared(argv, log, left)
    if "overcommit.py" in stage.command and not options.simulate:
        argv += ["--seconds", f"{min(300.0, left - BEFORE_ROUNDS):.0f}"]
    if stage.name == "cost":
        argv += ["--out", str(options.out)]
    return {"exit": run(argv, log, left), "met": None}


def run(argv: list[str], log: Path, left: float) -> int | None:
    """Its exit code, after its output was shown and kept; None: it had no time."""
    with log.open("ab") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
        try:
            code: int | None = process.wait(left)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(30)
            code = None
    print(log.read_text()[-4000:], flush=True)
    return code


def shared(argv: list[str], log: Path, left: float) -> dict[str, Any]:
    """In a slice with --swap and in one without, so many tensors each way."""
    codes = {}
    for name, words in (("swap", ["--swap"]), ("plain", [])):
        print(f"tensors between processes, {name}:", flush=True)
        command = [*ALIQUOT, "run", "--memory", "8GiB", *words, "--", *argv]
        codes[name] = run(command, log, left / 2)
    return {"exits": codes, "met": None}


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--list", type=int, choices=tuple(LISTS), default=1)
    options.add_argument("--only", default="", help="stages, with commas between")
    options.add_argument("--seconds", type=float, default=560.0, help="for all of it")
    options.add_argument("--simulate", metavar="MODEL:COUNT")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + chosen.seconds
    stages = LISTS[chosen.list]
    if chosen.simulate:
        stages = [Stage(name, 1, command) for name, command in SIMULATED.items()]
    wanted = {one for one in chosen.only.split(",") if one}
    stages = [one for one in stages if not wanted or one.name in wanted]
    results: dict[str, Any] = {}
    for stage in stages:
        left = end - time.monotonic()
        begin = time.monotonic()
        print(f"--- {stage.name}: {left:.0f} s left", flush=True)
        if left < stage.seconds * 0.7:
            results[stage.name] = {"left_out": True, "met": False}
        else:
            try:
                results[stage.name] = run_stage(stage, chosen, left)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - one stage costs no other
                results[stage.name] = {"failed": repr(error), "met": False}
        result = results[stage.name]
        if result.get("met") is None:
            codes = result["exits"].values() if "exits" in result else [result["exit"]]
            result["met"] = all(code == 0 for code in codes)
        result["seconds"] = time.monotonic() - begin
        (chosen.out / "moving_list.json").write_text(json.dumps(results, indent=1))
    for name, result in results.items():
        why = result.get("failed") or ("no time" if result.get("left_out") else "")
        print(f"{'ok  ' if result['met'] else 'MISS'} {name} {result['seconds']:.0f} s {why}")
    return 0 if all(one["met"] for one in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
