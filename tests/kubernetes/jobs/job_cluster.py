"""A simulated cluster for elastic jobs: API server, gangs, kubelet, programs and clock.

Nothing happens by itself: the test says who acts next. The controller's watches may lag behind, and
the controller may die before or after any of its requests.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.elasticjob import ElasticJob, ElasticJobStatus, JobPod
from aliquot.kubernetes.api.gang import GangObject
from aliquot.kubernetes.api.gpunode import GpuNodeStatus, NodeGrant
from aliquot.kubernetes.api.names import (
    GANG,
    GANG_SIZE,
    GATE,
    JOB,
    JOB_GENERATION,
    JOB_RANK,
    NOTICE,
    PLAN,
)
from aliquot.kubernetes.api.objects import GPU_NODES, ApiObject, DeleteOptions, Node, Pod, Resource
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.api.times import stamp
from aliquot.kubernetes.jobs.allocations import JobAllocations
from aliquot.kubernetes.jobs.controller import Controller, WatchedObjects
from aliquot.placement.elastic.resize import Rules
from kubernetes.builders import GPU_BYTES, make_node, node_json
from kubernetes.fake_api import FakeApi, Json, _Where, as_json

T = TypeVar("T", bound=ApiObject)

NODE = "n1"
SOON = Rules(resize_seconds=5.0, settle_seconds=5.0)
GPU_NAME = "aliquot.io/gpu"
GPU = {"limits": {GPU_NAME: 1}}
TEMPLATE: Json = {"spec": {"containers": [{"name": "main", "image": "busybox", "resources": GPU}]}}


class DiedError(BaseException):
    """The controller has died."""


class JobsApi(FakeApi):
    """Handles pods like a real API server: deletion takes time, UIDs and versions are checked.

    `forgotten` are pods that were removed although they may still run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[str] = []

    def _post(self, where: _Where, body: Json) -> Response:
        if where.plural == "pods":
            body.setdefault("status", {"phase": "Pending"})
        return super()._post(where, body)

    def _patch(self, where: _Where, body: Json) -> Response:
        one = self.objects.get(where.key)
        meant = body.get("metadata", {})
        for field in ("uid", "resourceVersion"):
            if (
                one is not None
                and meant.get(field, one["metadata"][field]) != one["metadata"][field]
            ):
                return _conflict(f"{field} is another")
        return super()._patch(where, body)

    def _delete(self, where: _Where, body: Json) -> Response:
        one = self.objects.get(where.key)
        if one is not None:
            uid = one["metadata"]["uid"]
            if body.get("preconditions", {}).get("uid", uid) != uid:
                return _conflict("the UID is another")
            if where.plural == "pods" and one["spec"].get("nodeName") and not _over(one):
                if body.get("gracePeriodSeconds") == 0:
                    self.forgotten.append(where.name)
                    return super()._delete(where, body)
                one = copy.deepcopy(one)
                one["metadata"]["deletionTimestamp"] = "2026-11-15T12:00:00Z"
                return Response(json.dumps(self.put("pods", one)))
        return super()._delete(where, body)


class MortalClient:
    """A client without a socket, for a controller that dies after so many requests."""

    def __init__(self, api: FakeApi, lives: int = 1 << 30, *, late: bool = False) -> None:
        self._api, self._lives, self._late = api, lives, late

    async def get(self, of: Resource[T], name: str, namespace: str = "") -> T:
        return self._ask("get", of, of.path(namespace, name), {})

    async def create(self, of: Resource[T], one: T) -> T:
        body = {"apiVersion": of.api_version, "kind": of.kind, **msgspec.to_builtins(one)}
        return self._write("post", of, of.path(one.metadata.namespace), body)

    async def patch(
        self,
        of: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        sub: str = "",
    ) -> T:
        return self._write("patch", of, of.path(namespace, name, sub), dict(patch))

    async def delete(
        self, of: Resource[T], name: str, namespace: str = "", options: DeleteOptions | None = None
    ) -> None:
        body = msgspec.to_builtins(options or DeleteOptions())
        try:
            self._write("delete", of, of.path(namespace, name), body)
        except ApiError as error:
            if not error.not_found:
                raise

    def _write(self, verb: str, of: Resource[T], path: str, body: Json) -> T:
        if self._lives <= 0 or (self._lives == 1 and not self._late):
            self._lives = 0
            raise DiedError
        self._lives -= 1
        made = self._ask(verb, of, path, body)
        if self._lives <= 0:
            raise DiedError
        return made

    def _ask(self, verb: str, of: Resource[T], path: str, body: Json) -> T:
        body = json.loads(msgspec.json.encode(body))
        refused = self._api.faults.refuse(verb.upper(), path)
        if refused is not None:
            raise ApiError(refused, "Refused", "as the test says")
        answer = getattr(self._api, f"_{verb}")(_Where.of(path), body)
        if answer.status_code >= 400:
            said = json.loads(answer.body)
            raise ApiError(answer.status_code, said["reason"], said["message"])
        return msgspec.json.decode(answer.body, type=of.type, strict=False)


class JobCluster:
    """The cluster. `behind`: the controller's watches show the objects of the last `sync`."""

    def __init__(self, gpus: int = 4, rules: Rules = SOON) -> None:
        self.api = JobsApi()
        self.now = 1000.0
        self.rules = rules
        self.behind = False
        self.cooperative = True
        self.failures, self.finished = 0, 0  # of workers
        self.stuck: set[str] = set()  # pods whose image cannot be pulled
        self.missed_notices: dict[str, int] = {}  # how many notices a pod's program misses
        self.preempted: dict[str, tuple[str, float]] = {}  # gangs to be evicted: why and when
        self._decided = 0.0
        self._synced: dict[tuple[str, str, str], Json] = {}
        self._node = make_node(NODE, gpus)
        self._reported: GpuNodeStatus | None = None
        self.report()
        self.begin()

    # --- the controller ---------------------------------------------------------------------------

    def begin(
        self,
        lives: int = 1 << 30,
        *,
        late: bool = False,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start another controller with up-to-date watches."""
        self.allocations = JobAllocations()
        self._known: set[str] = set()
        watched = WatchedObjects(
            jobs=lambda: self._view("elasticjobs", ElasticJob),
            pods=lambda: {
                key: pod
                for key, pod in self._view("pods", JobPod).items()
                if JOB_RANK in pod.metadata.labels
            },
            gangs=lambda: self._view("gangs", GangObject),
        )
        self.controller = Controller(
            MortalClient(self.api, lives, late=late),  # type: ignore[arg-type] # the same requests
            watched,
            self.allocations,
            self.rules,
            now=lambda: self.now,
            may=may,
        )
        self.sync()

    def sync(self) -> None:
        """Bring the watches up to date."""
        self._synced = dict(self.api.objects)
        for (_, name), one in self._view("gpunodes", GPU_NODES.type).items():
            self.allocations.set_node(name, self._view("nodes", Node).get(("", name)))
            self.allocations.set_gpu_node(name, one)
        pods = {one.metadata.uid: one for one in self._view("pods", Pod).values()}
        for uid in self._known - set(pods):
            self.allocations.set_pod(uid, None)
        for uid, pod in pods.items():
            self.allocations.set_pod(uid, None if pod.ended else pod)
        self._known = set(pods)

    def _view(self, plural: str, kind: type[T]) -> dict[tuple[str, str], T]:
        source = self._synced if self.behind else self.api.objects
        return {
            (namespace, name): msgspec.convert(one, kind, strict=False)
            for (found, namespace, name), one in source.items()
            if found == plural
        }

    async def round(self, seconds: float = 0.0) -> None:
        """One round of the controller, `seconds` later."""
        self.now += seconds
        if not self.behind:
            self.sync()
        await self.controller.round()
        if self.now - self._decided >= 1.0:
            self._decided = self.now
            await self.controller.decide()

    async def go(self, seconds: float) -> None:
        """Let everybody act, second by second."""
        for _ in range(int(seconds)):
            await self.round(1.0)
            self.place()
            self.run_pods()

    # --- users ------------------------------------------------------------------------------------

    def submit(self, name: str = "train", least: int = 1, most: int = 4, **spec: Any) -> None:
        workers = {"min": least, "max": most, **spec.pop("workers", {})}
        body = {
            "metadata": {"name": name, "namespace": "ns", "generation": 1},
            "spec": {"workers": workers, "template": copy.deepcopy(TEMPLATE), **spec},
        }
        self.api.put("elasticjobs", body)

    def change(self, name: str = "train", **spec: Any) -> None:
        one = copy.deepcopy(self.api.objects["elasticjobs", "ns", name])
        one["spec"] |= spec
        self.api.put("elasticjobs", one)

    def remove(self, name: str = "train") -> None:
        """Delete a job and the objects that it owns."""
        gone = self.api.delete("elasticjobs", name, "ns")
        assert gone is not None
        for (plural, namespace, each), one in list(self.api.objects.items()):
            owners = one["metadata"].get("ownerReferences", [])
            if any(owner["uid"] == gone["metadata"]["uid"] for owner in owners):
                self.api.delete(plural, each, namespace)

    def gang(self, name: str, size: int, **labels: str) -> None:
        """Create another gang; labels are given without `aliquot.io/`."""
        mine = {f"aliquot.io/{key}": value for key, value in labels.items()}
        for number in range(size):
            notes = {GANG: name, GANG_SIZE: str(size)}
            meta = {"name": f"{name}-{number}", "namespace": "ns", "annotations": notes}
            meta["labels"] = mine
            spec = {**copy.deepcopy(TEMPLATE["spec"]), "schedulingGates": [{"name": GATE}]}
            self.api.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def drain(self, pod: str) -> None:
        """Delete a worker's pod as a drain does, with its grace period."""
        self.api._delete(_Where.of(f"/api/v1/namespaces/ns/pods/{pod}"), {})

    def end_gang(self, name: str) -> None:
        for pod in self.pods(name):
            self.api.delete("pods", pod, "ns")
        self.api.delete("gangs", name, "ns")

    # --- the scheduler and the kubelet ------------------------------------------------------------

    def place(self) -> None:
        """Start every complete gang for which GPUs are free, in the order of their names."""
        gangs: dict[str, list[Json]] = {}
        for one in self.api.all("pods"):
            notes = one["metadata"].get("annotations", {})
            if GANG in notes and not one["metadata"].get("deletionTimestamp"):
                gangs.setdefault(notes[GANG], []).append(one)
        for known in self.api.all("gangs"):
            if known["metadata"]["name"] not in gangs:
                self.api.delete("gangs", known["metadata"]["name"], "ns")
        for name in sorted(gangs):
            self._place(name, gangs[name])

    def _place(self, name: str, pods: list[Json]) -> None:
        size = int(pods[0]["metadata"]["annotations"][GANG_SIZE])
        unbound = [one for one in pods if not one["spec"].get("nodeName") and not _over(one)]
        free = self.free()
        if not unbound:
            phase = "Bound"
        elif len(pods) < size:
            phase = "Gathering"
        elif len(unbound) <= len(free):
            phase = "Bound"
            for one, gpu in zip(unbound, free, strict=False):
                self._bind(one, gpu)
        else:
            phase = "Refused" if size > len(self.gpus()) else "Waiting"
        reason = f"{size} GPUs asked" if phase != "Bound" else ""
        status: Json = {"phase": phase, "reason": reason}
        if name in self.preempted:
            why, until = self.preempted[name]
            status |= {"evictionReason": why, "evictionTime": stamp(until)}
        meta = {"name": name, "namespace": "ns"}
        self.api.put("gangs", {"metadata": meta, "spec": {"size": size}, "status": status})

    def preempt(self, gang: str, seconds: float = 5.0) -> None:
        """The scheduler announces that it will evict a gang."""
        why = "preempted for ns/other: queue default borrows from the quota of queue own"
        self.preempted[gang] = why, self.now + seconds

    def evict(self) -> None:
        """The scheduler evicts the announced gangs whose time has come."""
        for one in self.api.all("pods"):
            notes = one["metadata"].get("annotations", {})
            _, until = self.preempted.get(notes.get(GANG, ""), ("", math.inf))
            if self.now > until and one["spec"].get("nodeName"):
                self.drain(one["metadata"]["name"])

    def _bind(self, pod: Json, gpu: str) -> None:
        pod = copy.deepcopy(pod)
        plan = Plan({"main": ContainerPlan("whole", (gpu,), GPU_BYTES)})
        pod["metadata"].setdefault("annotations", {})[PLAN] = plan.encode()
        pod["spec"].pop("schedulingGates", None)
        pod["spec"]["nodeName"] = NODE
        pod.setdefault("status", {})["phase"] = "Pending"
        self.api.put("pods", pod)

    def free(self) -> list[str]:
        """The free GPUs; none if the kubelet has no devices to give."""
        node = self._view("nodes", Node).get(("", NODE), Node())
        if not any(int(count) for count in node.status.allocatable.values()):
            return []
        allocated = self._allocated()
        return [gpu for gpu in self.gpus() if gpu not in allocated]

    def lose_agent(self, **counts: int) -> None:
        """The node's agent is gone; its kubelet counts so many devices, or there is no Node."""
        self.report()
        node = self.api.delete("nodes", NODE)
        if node is not None and counts:
            status = {name: {GPU_NAME: str(count)} for name, count in counts.items()}
            self.api.put("nodes", {**node, "status": status})

    def _allocated(self) -> dict[str, NodeGrant]:
        """The grant on each allocated GPU."""
        return {
            gpu: NodeGrant(
                one["metadata"]["uid"], "ns", one["metadata"]["name"], "main", GPU_BYTES, 100
            )
            for one in self.api.all("pods")
            if one["spec"].get("nodeName") and not _over(one)
            for part in json.loads(one["metadata"]["annotations"][PLAN])["containers"].values()
            for gpu in part["gpus"]
        }

    def report(self) -> None:
        """The node agent publishes the grants."""
        allocated = self._allocated()
        gpus = tuple(
            msgspec.structs.replace(gpu, kind="whole", grants=(allocated[gpu.uuid],))
            if gpu.uuid in allocated
            else gpu
            for gpu in self._node.status.gpus
        )
        status = msgspec.structs.replace(self._node.status, gpus=gpus)
        if status != self._reported:
            self._reported = status
            node = msgspec.structs.replace(self._node, status=status)
            self.api.put_if_absent("nodes", node_json(NODE))
            self.api.put("gpunodes", as_json(GPU_NODES, node))

    def gpus(self) -> list[str]:
        return [gpu.uuid for gpu in self._node.status.gpus]

    def run_pods(self) -> None:
        """Run pods with a node; programs follow their notices; deleted pods end and disappear."""
        for one in self.api.all("pods"):
            meta = one["metadata"]
            if meta.get("deletionTimestamp"):
                if _over(one):
                    self.api.delete("pods", meta["name"], "ns")
                else:
                    self.exit(meta["name"], 0 if self.cooperative else 137)
                continue
            if not one["spec"].get("nodeName") or _over(one):
                continue
            if meta["name"] in self.stuck:
                waits = {"reason": "ImagePullBackOff", "message": "no such image"}
                state = [{"name": "main", "state": {"waiting": waits}}]
                self._set(meta["name"], {"containerStatuses": state})
            elif one["status"]["phase"] == "Pending":
                self._set(meta["name"], {"phase": "Running"})
            elif self.cooperative and meta.get("annotations", {}).get(NOTICE):
                told = json.loads(meta["annotations"][NOTICE])
                missed_notices = told["attempt"] <= self.missed_notices.get(meta["name"], 0)
                if missed_notices or self._runs_on(meta, told["size"]):
                    continue
                said = {"ready": told["generation"], "report": {"size": 2, "samples_per_second": 9}}
                self.exit(meta["name"], 0, said=said)
        self.report()

    def _runs_on(self, meta: Json, size: int) -> bool:
        """A live program ends only the workers above the new size."""
        job = self.api.objects.get(("elasticjobs", "ns", meta["labels"].get(JOB, "")), {})
        return bool(job["spec"].get("live")) and int(meta["labels"][JOB_RANK]) < size

    def exit(self, pod: str, code: int, *, said: object = None, reason: str = "") -> None:
        """A worker ends."""
        ended = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
        if said is not None:
            ended["message"] = said if isinstance(said, str) else json.dumps(said)
        state = [{"name": "main", "state": {"terminated": ended}}]
        self._set(pod, {"phase": "Failed" if code else "Succeeded", "containerStatuses": state})

    def _set(self, pod: str, status: Json) -> None:
        one = copy.deepcopy(self.api.objects["pods", "ns", pod])
        one["status"] = {**one.get("status", {}), **status}
        self.api.put("pods", one)

    # --- state ------------------------------------------------------------------------------------

    def status(self, name: str = "train") -> ElasticJobStatus:
        found = self.api.objects["elasticjobs", "ns", name].get("status", {})
        return msgspec.convert(found, ElasticJobStatus)

    def phase(self, name: str = "train") -> str:
        return self.status(name).phase

    def pods(self, job: str = "train") -> dict[str, Json]:
        return {
            one["metadata"]["name"]: one
            for one in self.api.all("pods")
            if one["metadata"]["name"].rpartition("-")[0] == job
        }

    def running(self, job: str = "train") -> dict[str, int]:
        """The generations of the running workers."""
        return {
            name: int(one["metadata"]["labels"].get(JOB_GENERATION, 0))
            for name, one in self.pods(job).items()
            if one["status"]["phase"] == "Running"
        }

    def conditions(self, name: str = "train") -> Iterator[tuple[str, str, str]]:
        return ((one.type, one.status, one.reason) for one in self.status(name).conditions)


def _over(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def _conflict(why: str) -> Response:
    return Response(json.dumps({"reason": "Conflict", "message": why}), 409)
