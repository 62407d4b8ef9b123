"""Slices with `--isolation mps`, beside soft slices and plain MPS, by turns. Needs a GPU.

    python bench/gpu/mps.py [--only NAMES] [--quick] [--simulate h200:1]

Programs of all ways are started first and then work by turns: alone, in soft slices, as clients of
a plain MPS server, and in slices with `--isolation mps`. Measured are the shares and the sum of two
trainings, an inference step beside a training at regular and at random times, the memory limit of a
client, what a killed client does to another, and what all clients see when one writes to an illegal
address. The group `short` has only what is measured of slices with `--isolation mps`. Prints each
figure against its bar; exit code 0 if all are met. Simulated GPUs have no plain MPS.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cases import Case, Context, run_benchmark
from latency import quantile
from programs import GRANT, MPS, MPS_GRANT, MPS_GRANT_LOW, PLAIN, Share, Spec, TenantError
from witness import LEAD_SECONDS, SOON_SECONDS, TAIL_SECONDS, Seen, together

from aliquot.model import Priority
from aliquot.slices import mps
from aliquot.slices.mps_control import Control, control_program

SPLITS = ((50, 50), (30, 70), (10, 90))
LEAST_TOGETHER = {(50, 50): 108.0, (30, 70): 104.0, (10, 90): 100.0}
WINDOW_SECONDS, QUICK_SECONDS = 10.0, 2.0
LATENCY_SECONDS = 8.0
EVERY_SECONDS = 0.010
POINTS = 1.0
MOST_OF_ALONE = {"regular": 1.6, "random": 2.0}
LEAST_TRAINING = 91.0
OVERHEAD_SECONDS = LEAD_SECONDS + TAIL_SECONDS + SOON_SECONDS
FAULT_SECONDS = 4.0
SOFT, BOTH, ALIQUOT, ALONE = "soft slices", "plain MPS", "Aliquot's MPS", "alone"

TRAIN = {
    where: (Spec("train", 1, where), Spec("train", 2, where)) for where in (GRANT, MPS, MPS_GRANT)
}
TRAIN_LOW = Spec("train", 1, MPS_GRANT_LOW)
TRAIN_ALONE = Spec("train", 1, PLAIN)
STEP = {where: Spec("latency", where=where) for where in (PLAIN, GRANT, MPS, MPS_GRANT)}
PRODUCTS = Spec("mm", 1, MPS_GRANT)
BAD, LATER = Spec("mm", 2, MPS_GRANT), Spec("mm", 3, MPS_GRANT)
# Grants first: what runs outside them counts as memory that is not free.
SIMULATED = any(word.startswith("--simulate") for word in sys.argv)
EVERYTHING = (
    *TRAIN[GRANT],
    *TRAIN[MPS_GRANT],
    TRAIN_LOW,
    STEP[GRANT],
    STEP[MPS_GRANT],
    TRAIN_ALONE,
    STEP[PLAIN],
    *(() if SIMULATED else (*TRAIN[MPS], STEP[MPS])),
)

SHORT = (*TRAIN[MPS_GRANT], TRAIN_LOW, STEP[MPS_GRANT], TRAIN_ALONE, STEP[PLAIN])

FILL = """
import json, torch
held = []
try:
    while True: held.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error: pass
free, total = torch.cuda.mem_get_info()
print(json.dumps({"total_mib": total >> 20, "held_mib": 32 * len(held), "free_mib": free >> 20}))
"""


@dataclass
class Rate:
    """A training's speed alone, measured as often as it is asked for."""

    known: list[float]

    def measure(self, context: Context) -> None:
        seen = together(context.stage, {TRAIN_ALONE: Share()}, 3.0, sampled=False)
        self.known.append(seen.rate(TRAIN_ALONE))

    @property
    def value(self) -> float:
        return statistics.mean(self.known)


RATE = Rate([])


def cases(*, quick: bool) -> list[Case]:
    window = QUICK_SECONDS if quick else WINDOW_SECONDS
    paced = QUICK_SECONDS if quick else LATENCY_SECONDS
    pair, step = window + OVERHEAD_SECONDS, paced + OVERHEAD_SECONDS
    every = EVERYTHING
    return [
        Case("facts", "mps", 5, every, facts),
        Case("trainings", "mps", 7 * pair + 20, every, lambda context: trainings(context, window)),
        *(
            Case(f"step: {kind}", "mps", 4 * step, every, lambda c, k=kind: steps(c, k, paced))
            for kind in MOST_OF_ALONE
        ),
        Case("short: trainings", "short", 50, SHORT, lambda c: trainings(c, window, only_mps=True)),
        *(
            Case(
                f"short: {kind}",
                "short",
                2 * step,
                SHORT,
                lambda c, k=kind: short_steps(c, k, paced),
            )
            for kind in MOST_OF_ALONE
        ),
        Case("memory", "mps", 15, every[:1], memory),
        Case("kill", "mps", 20, (*TRAIN[MPS_GRANT],), kill),
        Case("fault", "mps", 40, (*TRAIN[MPS_GRANT], STEP[MPS_GRANT]), fault),
    ]


# --- what is there


def facts(context: Context) -> None:
    """How NVML and the control daemon show clients. Two daemons serve one GPU here."""
    stage = context.stage
    context.found["nvml"] = nvml_lists() if stage.simulate is None else None
    folder = server(context)
    control = control_of(context, folder)
    words: dict[str, str] = {"get_server_list": control.ask("get_server_list")}
    for pid in control.servers():
        for command in ("get_server_status", "get_client_list"):
            words[f"{command} {pid}"] = control.ask(f"{command} {pid}")
    context.found["control"] = words
    context.found["record"] = folder.record()
    status = stage.status()
    context.found["used_mib"] = {
        grant.name: {
            "limit": grant.slices[0].memory_bytes >> 20,
            "counted": [one.use[0].counted_bytes >> 20 for one in grant.processes],
            "driver": [one.use[0].driver_bytes >> 20 for one in grant.processes],
            "isolation": str(grant.isolation),
            "gates": str(grant.compute[0].gates),
        }
        for grant in status.grants
    }
    context.found["outside"] = {
        "strangers": [f"{one.name} ({one.pid}) {one.bytes}" for one in status.gpus[0].strangers],
        "servers": [f"{one.name} ({one.pid}) {one.bytes}" for one in status.gpus[0].servers],
    }
    print(json.dumps(context.found, indent=1), flush=True)
    listed = set(folder.record()["clients"])
    ours = {
        one.pid
        for grant in status.grants
        for one in grant.processes
        if str(grant.isolation) == "mps"
    }
    if stage.simulate is None:
        context.holds("the server's clients are the grants' programs", value=ours == listed)
    context.holds("no client is a stranger", value=not ours & strangers(status))


def strangers(status: Any) -> set[int]:
    return {one.pid for one in status.gpus[0].strangers}


def nvml_lists() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found: dict[str, Any] = {}
    for name in ("Compute", "MPSCompute"):
        try:
            listed = getattr(pynvml, f"nvmlDeviceGet{name}RunningProcesses")(handle)
            found[name] = {one.pid: (one.usedGpuMemory or 0) >> 20 for one in listed}
        except Exception as error:  # noqa: BLE001 - what it says is the finding
            found[name] = repr(error)
    return found


def server(context: Context) -> mps.ServerFolder:
    return mps.server_folder(context.stage.state, context.stage.gpu())


def control_of(context: Context, folder: mps.ServerFolder) -> Control:
    return folder.control(control_program(context.stage.state.driver()))


# --- shares


def trainings(context: Context, seconds: float, *, only_mps: bool = False) -> None:
    """Two trainings by each way and split, by turns; speeds over that of one alone."""
    seen: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    RATE.measure(context)
    ways = ((MPS_GRANT, ALIQUOT),) if only_mps else ((GRANT, SOFT), (MPS_GRANT, ALIQUOT))
    if only_mps:  # each is measured alone before they overlap
        together(context.stage, {one: Share() for one in TRAIN[MPS_GRANT]}, 4.0)
    for split in SPLITS:
        words = "/".join(map(str, split))
        for where, name in ways:
            shares = dict(zip(TRAIN[where], map(Share, split), strict=True))
            run = together(context.stage, shares, seconds)
            seen[f"{name} {words}"] = [run.rate(one) for one in TRAIN[where]]
            used[f"{name} {words}"] = used_of(run, shares)
        if not only_mps:
            RATE.measure(context)
    if not SIMULATED and not only_mps:
        run = together(context.stage, {one: Share() for one in TRAIN[MPS]}, seconds)
        seen[BOTH] = [run.rate(one) for one in TRAIN[MPS]]
        RATE.measure(context)
    speeds = {name: [100 * one / RATE.value for one in rates] for name, rates in seen.items()}
    context.found |= {"alone_steps_per_second": RATE.known, "percent_of_alone": speeds}
    context.found["percent_used"] = used
    print(json.dumps(context.found, indent=1), flush=True)
    for name, (first, second) in speeds.items():
        context.tell(f"{name}: together", first + second, "%")
    for split in SPLITS:
        words = "/".join(map(str, split))
        first, second = speeds[f"{ALIQUOT} {words}"]
        share = 100 * first / (first + second)
        context.at_most(f"{ALIQUOT} {words}: off by", abs(share - split[0]), POINTS, "points")
        context.at_least(f"{ALIQUOT} {words}: together", first + second, LEAST_TOGETHER[split], "%")


def used_of(seen: Seen, shares: Mapping[Spec, Share]) -> list[float]:
    """Percent of the time that the arbiter says each had the GPU, and the turns per second."""
    return [
        *(round(100 * seen.used_ratio(one, seen.start, seen.end), 2) for one in shares),
        round(seen.handovers_per_second(), 1),
    ]


def short_steps(context: Context, kind: str, seconds: float) -> None:
    steps(context, kind, seconds, only_mps=True)


def steps(context: Context, kind: str, seconds: float, *, only_mps: bool = False) -> None:
    """A step at regular or random times beside a training, by each way in turn."""
    order: dict[str, Any] = {"every": EVERY_SECONDS}
    if kind == "random":
        order["random"] = 20261119
    latencies: dict[str, list[float]] = {}
    trained: dict[str, float] = {}
    for where, name in ((PLAIN, ALONE), (GRANT, SOFT), (MPS, BOTH), (MPS_GRANT, ALIQUOT)):
        if where in {GRANT, MPS} and (only_mps or (where == MPS and SIMULATED)):
            continue
        step = STEP[where]
        shares = {step: Share(50, priority=Priority.LATENCY)}
        training = TRAIN_LOW if where == MPS_GRANT else TRAIN.get(where, (TRAIN_ALONE,))[0]
        if where != PLAIN:
            shares[training] = Share(priority=Priority.BACKGROUND)
        run = together(context.stage, shares, seconds, orders={step: order})
        before = int(LEAD_SECONDS / EVERY_SECONDS)
        latencies[name] = run.answers[step]["latencies_ms"][before:]
        if where != PLAIN:
            trained[name] = 100 * run.rate(training) / RATE.value
    table = {
        name: {
            "count": len(found),
            **{f"p{part}_ms": quantile(found, part / 100) for part in (50, 90, 99)},
            "max_ms": max(found, default=None),
            "training": trained.get(name),
        }
        for name, found in latencies.items()
    }
    context.found["ways"] = table
    print(json.dumps({kind: table}, indent=1), flush=True)
    alone = table[ALONE]["p99_ms"]
    for name, training in trained.items():
        p99 = table[name]["p99_ms"]
        over = None if p99 is None or not alone else p99 / alone
        if name == ALIQUOT:
            context.at_most(f"{name}: p99 over alone", over, MOST_OF_ALONE[kind])
            context.at_least(f"{name}: training", training, LEAST_TRAINING, "%")
        else:
            context.tell(f"{name}: p99 over alone", over)
            context.tell(f"{name}: training", training, "%")


# --- limits and failures


def memory(context: Context) -> None:
    """The memory that a client can take of a slice of 4 GiB."""
    if context.stage.simulate is not None:
        context.found["skipped"] = "needs PyTorch"
        return
    run = [sys.executable, "-m", "aliquot", "run", "--isolation", "mps", "--memory", "4GiB"]
    done = subprocess.run(
        [*run, "--name", "fill", "--", sys.executable, "-c", FILL],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    context.found |= {"said": done.stdout, "error": done.stderr[-2000:]}
    print(done.stdout, done.stderr[-500:], flush=True)
    told = json.loads(done.stdout.splitlines()[-1])
    context.at_most("memory that a client of 4 GiB holds", told["held_mib"], 4096, "MiB")
    context.at_least("and at least", told["held_mib"], 2500, "MiB")


def kill(context: Context) -> None:
    """One client is killed while it and another work: by `aliquot kill`, then by SIGKILL alone."""
    first, second = TRAIN[MPS_GRANT]
    for how in ("aliquot kill", "SIGKILL"):
        context.stage.need((first, second))
        stage = context.stage
        begin = time.monotonic() + SOON_SECONDS
        for one in (first, second):
            stage[one].tell(do="run", at=begin, seconds=FAULT_SECONDS)
        time.sleep(FAULT_SECONDS / 2)
        killed = time.monotonic()
        if how == "SIGKILL":
            stage[second].kill()
        else:
            command = [sys.executable, "-m", "aliquot", "kill", "--grace", "0", second.name]
            command += [] if stage.simulate is None else ["--simulate", stage.simulate]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            context.found["aliquot kill"] = done.stdout + done.stderr
        took = time.monotonic() - killed
        try:
            answer = stage[first].answer(FAULT_SECONDS + 20)
            went_on = bool(answer["right"]) and answer["end"] > killed
            said = f"{answer['units']} steps"
        except TenantError as error:
            went_on, said = False, str(error)
        context.found[f"{how}: the other"] = said
        context.tell(f"{how} took", took, "s")
        if how == "SIGKILL":
            context.tell(f"{how}: the other goes on", float(went_on))
        else:
            context.holds(f"{how}: the other goes on", value=went_on)
        stage.end([second])
    print(json.dumps(context.found, indent=1), flush=True)


def fault(context: Context) -> None:
    """One client writes to an illegal address; what the others see; when a new one is let in."""
    stage = context.stage
    first, second = TRAIN[MPS_GRANT]
    idle = STEP[MPS_GRANT]
    stage.need((first, second, idle, BAD))
    begin = time.monotonic() + SOON_SECONDS
    for one in (first, second):
        stage[one].tell(do="run", at=begin, seconds=FAULT_SECONDS * 2)
    time.sleep(FAULT_SECONDS / 2)
    failed = time.monotonic()
    stage[BAD].tell(do="illegal")
    seen: dict[str, Any] = {}
    for one in (BAD, first, second):
        try:
            answer = stage[one].answer(FAULT_SECONDS * 2 + 10)
            seen[one.name] = {
                "answer": {k: v for k, v in answer.items() if k in {"error", "units"}}
            }
        except TenantError as error:
            seen[one.name] = {"ended": str(error)[-600:]}
        seen[one.name]["after_s"] = round(time.monotonic() - failed, 2)
    time.sleep(2.5)
    record = server(context).record()
    context.found |= {"seen": seen, "record": record}
    context.found["told"] = {
        one.name: [line for line in stage[one].log.read_text().splitlines() if "MPS server" in line]
        for one in (first, second, BAD, idle)
    }
    stage.end([BAD, first, second])
    waits = threading.Thread(target=start_later, args=(context,), daemon=True)
    waits.start()
    time.sleep(3)
    context.found["record while one waits"] = server(context).record()
    let_in_early = not waits.is_alive()
    stage.end([idle])
    freed = time.monotonic()
    waits.join(60)
    context.found["record after"] = server(context).record()
    control_log = server(context).path / "log" / "control.log"
    context.found["control.log"] = tail(control_log)
    context.found["server.log"] = tail(server(context).path / "log" / "server.log")
    print(json.dumps(context.found, indent=1), flush=True)
    context.tell("a new client runs, after the last old one ended", time.monotonic() - freed, "s")
    context.holds("a new client runs in the end", value=context.found.get("later") == "ready")
    if context.stage.simulate is None:
        context.holds("a new client waits for the old ones", value=not let_in_early)
        context.holds("every client was told", value=all(context.found["told"].values()))


def start_later(context: Context) -> None:
    try:
        context.stage.need([LATER])
        context.found["later"] = "ready"
    except TenantError as error:
        context.found["later"] = str(error)


def tail(path: Any) -> str:
    try:
        return path.read_text(errors="replace")[-2500:]
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(run_benchmark("mps", __doc__, lambda quick: cases(quick=quick)))
