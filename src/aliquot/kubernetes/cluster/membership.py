"""Which gang a pod belongs to, by what people write. Pure.

    aliquot.io/gang, aliquot.io/gang-size     labels or annotations on pods
    scheduling.x-k8s.io/pod-group             label: a PodGroup of scheduler-plugins
    scheduling.k8s.io/group-name              annotation: a PodGroup of Volcano
    jobset.sigs.k8s.io/jobset-name            label that JobSet writes
    ray.io/cluster                            label that KubeRay writes
    leaderworkerset.sigs.k8s.io/group-key     label that LeaderWorkerSet writes: one for each group
    training.kubeflow.org/job-name            label that Kubeflow's training operator writes
    aliquot.io/preempts                       annotation that the scheduler writes on a single pod

The first of these that a pod has counts. Where no pod says the size, the object that is named knows
it (`Source`; `gangs.sizes` reads it). Kubernetes' own PodGroups (scheduling.k8s.io, alpha) would be
one more line of `BY_LABEL`, once pods name theirs. An Indexed Job is a gang only by Aliquot's
label: most are sweeps whose pods need not run together.

`aliquot.io/gang: none` makes a pod that belongs to one of the others a single pod.

A single pod that may preempt others is a gang of one from then on (`gangs.preempting`): its
annotation names its UID, so a copy of it in another pod has no effect.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.decode import shortened, whole_number
from aliquot.kubernetes.api.names import DURATION, GANG, GANG_SIZE, GATE, PLACEHOLDER, PREEMPTS
from aliquot.kubernetes.api.requests import InvalidRequestError

if TYPE_CHECKING:
    from aliquot.kubernetes.api.objects import Pod

NONE = "none"
LARGEST = 10_000
POD_GROUP = "scheduling.x-k8s.io/pod-group"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
JOBSET = "jobset.sigs.k8s.io/jobset-name"
RAY = "ray.io/cluster"
RAY_NODE = "ray.io/node-type"
RAY_NODES = {"head", "worker"}  # not the pod that cleans up its Redis
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-key"
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
LWS_SET = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
KUBEFLOW = "training.kubeflow.org/job-name"
KUBEFLOW_JOBS = {
    "PyTorchJob": "pytorchjobs",
    "TFJob": "tfjobs",
    "MPIJob": "mpijobs",
    "XGBoostJob": "xgboostjobs",
    "PaddleJob": "paddlejobs",
    "JAXJob": "jaxjobs",
}

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,198}[a-z0-9])?", re.ASCII)
_UNFIT = re.compile(r"[^a-z0-9.-]+", re.ASCII)
_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd]?)", re.ASCII)
LONGEST_SECONDS = 3650 * 86400.0
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Source:
    """The object, in the pod's namespace, that knows a gang's size."""

    api_version: str
    kind: str
    plural: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True)
class GangKey:
    """A gang: its namespace and its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Membership:
    """What a pod says of its gang: its size, or who knows it; or what is invalid in it.

    `leads`: it is the leader of its group, which may have to run before the others are created.
    `single`: it is a single pod that preempts others.
    """

    key: GangKey
    size: int | None = None
    source: Source | None = None
    problem: str = ""
    leads: bool = False
    single: bool = False


BY_LABEL = {
    POD_GROUP: ("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups"),
    VOLCANO_GROUP: ("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups"),
    JOBSET: ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"),
    RAY: ("ray.io/v1", "RayCluster", "rayclusters"),
}

# Labels and annotations that decide which gang a pod belongs to. The policy of queues in the chart
# lets nobody change them on a pod that has a node.
MEMBERSHIP_KEYS = (
    GANG,
    GANG_SIZE,
    *BY_LABEL,
    RAY_NODE,
    LWS_GROUP,
    LWS_NAME,
    LWS_INDEX,
    LWS_WORKER,
    LWS_SIZE,
    KUBEFLOW,
    PREEMPTS,
)


def membership_of(pod: Pod) -> Membership | None:
    """The gang that a pod belongs to; None for a single pod that preempts nobody."""
    meta = pod.metadata
    labels, notes = meta.labels, meta.annotations
    own = notes.get(GANG) or labels.get(GANG)
    if own:
        if own == NONE:
            return _preempting(pod)
        size, problem = _size(notes.get(GANG_SIZE) or labels.get(GANG_SIZE))
        key = GangKey(meta.namespace, object_name(own))
        return Membership(key, size, problem=problem)
    for label, (version, kind, plural) in BY_LABEL.items():
        name = labels.get(label) or notes.get(label)
        if name and (label != RAY or labels.get(RAY_NODE) in RAY_NODES):
            source = Source(version, kind, plural, name)
            return Membership(GangKey(meta.namespace, object_name(name)), source=source)
    return _leader_worker_group(pod) or _kubeflow(pod) or _preempting(pod)


def _preempting(pod: Pod) -> Membership | None:
    meta = pod.metadata
    if not meta.uid or meta.annotations.get(PREEMPTS) != meta.uid:
        return None
    return Membership(GangKey(meta.namespace, object_name(f"pod.{meta.name}")), 1, single=True)


def _leader_worker_group(pod: Pod) -> Membership | None:
    """A group of a LeaderWorkerSet, under the name that its leader's pod has too."""
    meta = pod.metadata
    name, index = meta.labels.get(LWS_NAME), meta.labels.get(LWS_INDEX)
    if not (meta.labels.get(LWS_GROUP) and name and index):
        return None
    size, problem = _size(meta.annotations.get(LWS_SIZE), LWS_SIZE)
    key = GangKey(meta.namespace, object_name(f"{name}-{index}"))
    leads = meta.labels.get(LWS_WORKER) == "0"
    return Membership(key, size, Source(*LWS_SET, name), problem, leads)


def _kubeflow(pod: Pod) -> Membership | None:
    name = pod.metadata.labels.get(KUBEFLOW)
    if not name:
        return None
    for owner in pod.metadata.owner_references:
        plural = KUBEFLOW_JOBS.get(owner.kind)
        if plural is not None and owner.api_version.startswith("kubeflow.org/"):
            source = Source(owner.api_version, owner.kind, plural, owner.name)
            return Membership(GangKey(pod.metadata.namespace, object_name(name)), source=source)
    return None


def is_placeholder(pod: Pod) -> bool:
    """Whether it only asks an autoscaler for nodes. One that got a node is a pod like any other."""
    return PLACEHOLDER in pod.metadata.labels and not pod.spec.node_name


def is_gated(pod: Pod) -> bool:
    """Whether our gate keeps it from kube-scheduler."""
    return any(one.name == GATE for one in pod.spec.scheduling_gates)


def foreign_gates(pod: Pod) -> tuple[str, ...]:
    """The gates of others: Kueue's, for one."""
    return tuple(one.name for one in pod.spec.scheduling_gates if one.name != GATE)


def seconds_of(pod: Pod, assumed: float) -> float:
    """How long a pod runs, by its own word; else as long as is assumed."""
    return declared_seconds(pod) or float(pod.spec.active_deadline_seconds or assumed)


def declared_seconds(pod: Pod) -> float | None:
    """How long a pod runs by its annotation, which nobody enforces; None if it does not say it."""
    return _duration(pod.metadata.annotations.get(DURATION, ""))


def check_duration(pod: Pod) -> None:
    """InvalidRequestError where a pod says how long it runs, and that is invalid."""
    text = pod.metadata.annotations.get(DURATION)
    if text is not None and _duration(text) is None:
        raise InvalidRequestError(
            "InvalidAnnotation",
            f"the annotation {DURATION} is {text!r}, which is not a valid duration",
            "Write a number with s, m, h or d, for example 90s, 30m, 2h or 14d; 3650d is the most.",
        )


def _duration(text: str) -> float | None:
    """The seconds that a text says; None if it is invalid."""
    said = _DURATION.fullmatch(text.strip())
    seconds = float(said["number"]) * _SECONDS[said["unit"]] if said is not None else 0.0
    return seconds if 0 < seconds <= LONGEST_SECONDS else None


def object_name(name: str) -> str:
    """The name of the Gang object: the gang's own, where an object can have it."""
    if _NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{_UNFIT.sub('-', name.lower()).strip('-.')[:180] or 'gang'}-{digest}"


def _size(text: str | None, name: str = GANG_SIZE) -> tuple[int | None, str]:
    if text is None:
        return None, f"no member says its size. Write {name}, the number of its pods."
    number = whole_number(text.strip())
    if number is not None and 1 <= number <= LARGEST:
        return number, ""
    said = shortened(repr(text))
    return None, f"{name} is {said}. Write the number of its pods, 1 to {LARGEST}."
