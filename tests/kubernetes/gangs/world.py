"""A cluster for gangs: an API server that keeps the truth, and kube-scheduler as it would go on."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec

from aliquot.kubernetes.api.gang import GangObject
from aliquot.kubernetes.api.names import GANG, GANG_SIZE, GATE, PLAN
from aliquot.kubernetes.api.objects import PODS, Pod
from aliquot.kubernetes.api.plan import decode_plan
from aliquot.kubernetes.cluster.membership import POD_GROUP
from aliquot.kubernetes.gangs.controller import GangOptions
from aliquot.kubernetes.gangs.lifecycle import Deadlines
from kubernetes.builders import make_node, make_pod
from kubernetes.extender.replica import Replica, put_node, replica
from kubernetes.fake_api import FakeApi, Json, as_json, until

SOON = GangOptions(times=Deadlines(grace=0.4, eviction=0.4))


class World:
    """Pods, nodes and gangs, as the API server has them."""

    def __init__(self, *gpus: int, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()
        self.nodes = [f"n{number}" for number in range(len(gpus))]
        for name, count in zip(self.nodes, gpus, strict=True):
            put_node(self.api, make_node(name, count))
        self.offered = set(self.nodes)  # what kube-scheduler would offer
        self.owned: set[str] = set()  # gangs whose owner makes a pod anew when one goes
        self.api.on_gone = self._own
        self._made = itertools.count(1)
        self.tasks: set[asyncio.Task[None]] = set()
        self._leader: Replica | None = None

    @property
    def leader(self) -> Replica:
        """The replica that kube-scheduler asks."""
        assert self._leader is not None
        return self._leader

    # --- what people do ---------------------------------------------------------------------------

    def gang(
        self,
        name: str,
        size: int,
        *,
        pods: int | None = None,
        first: int = 0,
        gated: bool = True,
        group: bool = False,
        annotations: Mapping[str, str] | None = None,
        **asked: Any,
    ) -> list[str]:
        """A gang's pods: each asks for one GPU, or for this. `group`: a PodGroup says the size."""
        notes = dict(annotations or {})
        if group:
            meta = {"name": name, "namespace": "ns"}
            self.api.put("podgroups", {"metadata": meta, "spec": {"minMember": size}})
            labels = {**asked.get("labels", {}), POD_GROUP: name}
            asked = {"gpu": 1, **asked, "labels": labels}
        else:
            notes = {GANG: name, GANG_SIZE: str(size), **notes}
        count = size if pods is None else pods
        names = [f"{name}-{number}" for number in range(first, first + count)]
        for one in names:
            self.pod(one, gated=gated, annotations=notes, **(asked or {"gpu": 1}))
        return names

    def pod(
        self,
        name: str,
        *,
        gated: bool = False,
        spec: Json | None = None,
        labels: Mapping[str, str] | None = None,
        **asked: Any,
    ) -> None:
        body = as_json(PODS, make_pod(name, **asked))
        del body["metadata"]["uid"]
        made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body["metadata"] |= {"labels": dict(labels or {}), "creationTimestamp": made}
        body["spec"] |= spec or {}
        if gated:
            body["spec"]["schedulingGates"] = [{"name": GATE}]
        self.api.put("pods", body)

    def delete(self, *names: str) -> None:
        for name in names:
            self.api.delete("pods", name, "ns")

    def queue(self, name: str, **spec: Any) -> None:
        """A queue: world.queue("q", limit={"gpus": 2})."""
        self.api.put("queues", {"metadata": {"name": name}, "spec": spec})

    def succeed(self, name: str) -> None:
        """A pod has done its work."""
        body = json.loads(json.dumps(self.api.objects["pods", "ns", name]))
        self.api.put("pods", {**body, "status": {"phase": "Succeeded"}})

    def _own(self, plural: str, gone: Json) -> None:
        """The owner of a gang makes a pod like the one that went."""
        notes, labels = (gone["metadata"].get(key, {}) for key in ("annotations", "labels"))
        name = notes.get(GANG) or labels.get(POD_GROUP)
        if plural != "pods" or name not in self.owned:
            return
        gated = [{"name": GATE}]
        meta = {**gone["metadata"], "name": f"{name}-again-{next(self._made)}"}
        for field in ("uid", "deletionTimestamp", "resourceVersion"):
            meta.pop(field, None)
        meta["annotations"] = {key: notes[key] for key in (GANG, GANG_SIZE) if key in notes}
        spec = {key: value for key, value in gone["spec"].items() if key != "nodeName"}
        self.api.put("pods", {**gone, "metadata": meta, "spec": {**spec, "schedulingGates": gated}})

    def begin_to_end(self, *names: str) -> None:
        """They have been deleted, and are given time to end."""
        for name in names:
            body = json.loads(json.dumps(self.api.objects["pods", "ns", name]))
            body["metadata"]["deletionTimestamp"] = "2026-11-15T12:00:00Z"
            self.api.put("pods", body)

    def dies_after(self, evictions: int) -> Callable[[], bool]:
        """Nothing is heard of the leader after so many evictions; whether that is so."""
        asked = itertools.count()
        dead = asyncio.Event()

        def refuse(method: str, path: str) -> int | None:
            if method == "POST" and path.endswith("/eviction") and next(asked) >= evictions:
                dead.set()
            return 503 if dead.is_set() else None

        self.api.faults.refuse = refuse
        return dead.is_set

    def revive(self) -> None:
        """Another may lead."""
        self.api.faults.refuse = lambda *_: None
        self.api.delete("leases", "aliquot-scheduler", "ns")

    # --- what is so -------------------------------------------------------------------------------

    def pods(self, gang: str = "") -> dict[str, Pod]:
        found = (msgspec.convert(one, Pod) for one in self.api.all("pods"))
        return {one.metadata.name: one for one in found if not gang or _gang_of(one) == gang}

    def bound(self, gang: str = "") -> dict[str, str]:
        return {
            name: one.spec.node_name for name, one in self.pods(gang).items() if one.spec.node_name
        }

    def active(self, gang: str) -> set[str]:
        """Its pods that have nodes, and are not on their way out."""
        found = self.pods(gang).items()
        return {
            name
            for name, one in found
            if one.spec.node_name and not one.metadata.deletion_timestamp
        }

    def eviction_reason(self, gang: str) -> str:
        found = self.status(gang)
        return found.status.eviction_reason if found else ""

    def status(self, gang: str) -> GangObject | None:
        found = self.api.objects.get(("gangs", "ns", gang))
        return msgspec.convert(found, GangObject) if found else None

    def phase(self, gang: str) -> str:
        found = self.status(gang)
        return found.status.phase if found else ""

    def why(self, gang: str) -> str:
        found = self.status(gang)
        return found.status.reason if found else ""

    def events(self, name: str) -> list[tuple[str, str]]:
        return [
            (one["reason"], one["message"])
            for one in self.api.all("events")
            if one["involvedObject"]["name"] == name
        ]

    def check_gpus(self) -> None:
        """No GPU is given twice, but to slices."""
        given: Counter[str] = Counter()
        sliced: Counter[str] = Counter()
        for one in self.pods().values():
            plan = decode_plan(one.metadata.annotations.get(PLAN, ""))
            if one.spec.node_name and plan is not None:
                for part in plan.containers.values():
                    given.update(part.gpus)
                    sliced.update(part.gpus if part.kind == "sliced" else ())
        assert all(count in {1, sliced[gpu]} for gpu, count in given.items()), given

    def held(self, queue: str) -> int:
        """How many GPUs the pods with that label have."""
        found = 0
        for one in self.pods().values():
            plan = decode_plan(one.metadata.annotations.get(PLAN, ""))
            mine = one.metadata.labels.get("aliquot.io/queue") == queue
            if mine and one.spec.node_name and plan is not None:
                found += sum(len(part.gpus) for part in plan.containers.values())
        return found

    def halves(self) -> dict[str, tuple[int, int]]:
        """Gangs of which some have nodes and some do not, or are not there: how many, of what."""
        have: dict[str, int] = defaultdict(int)
        sizes: dict[str, int] = {}
        for one in self.pods().values():
            name = _gang_of(one)
            if name and not one.metadata.deletion_timestamp:
                sizes[name] = self._size_of(one, name)
                have[name] += bool(one.spec.node_name)
        return {name: (have[name], size) for name, size in sizes.items() if 0 < have[name] < size}

    def _size_of(self, pod: Pod, gang: str) -> int:
        said = pod.metadata.annotations.get(GANG_SIZE)
        group = self.api.objects.get(("podgroups", "ns", gang), {})
        return int(said or group["spec"]["minMember"])

    # --- kube-scheduler ---------------------------------------------------------------------------

    @asynccontextmanager
    async def scheduling(self, one: Replica) -> AsyncIterator[None]:
        """kube-scheduler asks this replica about every pod that waits."""
        self._leader = one
        task = asyncio.create_task(self._schedule(one))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            for each in list(self.tasks):
                each.cancel()
            if self.tasks:
                await asyncio.wait(self.tasks)

    async def _schedule(self, one: Replica) -> None:
        tried: dict[str, str] = {}
        rounds = 0
        while True:
            rounds += 1
            for name, pod in self.pods().items():
                version = pod.metadata.resource_version
                waits = not pod.spec.node_name and not pod.spec.scheduling_gates
                if not waits or (tried.get(name) == version and rounds % 20):
                    continue
                tried[name] = version
                await self._try(one, pod)
            await asyncio.sleep(0.005)

    async def _try(self, one: Replica, pod: Pod) -> None:
        if not self.offered:
            return
        try:
            answer = await one.filter(pod, *sorted(self.offered))
        except (AssertionError, httpx2.HTTPError):
            return  # it does not lead
        if answer["NodeNames"]:
            task = asyncio.create_task(self._bind(one, pod, answer["NodeNames"][0]))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _bind(self, one: Replica, pod: Pod, node: str) -> None:
        try:
            await one.bind(pod, node)
        except (AssertionError, httpx2.HTTPError):
            return


def _gang_of(pod: Pod) -> str:
    return pod.metadata.annotations.get(GANG) or pod.metadata.labels.get(POD_GROUP, "")


@asynccontextmanager
async def running(world: World, **options: Any) -> AsyncIterator[Replica]:
    """An API server, and a replica that leads."""
    async with world.api.serving(), led(world, **options) as one:
        yield one


def played(
    world: World, play: Callable[[World, Replica], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Play it with a replica that leads; then no GPU may have been given twice."""

    async def run() -> None:
        async with running(world, **options) as one:
            await play(world, one)

    asyncio.run(run())
    world.check_gpus()


@asynccontextmanager
async def led(world: World, **options: Any) -> AsyncIterator[Replica]:
    """A replica that is ready, and kube-scheduler that asks it."""
    options.setdefault("gangs", SOON)
    async with replica(world.api, **options) as one:
        await one.ready()
        async with world.scheduling(one):
            yield one


async def is_bound(world: World, gang: str, count: int) -> None:
    await until(lambda: len(world.bound(gang)) == count)
    await until(lambda: world.phase(gang) == "Bound")
