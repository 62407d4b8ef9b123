"""Resource claims, classes and pods as the API server has them, and a scheduler that allocates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from aliquot.kubernetes.api.dra import DRIVER, ResourceClaim
from aliquot.kubernetes.api.gpunode import BY_ALIQUOT
from aliquot.kubernetes.api.names import RESOURCE_CLAIMS_GATE
from aliquot.kubernetes.api.objects import GpuNode
from kubernetes.builders import make_node
from kubernetes.extender.replica import Replica, put_node, replica
from kubernetes.fake_api import FakeApi

Json = dict[str, Any]
KINDS = {"slice": "sliced", "shared": "shared", "whole": "whole"}


def a_node(name: str = "n1", gpus: int = 2, *, by: str = BY_ALIQUOT, **more: Any) -> GpuNode:
    """A node whose GPUs are for resource claims."""
    one = make_node(name, gpus, **more)
    return GpuNode(one.metadata, msgspec.structs.replace(one.status, allocator=by))


def device_class(name: str, *expressions: str, config: tuple[Json, ...] = ()) -> Json:
    selectors = [{"cel": {"expression": one}} for one in expressions]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors, "config": list(config)}}


def shipped_class(kind: str, **more: Any) -> Json:
    """A class as the chart has it."""
    expression = (
        f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "{KINDS[kind]}"'
    )
    return device_class(f"{kind}.{DRIVER}", expression, **more)


def request(kind: str = "slice", *selectors: str, name: str = "gpu", **more: Any) -> Json:
    """A request; amounts are `memory` and `compute`."""
    exactly: Json = {
        "deviceClassName": f"{kind}.{DRIVER}",
        "allocationMode": "ExactCount",
        "count": more.pop("count", 1),
        "selectors": [{"cel": {"expression": one}} for one in selectors],
    }
    amounts = {one: more.pop(one) for one in ("memory", "compute") if one in more}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    return {"name": name, "exactly": exactly | more}


def claim(name: str, *requests: Json, pod: str = "", **devices: Any) -> Json:
    """A claim; that of a pod if it was made from the pod's template."""
    meta: Json = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}"}
    if pod:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}"}
        meta["ownerReferences"] = [{**owner, "controller": True}]
    return {"metadata": meta, "spec": {"devices": {"requests": list(requests), **devices}}}


def pod(name: str, *claims: str, gated: bool = True, made: bool = True, **more: Any) -> Json:
    """A pod with these claims, made from templates or by themselves."""
    names = [f"c{number}" for number, _ in enumerate(claims)]
    how = "resourceClaimTemplateName" if made else "resourceClaimName"
    pairs = list(zip(names, claims, strict=True))
    spec: Json = {
        "containers": [{"name": "main", "resources": {"claims": [{"name": n} for n in names]}}],
        "resourceClaims": [{"name": n, how: "template" if made else c} for n, c in pairs],
    }
    if gated:
        spec["schedulingGates"] = [{"name": RESOURCE_CLAIMS_GATE}]
    statuses = [{"name": n, "resourceClaimName": c} for n, c in pairs] if made else []
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", **more.pop("metadata", {})}
    return {
        "metadata": meta,
        "spec": {**spec, **more},
        "status": {"phase": "Pending", "resourceClaimStatuses": statuses},
    }


class World:
    """The API server, and what its objects say."""

    def __init__(self, api: FakeApi, one: Replica) -> None:
        self.api = api
        self.replica = one

    def ask(self, name: str, *requests: Json, **more: Any) -> None:
        """A pod with one claim of the same name, made from a template."""
        self.api.put("resourceclaims", claim(name, *requests, pod=name))
        self.api.put("pods", pod(name, name, **more))

    def claim(self, name: str) -> ResourceClaim:
        return msgspec.convert(self.json(name), ResourceClaim)

    def json(self, name: str) -> Json:
        return self.api.objects["resourceclaims", "ns", name]

    def devices(self, name: str) -> list[str]:
        """The devices that a claim has; none before it is allocated."""
        allocation = self.claim(name).status.allocation
        return [one.device for one in allocation.devices.results] if allocation else []

    def node(self, name: str) -> str:
        """The node that a claim's allocation allows."""
        allocation = self.json(name)["status"]["allocation"]
        (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
        (field,) = term["matchFields"]
        assert (field["key"], field["operator"]) == ("metadata.name", "In")
        return str(field["values"][0])

    def is_gated(self, name: str) -> bool:
        return bool(self.api.objects["pods", "ns", name]["spec"].get("schedulingGates"))

    def events(self, name: str) -> dict[str, str]:
        """The messages about a pod, by reason."""
        return {
            one["reason"]: one["message"]
            for one in self.api.all("events")
            if one["involvedObject"]["name"] == name
        }

    def reserve(self, name: str, node: str, pods: tuple[str, ...] = (), binds: str = "") -> None:
        """As kube-scheduler does: reserve the pod's claim, and bind the pod."""
        one, bound = self.json(name), binds or name
        reserved = [
            {"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods or (bound,)
        ]
        self.api.put(
            "resourceclaims", {**one, "status": {**one["status"], "reservedFor": reserved}}
        )
        found = self.api.objects["pods", "ns", bound]
        self.api.put("pods", {**found, "spec": {**found["spec"], "nodeName": node}})

    def take_back(self, name: str) -> None:
        """As kube-scheduler does if a pod does not fit the node of its claim."""
        one = self.json(name)
        self.api.put("resourceclaims", {**one, "status": {}})

    def report(self, name: str, node: str, gpu: int, memory: int, pod: str = "") -> None:
        """As the node's agent does when the claim is prepared."""
        body = self.api.objects["gpunodes", "", node]
        grant = {
            "podUID": f"uid-{pod or name}",
            "namespace": "ns",
            "pod": pod or name,
            "container": "",
            "claim": name,
            "claimUID": f"uid-of-{name}",
            "memory": memory,
        }
        body["status"]["gpus"][gpu]["kind"] = "sliced"
        body["status"]["gpus"][gpu].setdefault("grants", []).append(grant)
        self.api.put("gpunodes", body)


Play = Callable[[World], Coroutine[Any, Any, None]]


def played(play: Play, *nodes: GpuNode, **options: Any) -> None:
    """With these nodes, or one of two GPUs, the shipped classes, and a scheduler that is ready."""

    async def run() -> None:
        api = FakeApi()
        for node in nodes or (a_node(),):
            put_node(api, node)
        for kind in KINDS:
            api.put("deviceclasses", shipped_class(kind))
        async with api.serving(), replica(api, resource_claims=True, **options) as one:
            await one.ready()
            await play(World(api, one))

    asyncio.run(run())
