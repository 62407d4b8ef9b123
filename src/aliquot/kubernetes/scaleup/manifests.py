"""The objects that ask an autoscaler for nodes. Pure.

*Placeholder pods*, for Karpenter: one for each unit, with an affinity away from nodes with the
label `aliquot.io/counted`. Karpenter accepts no requirement on host names. The extender never gives
a placeholder a node, so it holds no GPUs.

*ProvisioningRequests*, for the cluster-autoscaler: one for each gang or single pod, so that it can
scale up for all of a gang or for nothing, with the host names of existing nodes in the template of
its pods. A label would not do there: the cluster-autoscaler takes existing nodes as models of new
ones, with their labels.

Names follow from the content. So the next leader asks for the same objects, and a change makes
others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api.names import COUNTED, PLACEHOLDER, SCHEDULER
from aliquot.kubernetes.api.objects import Meta, Resource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.kubernetes.scaleup.units import Unit

HOSTNAME = "kubernetes.io/hostname"
IMAGE = "registry.k8s.io/pause:3.10"
OURS = {PLACEHOLDER: "true", "app.kubernetes.io/managed-by": SCHEDULER}
SELECTOR = f"{PLACEHOLDER}=true"


class Manifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object that asks: a Pod, a PodTemplate or a ProvisioningRequest."""

    metadata: Meta = Meta()
    spec: dict[str, Any] = {}
    template: dict[str, Any] = {}
    status: dict[str, Any] = {}


PLACEHOLDERS = Resource(Manifest, "v1", "Pod", "pods")
TEMPLATES = Resource(Manifest, "v1", "PodTemplate", "podtemplates")
REQUESTS = Resource(
    Manifest, "autoscaling.x-k8s.io/v1", "ProvisioningRequest", "provisioningrequests"
)


def placeholders(
    units: Iterable[Unit], namespace: str, resource: str, profile: str
) -> list[Manifest]:
    """A pod for each unit. `profile` is the scheduler that says why it does not run."""
    away = {"key": COUNTED, "operator": "DoesNotExist"}
    counts: Counter[str] = Counter()
    found = []
    for unit in units:
        spec = _pod_spec(unit, resource, profile, away)
        digest = _digest(spec)
        found.append(Manifest(_meta(f"{digest}-{counts[digest]}", namespace), spec))
        counts[digest] += 1
    return found


def provisioning_requests(
    work: Mapping[str, Collection[Unit]], namespace: str, resource: str, form: RequestForm
) -> tuple[list[Manifest], list[Manifest]]:
    """The templates of pods, and a request for each gang or single pod."""
    away = {"key": HOSTNAME, "operator": "NotIn", "values": sorted(form.hosts)}
    templates: dict[str, Manifest] = {}
    requests = []
    for name, units in work.items():
        sets = []
        for unit, count in Counter(units).items():
            spec = _pod_spec(unit, resource, form.profile, away if form.hosts else None)
            meta = _meta(_digest(name, spec), namespace)
            templates[meta.name] = Manifest(meta, template={"metadata": {}, "spec": spec})
            sets.append({"podTemplateRef": {"name": meta.name}, "count": count})
        body = {"provisioningClassName": form.request_class, "podSets": sets}
        requests.append(Manifest(_meta(_digest(name, body), namespace), body))
    return list(templates.values()), requests


class RequestForm(msgspec.Struct, frozen=True):
    """How the cluster-autoscaler is asked: its class, and the hosts that exist already."""

    request_class: str
    profile: str
    hosts: frozenset[str] = frozenset()


def _pod_spec(
    unit: Unit, resource: str, profile: str, away: Mapping[str, Any] | None
) -> dict[str, Any]:
    requests = {resource: str(unit.gpus)}
    if unit.cpu_milli:
        requests["cpu"] = f"{unit.cpu_milli}m"
    if unit.ram_bytes:
        requests["memory"] = str(unit.ram_bytes)
    spec: dict[str, Any] = {
        "schedulerName": profile,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": "placeholder",
                "image": IMAGE,
                "resources": {"requests": requests, "limits": {resource: str(unit.gpus)}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "runAsNonRoot": True,
                    "runAsUser": 65535,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ],
    }
    if unit.limits.labels:
        spec["nodeSelector"] = dict(unit.limits.labels)
    if unit.limits.tolerations:
        spec["tolerations"] = msgspec.to_builtins(unit.limits.tolerations)
    terms = _terms(unit, away)
    if terms:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return spec


def _terms(unit: Unit, away: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The node affinity of the pods that wait, away from existing nodes."""
    more = [dict(away)] if away else []
    own = unit.limits.terms
    if own is None:
        return [{"matchExpressions": more}] if more else []
    terms = [msgspec.to_builtins(one) for one in own.node_selector_terms]
    return [{**one, "matchExpressions": [*one.get("matchExpressions", ()), *more]} for one in terms]


def _meta(digest: str, namespace: str) -> Meta:
    return Meta(name=f"{SCHEDULER}-placeholder-{digest}", namespace=namespace, labels=dict(OURS))


def _digest(*parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:12]
