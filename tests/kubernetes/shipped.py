"""Facts about the programs, to compare with the files that are shipped with them."""

from __future__ import annotations

import ast
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import aliquot.kubernetes
from aliquot.kubernetes.api.client import Client
from aliquot.kubernetes.api.server import Credentials, Server
from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds
from aliquot.kubernetes.node.grants.allocations import NodeAllocations
from aliquot.kubernetes.node.metrics import COUNTERS, AllocationsCollector, CallMetrics
from aliquot.kubernetes.scheduler import Scheduler, SchedulerOptions
from aliquot.slices import prometheus as slice_metrics
from kubernetes.chart import Objects, objects

_ENDS = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
_REASON = re.compile(r"(?:[A-Z]+[a-z]+)+s?")
_SAYS = {
    "InvalidRequestError",
    "Answer",
    "say",
    "pod_event",
    "node_event",
    "record",
    "_say",
    "_refuse",
}


# --- in manifests ---------------------------------------------------------------------------------


def find(manifest: Objects, kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    (found,) = [one for one in manifest if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def container_of(one: dict[str, Any]) -> dict[str, Any]:
    """The one container that a Deployment or DaemonSet makes."""
    (container,) = one["spec"]["template"]["spec"]["containers"]
    return dict(container)


def pod_in(one: dict[str, Any]) -> dict[str, Any]:
    """The pod that an object is, or makes."""
    return one if one["kind"] == "Pod" else {"kind": "Pod", **one["spec"]["template"]}


def extender_of(manifest: Objects) -> dict[str, Any]:
    """What our kube-scheduler is told of the extender."""
    text = find(manifest, "ConfigMap", "aliquot-kube-scheduler")["data"]["config.yaml"]
    (config,) = objects(text)
    (extender,) = config["extenders"]
    return dict(extender)


# --- fields of a custom resource ------------------------------------------------------------------


def shape_of_schema(schema: dict[str, Any]) -> object:
    """The names of all fields, and which of them must be there."""
    if schema["type"] == "array":
        return [shape_of_schema(schema["items"])]
    if schema["type"] != "object" or "properties" not in schema:
        return None
    must = set(schema.get("required", ()))
    return {
        (name, name in must): shape_of_schema(one) for name, one in schema["properties"].items()
    }


def shape_of_type(kind: Any) -> object:
    """The same of a msgspec type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return [shape_of_type(arguments[0])]
    if origin in {typing.Union, types.UnionType}:
        return shape_of_type(next(one for one in arguments if one is not type(None)))
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    return {
        (field.encode_name, field.required): shape_of_type(field.type)
        for field in msgspec.structs.fields(kind)
    }


# --- in the code ----------------------------------------------------------------------------------


def metric_names() -> set[str]:
    """Every name that an agent or an extender may give to Prometheus."""
    names = _written(slice_metrics, r'"(aliquot_[a-z0-9_]+)"')
    names |= {f"{name}_total" for name in COUNTERS}
    node = CallMetrics()
    allocations = NodeAllocations([], 2)
    node.registry.register(AllocationsCollector(allocations, DeviceIds(allocations, []), {}))
    scheduler = Scheduler(Client(Server("http://nowhere", Credentials())), SchedulerOptions())
    for registry in (node.registry, scheduler._metrics.registry):
        for family in registry.collect():
            names |= {family.name + end for end in _ENDS.get(family.type, [""])}
    return names


def _written(module: types.ModuleType, pattern: str) -> set[str]:
    assert module.__file__
    return set(re.findall(pattern, Path(module.__file__).read_text("utf-8")))


def event_reasons() -> set[str]:
    """The words that our events have as their reason: what is given to those that say them."""
    (folder,) = aliquot.kubernetes.__path__
    return {
        word.value
        for path in Path(folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for given in _given(node)
        for word in ast.walk(given)
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
        if _REASON.fullmatch(word.value) and word.value not in {"Normal", "Warning"}
    }


def _given(node: ast.AST) -> Iterator[ast.AST]:
    """What a call that says something is given, and what is kept as `reason`."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in _SAYS:
            yield from (one for one in node.args if isinstance(one, (ast.Constant, ast.IfExp)))
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "reason" for target in node.targets
    ):
        yield node.value
