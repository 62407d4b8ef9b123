"""A replica of the scheduler over a fake API server, called as kube-scheduler calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from aliquot.kubernetes.api.gpunode import NodeGrant
from aliquot.kubernetes.api.leader import LeaseTimes
from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.objects import GPU_NODES, PODS, GpuNode, Pod
from aliquot.kubernetes.api.plan import Plan, decode_plan
from aliquot.kubernetes.scheduler import Scheduler, SchedulerOptions
from kubernetes.builders import node_json
from kubernetes.fake_api import FakeApi, as_json, until
from kubernetes.handler_transport import HandlerTransport

OFTEN = LeaseTimes(retry=0.05)


class Replica:
    """A scheduler that runs, and kube-scheduler's side of the talk."""

    def __init__(self, scheduler: Scheduler, api: FakeApi) -> None:
        self.scheduler = scheduler
        self._api = api
        transport = HandlerTransport(scheduler.handler)
        self._http = httpx2.AsyncClient(transport=transport, base_url="http://extender")

    async def get(self, path: str) -> httpx2.Response:
        return await self._http.get(path)

    async def post(self, path: str, body: Any) -> httpx2.Response:
        return await self._http.post(path, content=msgspec.json.encode(body))

    async def ready(self) -> None:
        await until(lambda: not self.scheduler.why_not())

    async def filter(self, pod: Pod, *names: str) -> dict[str, Any]:
        return await self._answer("/filter", self._args(pod, names))

    async def prioritize(self, pod: Pod, *names: str) -> list[dict[str, Any]]:
        return await self._answer("/prioritize", self._args(pod, names))  # type: ignore[return-value]

    async def bind(self, pod: Pod, node: str) -> str:
        meta = pod.metadata
        body = {
            "PodName": meta.name,
            "PodNamespace": meta.namespace,
            "PodUID": meta.uid,
            "Node": node,
        }
        answer = await self._answer("/bind", body)
        return str(answer["Error"])

    def _args(self, pod: Pod, names: Iterable[str]) -> dict[str, Any]:
        """What kube-scheduler sends about a pod, which the API server has."""
        self._api.put_if_absent("pods", as_json(PODS, pod))
        return {"Pod": as_json(PODS, pod), "Nodes": None, "NodeNames": list(names)}

    async def _answer(self, path: str, body: Any) -> dict[str, Any]:
        answer = await self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]


@asynccontextmanager
async def replica(api: FakeApi, **options: Any) -> AsyncIterator[Replica]:
    async with api.client() as client:
        scheduler = Scheduler(client, SchedulerOptions(namespace="ns", times=OFTEN, **options))
        running = asyncio.create_task(scheduler.run())
        try:
            yield Replica(scheduler, api)
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()  # it ended by itself: with what it raised


def put_pod(api: FakeApi, pod: Pod) -> Pod:
    kept = api.put("pods", as_json(PODS, pod))
    return msgspec.convert(kept, Pod)


def put_node(api: FakeApi, node: GpuNode) -> None:
    """A node with GPUs: its GPUNode, and its Node unless a test has made one."""
    api.put_if_absent("nodes", node_json(node.metadata.name))
    api.put("gpunodes", as_json(GPU_NODES, node))


def pod_in(api: FakeApi, name: str) -> Pod:
    return msgspec.convert(api.objects["pods", "ns", name], Pod)


def plan_in(api: FakeApi, name: str) -> Plan:
    plan = decode_plan(pod_in(api, name).metadata.annotations[PLAN])
    assert plan is not None
    return plan


def report(api: FakeApi, name: str, node: str = "n1") -> None:
    """The agent names a bound pod in its GPUNode, as planned."""
    pod, plan = pod_in(api, name), plan_in(api, name)
    body = api.objects["gpunodes", "", node]
    for gpu in body["status"]["gpus"]:
        for name_in_pod, part in plan.containers.items():
            if gpu["uuid"] in part.gpus:
                meta = pod.metadata
                held = NodeGrant(meta.uid, "ns", name, name_in_pod, part.memory, part.compute)
                gpu["kind"] = part.kind
                gpu["grants"] = [*gpu.get("grants", ()), msgspec.to_builtins(held)]
    api.put("gpunodes", body)
