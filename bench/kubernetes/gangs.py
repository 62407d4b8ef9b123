"""Gangs on a real Kubernetes: random arrivals, departures and kills; and one large gang.

    python bench/kubernetes/gangs.py [--gangs 100] [--nodes 200] [--kills 3] [--check]
    python bench/kubernetes/gangs.py --one 512 --nodes 500 [--check]

A real API server and a real kube-scheduler, with nodes and pods simulated by kwok (tests/cluster),
as root. Gangs of 1 to 64 pods with one GPU each arrive at random, run for their duration once all
their pods are bound, and end; the leading extender is killed at random times. Then the same gangs
come to kube-scheduler alone, with GPU counts on the nodes and no extender. Utilisation is the GPU
time in which complete gangs ran, of all GPU time until the last arrival; incomplete gangs have GPUs
and run nothing. kube-scheduler alone is stopped when it makes no progress, or after `--limit`
seconds.

The benchmark checks twice a second: no gang is incomplete for longer than its grace, no reservation
is lost (a gang in the phase Reserved becomes complete) or leaked (in the end there is no Gang
object, and no GPU is used), and no gang starts later than its first planned start, apart from the
time that the extender was away and `SLACK`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "tests"))

from limits import exceeded  # noqa: E402 - beside this file

from cluster import gangs  # noqa: E402
from cluster.extender import scheduler_config  # noqa: E402
from cluster.gangs import CLIENT, Stage  # noqa: E402
from cluster.test_scheduler import metric  # noqa: E402

NAMESPACE = "gangs"
GPUS = 2  # of each node
LARGEST = 64
BIG = 48
LOOK = 0.5
GRACE = 30.0  # as the extender has it; twice that for a half to be completed
SLACK = 20.0
AWAY = 25.0  # a lease runs out, and the next one reads everything
STILL = 45.0


@dataclass
class Job:
    """A gang, and what became of it."""

    name: str
    size: int
    comes: float
    seconds: float
    pods: list[str] = field(default_factory=list)
    came: float | None = None
    started: float | None = None
    ended: float | None = None
    half_since: float | None = None
    promised: float | None = None


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--gangs", type=int, default=100)
    options.add_argument("--nodes", type=int, default=200)
    options.add_argument("--kills", type=int, default=3)
    options.add_argument("--over", type=float, default=90.0, help="seconds in which they come")
    options.add_argument("--limit", type=float, default=600.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only-ours", action="store_true", help="not kube-scheduler alone")
    options.add_argument("--one", type=int, default=0, help="one gang of so many pods, instead")
    options.add_argument("--check", action="store_true")
    chosen = options.parse_args()
    with gangs.stage() as stage:
        stage.cluster.create_namespace(NAMESPACE)
        found = one_large(stage, chosen) if chosen.one else churn(stage, chosen)
    print(json.dumps(found, indent=2))
    if chosen.check:
        late = exceeded("gangs", found)
        assert not late, "\n".join(late)


# --- one large gang -------------------------------------------------------------------------------


def one_large(stage: Stage, chosen: argparse.Namespace) -> dict[str, Any]:
    """From the creation of the first pod to the last binding."""
    begin(stage, chosen)
    unbound = f"/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=spec.nodeName%3D&limit=1"
    began = time.monotonic()
    stage.submit(NAMESPACE, "large", chosen.one)
    created = time.monotonic() - began
    stage.cluster.wait_until(
        lambda: not stage.cluster.api.get(unbound)["items"], chosen.limit, "all bound", every=0.1
    )
    took = time.monotonic() - began
    stage.wait_phase(NAMESPACE, "large", "Bound")
    stage.check_gpus(NAMESPACE)
    near = stage.gang(NAMESPACE, "large")["status"]["topology"]
    return {
        "pods": chosen.one,
        "nodes": chosen.nodes,
        "created_seconds": round(created, 2),
        "one_seconds": round(took, 2),
        "near": near,
    }


# --- many -----------------------------------------------------------------------------------------


def begin(stage: Stage, chosen: argparse.Namespace) -> None:
    """Nodes, and one replica that leads; kube-scheduler asks it without anything between."""
    stage.add_nodes(chosen.nodes, GPUS)
    replica = stage.replicas[0]
    replica.server.start()
    stage.wait_leader()
    stage.cluster.configure_scheduler({**scheduler_config(replica.url), **CLIENT})
    stage.cluster.scheduler.wait_ready()


def make_jobs(chosen: argparse.Namespace) -> list[Job]:
    chance = random.Random(chosen.seed)  # noqa: S311 - a mix, not a secret
    return [
        Job(
            f"g{number}",
            chance.randint(1, min(LARGEST, GPUS * chosen.nodes)),
            chance.uniform(0, chosen.over),
            chance.uniform(5, 25),
        )
        for number in range(chosen.gangs)
    ]


def churn(stage: Stage, chosen: argparse.Namespace) -> dict[str, Any]:
    begin(stage, chosen)
    ours = Run(stage, make_jobs(chosen), chosen, with_extender=True)
    ours.play()
    found = ours.figures()
    found |= ours.left_behind()
    print(json.dumps(found), file=sys.stderr, flush=True)
    if chosen.only_ours:
        return found
    stage.replicas[0].server.stop()
    stage.cluster.configure_scheduler({"percentageOfNodesToScore": 100, **CLIENT})
    alone = Run(stage, make_jobs(chosen), chosen, with_extender=False)
    alone.play()
    theirs = alone.figures()
    found["kube_scheduler_alone"] = {
        name: theirs[name] for name in ("utilisation", "finished", "seconds", "halves_in_the_end")
    }
    return found


class Run:
    """One way through all jobs."""

    def __init__(
        self, stage: Stage, jobs: list[Job], chosen: argparse.Namespace, *, with_extender: bool
    ) -> None:
        self._stage = stage
        self._jobs = jobs
        self._chosen = chosen
        self._with = with_extender
        chance = random.Random(chosen.seed + 1)  # noqa: S311 - the same
        kills = chosen.kills if with_extender else 0
        self._kills = sorted(chance.uniform(10, chosen.over + 30) for _ in range(kills))
        self._killed: list[float] = []
        self._down: list[tuple[float, Any]] = []
        self._worst_half = 0.0
        self._began = time.monotonic()
        self._wall = time.time()
        self._seconds = 0.0

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def play(self) -> None:
        moved = 0.0
        while any(one.ended is None for one in self._jobs) and self._now < self._chosen.limit:
            now = self._now
            before = self._count()
            self._come(now)
            self._kill(now)
            self._look()
            self._go(now)
            moved = now if self._count() != before else moved
            if not self._with and now > self._chosen.over and now - moved > STILL:
                break  # halves of gangs wait for each other, for ever
            time.sleep(max(0.0, LOOK - (self._now - now)))
        self._seconds = self._now
        self._halves = sum(one.half_since is not None for one in self._jobs)
        for one in self._jobs:
            if one.came is not None and one.ended is None:
                self._stage.end(NAMESPACE, one.pods)

    def _count(self) -> Counter[str]:
        return Counter(
            word
            for one in self._jobs
            for word in ("came", "started", "ended")
            if getattr(one, word) is not None
        )

    def _come(self, now: float) -> None:
        for one in self._jobs:
            if one.came is None and one.comes <= now:
                notes = {"aliquot.io/duration": f"{one.seconds:.1f}s"}
                one.came = self._now
                one.pods = self._stage.submit(
                    NAMESPACE, one.name, one.size, gated=self._with, notes=notes
                )

    def _kill(self, now: float) -> None:
        for at, server in list(self._down):
            if at <= now:
                server.start()
                self._down.remove((at, server))
        if self._kills and self._kills[0] <= now:
            replica = self._stage.replicas[0]
            if replica.ready:
                self._kills.pop(0)
                replica.server.kill()
                self._killed.append(now)
                self._down.append((now + 2.0, replica.server))

    def _look(self) -> None:
        bound_pods = self._stage.bound(NAMESPACE)
        now = self._now
        promises = self._planned_starts() if self._with else {}
        for one in self._jobs:
            if one.came is None or one.started is not None:
                continue
            bound = sum(name in bound_pods for name in one.pods)
            if one.promised is None and one.name in promises:
                one.promised = promises[one.name] - self._wall
            if bound == one.size:
                one.started, one.half_since = now, None
            elif bound:
                one.half_since = now if one.half_since is None else one.half_since
                self._worst_half = max(self._worst_half, now - one.half_since)
            else:
                one.half_since = None

    def _planned_starts(self) -> dict[str, float]:
        path = f"/apis/aliquot.io/v1alpha1/namespaces/{NAMESPACE}/gangs?resourceVersion=0"
        found = self._stage.cluster.api.get(path)["items"]
        return {
            one["metadata"]["name"]: datetime.fromisoformat(at).timestamp()
            for one in found
            if (at := one.get("status", {}).get("plannedStart"))
        }

    def _go(self, now: float) -> None:
        for one in self._jobs:
            if one.started is not None and one.ended is None and now >= one.started + one.seconds:
                self._stage.end(NAMESPACE, one.pods)
                one.ended = now

    # --- what came of it --------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        until = max(one.comes for one in self._jobs)
        used = 0.0
        for one in self._jobs:
            if one.started is not None:
                end = min(until, one.ended if one.ended is not None else self._seconds)
                used += one.size * max(0.0, end - one.started)
        ran = [one for one in self._jobs if one.started is not None and one.came is not None]
        waits = {one.name: one.started - one.came for one in ran}  # type: ignore[operator]
        big = [waits[one.name] for one in ran if one.size >= BIG]
        late = [
            one.started - one.promised  # type: ignore[operator]
            for one in ran
            if one.promised is not None
        ]
        bound = SLACK + AWAY * len(self._killed)
        found = {
            "gangs": len(self._jobs),
            "pods": sum(one.size for one in self._jobs),
            "gpus": GPUS * self._chosen.nodes,
            "finished": sum(one.ended is not None for one in self._jobs),
            "seconds": round(self._seconds, 1),
            "utilisation": round(used / (GPUS * self._chosen.nodes * until), 3),
            "kills": len(self._killed),
            "half_seconds": round(self._worst_half, 1),
            "halves_in_the_end": self._halves,
            "wait_mean_seconds": round(mean(waits.values()), 1),
            "wait_big_worst_seconds": round(max(big, default=0.0), 1),
            "later_than_promised_worst_seconds": round(max(late, default=0.0), 1),
            "later_than_promised_bound_seconds": bound,
        }
        if self._with and self._chosen.check:
            assert found["finished"] == len(self._jobs), "some gangs never ran"
            assert max(late, default=0.0) <= bound, "a gang was kept waiting"
        return found

    def left_behind(self) -> dict[str, Any]:
        """Nothing: no pod, no Gang object, no GPU that is held."""
        cluster = self._stage.cluster
        cluster.wait_until(lambda: not self._stage.pods(NAMESPACE), 60, "all pods are gone")
        path = f"/apis/aliquot.io/v1alpha1/namespaces/{NAMESPACE}/gangs"
        cluster.wait_until(lambda: not cluster.api.get(path)["items"], 60, "no Gang is left")
        leader = self._stage.wait_leader()
        free = metric(leader, 'aliquot_scheduler_gpus{kind="free"}')
        assert free == GPUS * self._chosen.nodes, free
        return {"gpus_free_in_the_end": int(free)}


if __name__ == "__main__":
    main()
