"""The simulator and the gang controller make the same decisions.

The same seeded workloads go to `simulate` and to a whole scheduler on the tests' API server. Every
start (when, and on which GPUs) and every preemption must be the same in both. The scheduler runs in
virtual time: its clock stands still until it has nothing left to do, then moves to the next moment
at which a gang arrives, ends or has a planned start, as the simulator's does.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec
import pytest
import structlog

from aliquot.kubernetes.api.gang import GangObject
from aliquot.kubernetes.api.leader import LeaseTimes
from aliquot.kubernetes.api.names import DURATION, GANG, GANG_SIZE, GATE, PLAN, QUEUE
from aliquot.kubernetes.api.objects import PODS, Pod
from aliquot.kubernetes.api.passes import PASS_SECONDS
from aliquot.kubernetes.api.plan import decode_plan
from aliquot.kubernetes.cluster.hardware import spec_of
from aliquot.kubernetes.gangs import store
from aliquot.kubernetes.gangs.controller import GangOptions
from aliquot.kubernetes.gangs.lifecycle import Deadlines
from aliquot.kubernetes.scheduler import Scheduler, SchedulerOptions
from aliquot.placement.core.demand import Demand, Gang, Kind
from aliquot.placement.core.snapshot import NodeHardware
from aliquot.placement.decide import Decision
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.simulate.engine import simulate
from aliquot.simulate.trace import Arrival
from kubernetes.builders import GPU_BYTES, container, make_node, make_pod
from kubernetes.extender.replica import Replica, put_node
from kubernetes.fake_api import FakeApi, Json, as_json
from kubernetes.virtual_time import DirectClient, run_virtually

SEEDS, EACH = 208, 26
BEGIN = 10_000.0
LONGEST = 10  # seconds that a gang runs: then even an overrun is expected to end at a whole second
POLL = 0.5  # seconds of the event loop's virtual time
STRATEGY = "best-fit"
SPARE_ROWS = 16  # that a small cluster keeps for new nodes: ties are drawn over all rows
UNIT = 256 << 20  # of GPU memory, as pods ask for it


@dataclass(frozen=True)
class Job:
    """A gang: its members are alike, and each asks for this."""

    name: str
    size: int
    asked: tuple[tuple[str, int], ...]
    demand: Demand
    queue: str
    priority: int
    arrives: int
    seconds: int
    runs: int


@dataclass(frozen=True)
class QueueSpec:
    name: str
    weight: int
    quota: int | None
    limit: int | None
    parent: str = ""


@dataclass(frozen=True)
class Workload:
    nodes: tuple[int, ...]
    queues: tuple[QueueSpec, ...]
    jobs: tuple[Job, ...]


@dataclass
class History:
    """What happened: (time, gang) with the GPUs of each member, and (time, victim)."""

    starts: dict[tuple[float, str], list[tuple[str, tuple[int, ...]]]] = field(default_factory=dict)
    preemptions: set[tuple[float, str]] = field(default_factory=set)

    def start(self, now: float, gang: str, places: list[tuple[str, tuple[int, ...]]]) -> None:
        self.starts[now, gang] = sorted(places)

    def preempt(self, now: float, gang: str) -> None:
        """A gang that is preempted at the moment of its start has not started, and lost nothing."""
        if self.starts.pop((now, gang), None) is None:
            self.preemptions.add((now, gang))


# --- workloads ------------------------------------------------------------------------------------


def workload(seed: int) -> Workload:
    """A cluster that is small for what arrives: gangs wait, borrow, backfill and are preempted."""
    chance = random.Random(seed)  # noqa: S311 - the same each time
    nodes = tuple(chance.choice((2, 4)) for _ in range(chance.randint(1, 3)))
    total = sum(nodes)
    names = ("a", "b", "c")[: chance.randint(2, 3)]
    parent = "top" if chance.random() < 0.3 else ""
    queues = [
        QueueSpec(
            name=name,
            weight=chance.choice((1, 2)),
            quota=chance.choice((None, 1, total // 2, total // 2)),
            limit=chance.choice((None, None, max(1, total - 1), total)),
            parent=parent if number else "",
        )
        for number, name in enumerate(names)
    ]
    queues = [
        replace(one, quota=min(one.quota, one.limit)) if one.quota and one.limit else one
        for one in queues
    ]
    if parent:
        queues.append(QueueSpec(parent, 1, None, None))
    jobs = tuple(_job(chance, number, names, total) for number in range(chance.randint(8, 13)))
    return Workload(nodes, tuple(queues), jobs)


def _job(chance: random.Random, number: int, queues: tuple[str, ...], total: int) -> Job:
    shape = chance.random()
    asked: tuple[tuple[str, int], ...]
    if shape < 0.6:
        asked, demand = (("gpu", 1),), Demand()
    elif shape < 0.75:
        asked, demand = (("gpu", 2),), Demand(gpus=2)
    else:
        core, memory = chance.choice(((50, 40), (30, 100), (100, 160)))
        asked = (("core", core), ("memory", memory))
        demand = Demand(kind=Kind.SLICED, milli=10 * core, gpu_bytes=memory * UNIT, thrifty=True)
    seconds = chance.randint(2, LONGEST)
    runs = chance.choice((seconds, seconds, max(1, seconds // 2), min(LONGEST, seconds + 2)))
    return Job(
        name=f"g{number}",
        size=chance.randint(1, max(1, min(4, total // demand.gpus))),
        asked=asked,
        demand=demand,
        queue=chance.choice(queues),
        priority=chance.choice((0, 0, 0, 1, 5)),
        arrives=chance.randint(0, 12),
        seconds=seconds,
        runs=runs,
    )


# --- the simulator --------------------------------------------------------------------------------


def simulated(work: Workload) -> tuple[History, Counter[str]]:
    """What the simulator does, and how often it does what this test is about."""
    history, seen = History(), Counter[str]()
    nodes = [_node_spec(name, gpus) for name, gpus in _nodes(work)]
    nodes += [NodeHardware(f"spare-{n}", 0, rack=f"spare-{n}") for n in range(SPARE_ROWS)]
    arrivals = [Arrival(_gang(job), float(job.runs)) for job in work.jobs]

    def decided(now: float, decision: Decision) -> None:
        victims = {one.gang.name for _, each in decision.preemptions for one in each.victims}
        for name in victims:
            history.preempt(now, name)
        started = [(one.gang, one.placements) for one in decision.starts]
        started += [(gang, preemption.placements) for gang, preemption in decision.preemptions]
        for gang, placements in started:
            places = [(nodes[place.node].name, place.gpus) for place in placements]
            history.start(now, gang.name, places)
        seen["preemptions"] += len(victims)
        seen["reclaims"] += sum(
            one.gang.queue != gang.queue
            for gang, each in decision.preemptions
            for one in each.victims
        )
        waiting = [one.gang for one in decision.planned]
        seen["backfills"] += sum(
            any(other.submitted < gang.submitted and other.queue == gang.queue for other in waiting)
            for gang, _ in started
        )

    simulate(nodes, arrivals, by=STRATEGY, seed=0, queues=_queues(work), decided=decided)
    seen["starts"] += len(history.starts)
    return history, seen


def _nodes(work: Workload) -> Iterator[tuple[str, int]]:
    return ((f"n{number}", gpus) for number, gpus in enumerate(work.nodes))


def _node_spec(name: str, gpus: int) -> NodeHardware:
    """A node as the cluster sees it: without labels, each node is a rack of its own."""
    return replace(spec_of(make_node(name, gpus)), rack=name)


def _gang(job: Job) -> Gang:
    return Gang(
        name=f"ns/{job.name}",
        members=(job.demand,) * job.size,
        seconds=float(job.seconds),
        queue=job.queue,
        priority=job.priority,
        submitted=BEGIN + job.arrives,
    )


def _queues(work: Workload) -> dict[str, Queue]:
    def bound(gpus: int | None) -> Bound | None:
        return None if gpus is None else Bound(1000 * gpus, gpus * GPU_BYTES)

    found = {
        one.name: Queue(
            name=one.name,
            weight=one.weight,
            quota=bound(one.quota) or Bound(0, 0),
            limit=bound(one.limit) or Bound(),
            parent=one.parent,
        )
        for one in work.queues
    }
    if "top" in found:  # without a quota of its own a parent has those of its children
        quota = bound(sum(one.quota or 0 for one in work.queues if one.parent == "top"))
        found["top"] = replace(found["top"], quota=quota or Bound(0, 0))
    return found


# --- the gang controller --------------------------------------------------------------------------


class ClusterApi(FakeApi):
    """An API server with a kubelet that starts pods at once, and Jobs that replace evicted pods."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.now = now
        self.evicted: set[tuple[float, str]] = set()
        self.false_starts: set[str] = set()  # pods that were evicted at the moment of their start
        self.ends: dict[str, float] = {}  # when each running gang ends
        self.runs: dict[str, int] = {}
        self._number = itertools.count()

    def put(self, plural: str, one: Json) -> Json:
        has_begun = one.get("status", {}).get("startTime")
        if plural == "pods" and one.get("spec", {}).get("nodeName") and not has_begun:
            one = {**one, "status": {"phase": "Running", "startTime": _stamp(self.now())}}
            gang = one["metadata"]["annotations"][GANG]
            self.ends[gang] = self.now() + self.runs[gang]
        return super().put(plural, one)

    def end(self, plural: str, name: str, namespace: str) -> None:
        """Evict a pod: its Job makes another while it terminates."""
        pod = self.objects[plural, namespace, name]
        gang = pod["metadata"]["annotations"][GANG]
        if pod["status"]["startTime"] == _stamp(self.now()):
            self.false_starts.add(pod["metadata"]["uid"])
        else:
            self.evicted.add((self.now(), f"ns/{gang}"))
        self.ends.pop(gang, None)
        terminating = {**pod["metadata"], "deletionTimestamp": _stamp(self.now())}
        super().put(plural, {**pod, "metadata": terminating})
        self.put(plural, self._another(pod))
        self.delete(plural, name, namespace)

    def _another(self, pod: Json) -> Json:
        kept = ("namespace", "labels")
        meta = {key: pod["metadata"][key] for key in kept}
        notes = {key: pod["metadata"]["annotations"][key] for key in (GANG, GANG_SIZE, DURATION)}
        meta |= {"name": f"{notes[GANG]}-again-{next(self._number)}", "annotations": notes}
        meta["creationTimestamp"] = _stamp(self.now())
        spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
        return {
            **pod,
            "metadata": meta,
            "spec": {**spec, "schedulingGates": [{"name": GATE}]},
            "status": {},
        }

    def create(self, job: Job) -> None:
        self.runs[job.name] = job.runs
        for number in range(job.size):
            pod = as_json(
                PODS, make_pod(f"{job.name}-{number}", container(**dict[str, Any](job.asked)))
            )
            del pod["metadata"]["uid"]
            pod["metadata"] |= {
                "labels": {QUEUE: job.queue},
                "creationTimestamp": _stamp(self.now()),
                "annotations": {
                    GANG: job.name,
                    GANG_SIZE: str(job.size),
                    DURATION: f"{job.seconds}s",
                },
            }
            pod["spec"] |= {"priority": job.priority, "schedulingGates": [{"name": GATE}]}
            self.put("pods", pod)

    def finish(self, gang: str) -> None:
        del self.ends[gang]
        for one in self.all("pods"):
            if one["metadata"]["annotations"][GANG] == gang:
                self.delete("pods", one["metadata"]["name"], "ns")

    def planned_starts(self) -> list[float]:
        found = (msgspec.convert(one, GangObject).status for one in self.all("gangs"))
        return [
            datetime.fromisoformat(one.planned_start).timestamp()
            for one in found
            if one.planned_start is not None
        ]


def _stamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class KubeScheduler:
    """Asks the scheduler under test about every pod that has no gate and no node."""

    def __init__(self, api: ClusterApi, replica: Replica) -> None:
        self._api = api
        self._replica = replica
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, int] = {}  # at which version of the API server

    async def settle(self) -> None:
        """Until nothing was written and nothing is under way for longer than between two passes."""
        quiet = 0.0
        while quiet < PASS_SECONDS + 1:
            version = self._api.version
            for pod in (msgspec.convert(one, Pod) for one in self._api.all("pods")):
                self._try(pod, version)
            await asyncio.sleep(POLL)
            is_quiet = not self._tasks and self._api.version == version
            quiet = quiet + POLL if is_quiet else 0.0

    def _try(self, pod: Pod, version: int) -> None:
        """Schedule a pod; one that was refused is tried again when something has changed."""
        name = pod.metadata.name
        waits = not pod.spec.node_name and not pod.spec.scheduling_gates
        if waits and name not in self._tasks and self._refused.get(name) != version:
            self._refused[name] = version
            self._tasks[name] = asyncio.create_task(self._schedule(pod))

    async def _schedule(self, pod: Pod) -> None:
        try:
            nodes = (one["metadata"]["name"] for one in self._api.all("gpunodes"))
            answer = await self._replica.filter(pod, *sorted(nodes))
            if answer["NodeNames"]:
                await self._replica.bind(pod, answer["NodeNames"][0])
        except (AssertionError, httpx2.HTTPError):
            pass  # it is tried again after the next change
        finally:
            del self._tasks[pod.metadata.name]


class Cluster:
    """A scheduler on its own API server, whose clock this moves."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._now = BEGIN - 1
        self.api = ClusterApi(lambda: self._now)
        for name, gpus in _nodes(work):
            put_node(self.api, make_node(name, gpus))
        for one in work.queues:
            spec: dict[str, Any] = {"weight": one.weight}
            spec |= {} if one.quota is None else {"quota": {"gpus": one.quota}}
            spec |= {} if one.limit is None else {"limit": {"gpus": one.limit}}
            spec |= {"parent": one.parent} if one.parent else {}
            self.api.put("queues", {"metadata": {"name": one.name}, "spec": spec})

    async def run(self) -> History:
        """Play the workload to its end."""
        options = SchedulerOptions(
            namespace="ns",
            strategy=STRATEGY,
            times=LeaseTimes(duration=1e9, deadline=1e8, retry=1e7),
            gangs=GangOptions(times=Deadlines(grace=1e6, eviction=1e6)),
        )
        scheduler = Scheduler(DirectClient(self.api), options, now=lambda: self._now)
        task = asyncio.create_task(scheduler.run())
        replica = Replica(scheduler, self.api)
        await replica.ready()
        kube_scheduler = KubeScheduler(self.api, replica)
        coming = sorted(self._work.jobs, key=lambda one: (one.arrives, one.name), reverse=True)
        while coming or self.api.ends:
            self._now = min(
                *(BEGIN + one.arrives for one in coming[-1:]),
                *self.api.ends.values(),
                *(start for start in self.api.planned_starts() if start > self._now),
                float("inf"),
            )
            for gang in [name for name, end in self.api.ends.items() if end <= self._now]:
                self.api.finish(gang)
            while coming and BEGIN + coming[-1].arrives <= self._now:
                self.api.create(coming.pop())
            await kube_scheduler.settle()
        task.cancel()
        await asyncio.wait([task])
        return self._history()

    def _history(self) -> History:
        places: defaultdict[tuple[float, str], dict[str, tuple[str, tuple[int, ...]]]]
        places = defaultdict(dict)
        for change in self.api.log:
            one = change.object
            if change.plural != "pods" or not one.get("spec", {}).get("nodeName"):
                continue
            if one["metadata"]["uid"] in self.api.false_starts:
                continue
            notes = one["metadata"]["annotations"]
            plan = decode_plan(notes.get(PLAN, ""))
            assert plan is not None, one
            began = datetime.fromisoformat(one["status"]["startTime"]).timestamp()
            gpus = sorted(
                int(gpu.rsplit("-", 1)[1]) for part in plan.containers.values() for gpu in part.gpus
            )
            where = one["spec"]["nodeName"], tuple(gpus)
            places[began, f"ns/{notes[GANG]}"][one["metadata"]["uid"]] = where
        starts = {key: sorted(found.values()) for key, found in places.items()}
        return History(starts, self.api.evicted)


# --- the comparison -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def for_many_schedulers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gang objects are written at once, and no scheduler collects garbage or logs."""
    monkeypatch.setattr(store, "REASON_SECONDS", 0.0)
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    with structlog.testing.capture_logs():
        yield


@pytest.mark.parametrize("first", range(0, SEEDS, EACH))
def test_the_simulator_and_the_gang_controller_decide_the_same(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + EACH):
        work = workload(seed)
        expected, counts = simulated(work)
        found = run_virtually(Cluster(work).run())
        assert found.preemptions == expected.preemptions, f"seed {seed}"
        assert found.starts == expected.starts, f"seed {seed}"
        seen += counts
    assert seen["starts"] > 8 * EACH
    assert min(seen["preemptions"], seen["reclaims"], seen["backfills"]) >= 5, seen
