"""Trainings that want more memory than the GPU has, together, in turns (`--overcommit`).

    python bench/gpu/overcommit.py [--count 2] [--slice 80] [--layers 76] [--seconds 80]
        [--rounds 10] [--swap-wait 15] [--service 8]

Needs an NVIDIA GPU and PyTorch, and memory of the host (`--host-memory`) for what is off the GPU.
Each training (work_losses.py, 1 GiB for each layer) runs alone for a while first, in a slice of its
own: that is its speed and what its losses should be. Then all run at the same time in slices of
`--slice` GiB, with an arbiter that grants more than the GPU has. It measures for `--seconds` once
each has been off the GPU and the host's memory is ready, or with `--rounds` until the first one
has had so many turns more: whole rounds, so the shares say what they should. With `--service` a
service in a slice of priority latency, with that many GiB (work_service.py), answers every 10 ms
from the first second to the last: how long its steps take while memory moves, against those beside
one training that is alone (bar: 1.3 times the 99th percentile).

Printed are what they did together against the same time with exclusive turns that cost nothing
(bar: 93 %), the longest time that one made no step (bar: 15 s), the share of each (bar: 1 point in
whole rounds, otherwise 5), and whether the losses are the same to the last bit. Exit code 0: all
bars are met. `--simulate h200:1 --slice 138` tries the logic with work_fills.py; its speed means
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.devices import parse_shape
from aliquot.slices import control
from aliquot.slices.arbiter_process import ArbiterSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.model import MemoryTurns

HERE = Path(__file__).parent
GIB = 1 << 30
STEPS = 10**6
SIMULATED_MIB = 2600  # more than two slices of 138 GiB leave on a simulated H200
RATIO_LEAST, OFF_MOST, SHARE_WITHIN, ROUNDS_WITHIN = 0.93, 15.0, 0.05, 0.01
SERVICE_MOST = 1.3  # times its 99th percentile
WAIT_SECONDS = 90.0
SIMULATED_PATIENCE = 5
WARM_SECONDS = 45.0  # for the host's memory, at most


@dataclass
class Training:
    """A training in a slice of its own, and when it said what."""

    name: str
    process: subprocess.Popen[str]
    times: list[float] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.losses.append(line.strip())
            self.times.append(time.monotonic())

    def steps(self, begin: float, end: float) -> int:
        return sum(begin <= one < end for one in self.times)

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time between two steps, of which the first was before `end`."""
        inside = [one for one in self.times if begin <= one < end]
        return max(
            (b - a for a, b in zip([begin, *inside], [*inside, end], strict=True)), default=0.0
        )

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)


class Bench:
    """An arbiter of its own, and what runs there."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        os.environ["ALIQUOT_STATE"] = str(folder)
        shape = parse_shape(options.simulate) if options.simulate else None
        where = slices.locate(shape)
        slices.prepare(where)
        self.state = where.directory
        host = options.host_memory * GIB
        ArbiterSettings(host_bytes=host, overcommit=options.overcommit).store(self.state)
        self.log = (folder / "programs.log").open("wb")

    def start(self, name: str, seed: int, ending: ExitStack) -> Training:
        options = self.options
        if options.simulate:
            size = options.layers if options.layers != LAYERS else SIMULATED_MIB
            work = [str(HERE / "work_fills.py"), str(STEPS), str(seed), str(size)]
            where = ["--simulate", options.simulate]
        else:
            work = [str(HERE / "work_losses.py"), str(STEPS), str(seed), str(options.layers)]
            where = []
        wait = ["--swap-wait", f"{options.swap_wait:g}s"] if options.swap_wait else []
        slice_ = ["--memory", f"{options.slice}GiB", "--swap", *wait]
        return self._run(name, [*where, *slice_], work, ending)

    def start_service(self, ending: ExitStack) -> Training:
        gib, simulate = self.options.service, self.options.simulate
        work = [str(HERE / "work_service.py"), str(gib), *(["--fills"] if simulate else [])]
        where = ["--simulate", simulate] if simulate else []
        memory = "1GiB" if simulate else f"{gib + SERVICE_BESIDE_GIB}GiB"
        slice_ = ["--memory", memory, "--priority", "latency"]
        service = self._run("service", [*where, *slice_], work, ending)
        self.must(lambda: len(service.times) > 1, "the service did not begin")
        return service

    def _run(self, name: str, words: list[str], work: list[str], ending: ExitStack) -> Training:
        command = [*ALIQUOT, "run", *words, "--name", name, "--", sys.executable, *work]
        training = Training(
            name,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True),
        )
        ending.callback(training.end)
        return training

    def turns(self, name: str) -> MemoryTurns | None:
        found = [one for one in control.status(self.state).grants if one.name == name]
        return found[0].turns if found else None

    def moving(self) -> float:
        return control.status(self.state).gpus[0].moving

    def host_is_ready(self) -> bool:
        mover = control.status(self.state).answer["gpus"][0]["mover"]
        most = min(mover["wanted_bytes"], self.options.host_memory * GIB)
        return bool(mover["ready_bytes"] >= most * 0.95)

    def until(self, so: Callable[[], bool], seconds: float = WAIT_SECONDS) -> bool:
        patience = SIMULATED_PATIENCE if self.options.simulate else 1
        deadline = time.monotonic() + seconds * patience
        while not so():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def must(self, so: Callable[[], bool], what: str) -> None:
        if not self.until(so):
            self.log.flush()
            sys.exit(f"{what}\n{Path(self.log.name).read_text()[-3000:]}")


@dataclass
class Alone:
    """What a training does alone on the GPU: its steps a second, its losses, and when that was."""

    rate: float
    losses: list[str]
    begin: float
    end: float


def alone(bench: Bench, name: str, seed: int) -> Alone:
    with ExitStack() as ending:
        training = bench.start(name, seed, ending)
        bench.must(lambda: len(training.times) > 3, f"{name} did not begin")
        begin = training.times[3]
        time.sleep(bench.options.alone)
        end = time.monotonic()
        rate = training.steps(begin, end) / (end - begin)
    return Alone(rate, training.losses, begin, end)


def together(bench: Bench, alone_: dict[str, Alone]) -> dict[str, Any]:
    options = bench.options
    with ExitStack() as ending:
        all_ = [bench.start(name, seed, ending) for seed, name in enumerate(alone_, start=1)]
        bench.must(lambda: all(len(one.times) > 3 for one in all_), "one did not begin")
        warm_since = time.monotonic()
        is_warm = bench.until(bench.host_is_ready, WARM_SECONDS)
        warm = time.monotonic() - warm_since
        if not options.rounds:
            had = {one.name: (bench.turns(one.name) or NO_TURNS).times for one in all_}
            bench.must(
                lambda: all(
                    (bench.turns(one.name) or NO_TURNS).times > had[one.name] for one in all_
                ),
                "one was never off the GPU",
            )
        begin, end = measured_time(bench, all_[0].name)
        turns = {one.name: bench.turns(one.name) for one in all_}
        moving = bench.moving()
    done = {one.name: one.steps(begin, end) / alone_[one.name].rate for one in all_}
    return {
        "ratio": sum(done.values()) / (end - begin),
        "shares": {name: part / sum(done.values()) for name, part in done.items()},
        "longest_off": {one.name: one.longest_gap(begin, end) for one in all_},
        "same": {
            one.name: _same(one.losses, alone_[one.name].losses)
            for one in all_
            if alone_[one.name].losses
        },
        "compared": {one.name: min(len(one.losses), len(alone_[one.name].losses)) for one in all_},
        "times_off": {name: one.times if one else 0 for name, one in turns.items()},
        "moving": moving,
        "warm_seconds": warm,
        "is_warm": is_warm,
        "measured_seconds": end - begin,
        "rounds": options.rounds,
        "begin": begin,
        "end": end,
    }


def measured_time(bench: Bench, first: str) -> tuple[float, float]:
    """When it begins and ends: with --rounds, both when the first training's turn begins."""
    options = bench.options

    def times() -> int:
        return (bench.turns(first) or NO_TURNS).times

    if not options.rounds:
        begin = time.monotonic()
        time.sleep(options.seconds)
        return begin, time.monotonic()
    had = times()
    bench.must(lambda: times() > had, "no turn began")
    begin, had = time.monotonic(), times()
    bench.until(lambda: times() >= had + options.rounds, options.seconds)
    if times() < had + options.rounds:
        print(f"only {times() - had} rounds in {options.seconds:g} s", file=sys.stderr)
    return begin, time.monotonic()


def steps_of_service(service: Training, begin: float, end: float) -> list[float]:
    """Milliseconds of its steps that began in that time."""
    found = [line.split() for line in service.losses[1:-1]]
    return sorted(float(ms) for at, ms in found if begin <= float(at) < end)


def percentile(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))] if values else float("nan")


def _same(found: list[str], should: list[str]) -> bool:
    """Whether they agree as far as both go; the last line may be cut off."""
    count = min(len(found), len(should)) - 1
    return count > 0 and found[:count] == should[:count]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="oc-")))
        bench = Bench(options, folder)
        names = [f"training-{number}" for number in range(1, options.count + 1)]
        service = bench.start_service(ending) if options.service else None
        alone_: dict[str, Alone] = {}
        for seed, name in enumerate(names, start=1):
            if not alone_ or not options.alone_one:
                alone_[name] = alone(bench, name, seed)
            else:  # the same program: as fast, and with other losses
                alone_[name] = replace(alone_[names[0]], losses=[])
        for name, found in alone_.items():
            print(f"{name} alone: {found.rate:.2f} steps/s", file=sys.stderr, flush=True)
        result = together(bench, alone_)
        result["alone"] = {name: found.rate for name, found in alone_.items()}
        if service:
            during = steps_of_service(service, result["begin"], result["end"])
            first = alone_[names[0]]
            before = steps_of_service(service, first.begin, first.end)
            result["service"] = {
                what: {"steps": len(some), **{f"p{p}": percentile(some, p / 100) for p in (50, 99)}}
                for what, some in (("resident", before), ("moving", during))
            }
        if options.keep_log:
            log = (bench.state / "arbiter.log").read_text()
            Path(options.keep_log).write_text(log)
    return result


def judge(result: dict[str, Any]) -> list[tuple[str, bool]]:
    """Each figure as a sentence, and whether it meets its bar."""
    shares, count = result["shares"], len(result["shares"])
    longest = max(result["longest_off"].values())
    within = ROUNDS_WITHIN if result["rounds"] else SHARE_WITHIN
    service = []
    if found := result.get("service"):
        times = found["moving"]["p99"] / found["resident"]["p99"]
        text = (
            f"the service's p99 {found['moving']['p99']:.2f} ms,"
            f" {found['resident']['p99']:.2f} ms where nothing moves: {times:.2f} times"
            f" (bar {SERVICE_MOST:g})"
        )
        service.append((text, times <= SERVICE_MOST))
    return [
        *service,
        (
            f"together {result['ratio']:.1%} of exclusive turns (bar {RATIO_LEAST:.0%})",
            result["ratio"] >= RATIO_LEAST,
        ),
        (f"longest time without a step {longest:.1f} s (bar {OFF_MOST:g} s)", longest <= OFF_MOST),
        (
            "shares " + ", ".join(f"{name} {part:.1%}" for name, part in shares.items()),
            all(abs(part - 1 / count) <= within for part in shares.values()),
        ),
        (
            "losses "
            + ", ".join(
                f"of {name} {'the same' if same else 'NOT THE SAME'}"
                f" ({result['compared'][name]} compared)"
                for name, same in result["same"].items()
            ),
            all(result["same"].values()),
        ),
    ]


def show(result: dict[str, Any]) -> bool:
    ok = True
    for text, meets in judge(result):
        print(f"{'ok  ' if meets else 'MISS'} {text}")
        ok &= meets
    off = ", ".join(f"{name} {times}" for name, times in result["times_off"].items())
    print(f"     times off the GPU: {off}; memory moved {result['moving']:.1%} of the last minute")
    ready = "ready" if result["is_warm"] else "NOT ready"
    print(f"     the host's memory was {ready} after {result['warm_seconds']:.0f} s")
    return ok


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--count", type=int, default=2)
    options.add_argument("--slice", type=int, default=80, help="GiB")
    options.add_argument("--layers", type=int, default=LAYERS, help="GiB of each training")
    options.add_argument("--seconds", type=float, default=80.0, help="with --rounds: at most")
    options.add_argument("--rounds", type=int, default=0, help="turns of the first training")
    options.add_argument("--swap-wait", type=float, default=0.0, help="seconds")
    options.add_argument("--service", type=int, default=0, help="GiB of a service beside them")
    options.add_argument("--alone", type=float, default=20.0, help="seconds")
    options.add_argument("--alone-one", action="store_true", help="run only the first one alone")
    options.add_argument("--host-memory", type=int, default=48, help="GiB")
    options.add_argument("--overcommit", type=float, default=1.5)
    options.add_argument("--simulate", metavar="MODEL:COUNT")
    options.add_argument("--keep-log", metavar="FILE", help="the arbiter's log")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    result = measure(chosen)
    if chosen.json:
        print(json.dumps(result, indent=1))
    return 0 if show(result) else 1


@dataclass
class _NoTurns:
    times: int = 0


NO_TURNS = _NoTurns()
LAYERS = 76
SERVICE_BESIDE_GIB = 2  # its context and its step
ALIQUOT = (sys.executable, "-m", "aliquot")

if __name__ == "__main__":
    sys.exit(main())
