"""The workloads of a cluster: the pods that request GPUs, and the gangs that they form.

Only facts that the API server reported: what the gang controller has decided about a gang is in
`kubernetes.gangs`. No input or output.

Nobody enforces a declared duration. So while a pod runs for more than twice as long as it declared,
and for as long again as it overran, the durations that its namespace declares are not believed:
waiting work of that namespace counts at least as long as work that declares nothing. A running pod
is held to the shortest duration that it declared since it had a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.admission import admitted_queue
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import declared_seconds, membership_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.membership import GangKey, Membership, Source

SINGLE = "pod "
ENDING = 5.0  # seconds that a node may go on naming a pod that is gone
TOLERATED_SECONDS = 60.0  # that a pod may overrun at least


@dataclass(frozen=True, slots=True)
class Work:
    """A gang or a single pod as something that runs: since when and for how long."""

    name: str
    start: float
    seconds: float
    queue: str = ""
    priority: int = 0


@dataclass(frozen=True)
class GangPods:
    """The live pods of one gang, by UID: `pods` request GPUs, `others` do not.

    `version` is another number after each change, also if the gang was gone in between.
    """

    key: GangKey
    pods: Mapping[str, Pod]
    others: Mapping[str, Pod]
    version: int

    @property
    def every(self) -> tuple[Pod, ...]:
        """Those that request GPUs, then those that do not."""
        return (*self.pods.values(), *self.others.values())

    @cached_property
    def lead(self) -> Pod:
        """The pod whose queue is the gang's: the first that was admitted under one, else the first.

        Terminating pods come last: they may be of an earlier run.
        """
        return min(self.every, key=self._precedence)

    def _precedence(self, pod: Pod) -> tuple[bool, bool, bool, int, str]:
        meta = pod.metadata
        return (
            bool(meta.deletion_timestamp),
            not admitted_queue(pod),
            meta.uid in self.others,
            len(meta.name),
            meta.name,
        )

    @cached_property
    def members(self) -> list[Pod]:
        """Pods that request GPUs and are not terminating, in the order of their names."""
        live = (one for one in self.pods.values() if not one.metadata.deletion_timestamp)
        return sorted(live, key=lambda one: (len(one.metadata.name), one.metadata.name))

    @cached_property
    def unbound(self) -> list[Pod]:
        """Members without a node."""
        return [one for one in self.members if not one.spec.node_name]

    @cached_property
    def active(self) -> list[Pod]:
        """Members with a node."""
        return [one for one in self.members if one.spec.node_name]

    @property
    def only_leader_is_active(self) -> bool:
        """Whether the only member with a node is the leader of its group."""
        members = [membership_of(one) for one in self.active]
        return len(members) == 1 and members[0] is not None and members[0].leads

    @cached_property
    def bound(self) -> list[Pod]:
        """Pods with a node, also those that are terminating."""
        return [one for one in self.pods.values() if one.spec.node_name]

    @cached_property
    def memberships(self) -> list[Membership]:
        """What its pods say about the gang."""
        every = (*self.members, *self.others.values())
        return [one for pod in every if (one := membership_of(pod)) is not None]

    @property
    def is_single(self) -> bool:
        """Whether it is a single pod that preempts others."""
        return any(one.single for one in self.memberships)

    @property
    def source(self) -> Source | None:
        """The object that knows the gang's size, if its pods do not say it."""
        return next((one.source for one in self.memberships if one.source), None)

    @cached_property
    def priority(self) -> int:
        """The highest priority of its pods."""
        return max((one.spec.priority or 0 for one in self.pods.values()), default=0)

    def seconds(self, assumed: float) -> float:
        """How long the gang runs: as long as the longest of its pods."""
        return max((seconds_of(one, assumed) for one in self.pods.values()), default=assumed)


class Workloads:
    """All live pods that request GPUs, and their gangs.

    `listeners` hear the UID of each pod that changes, and the name of its work before and after.
    """

    def __init__(
        self, queue_of: Callable[[Pod], str], asks: Callable[[Pod], bool], assumed: float
    ) -> None:
        self._queue_of = queue_of
        self._asks = asks
        self._assumed = assumed
        self._gangs: dict[GangKey, GangPods] = {}
        self._pods: dict[str, Pod] = {}
        self._version = 0
        self._starts: dict[str, float] = {}
        self._seen_ending: dict[str, float] = {}
        self._declared: dict[str, dict[str, float]] = {}  # of pods with nodes, by namespace and UID
        self._disbelieved: dict[str, float] = {}  # until when, by namespace
        self.listeners: list[Callable[[str, str], None]] = []

    @property
    def gangs(self) -> Mapping[GangKey, GangPods]:
        """All gangs that have pods."""
        return self._gangs

    @property
    def pods(self) -> Mapping[str, Pod]:
        """All pods, by UID."""
        return self._pods

    def change(self, uid: str, pod: Pod | None, now: float) -> set[GangKey]:
        """Record a pod as it is now; None if it is gone. The gangs that changed."""
        before, declared = self._pods.pop(uid, None), None
        if before is not None:
            declared = self._forget_duration(uid, before, now)
            self._remove(uid, before)
        if pod is None or pod.ended:
            self._starts.pop(uid, None)
        else:
            self._seen_ending.pop(uid, None)
            self._add(uid, pod, now, declared)
        both = [one for one in (before, pod) if one is not None]
        for name in set(map(work_name, both)):
            for hear in self.listeners:
                hear(uid, name)
        return {one.key for one in map(membership_of, both) if one is not None}

    def gang_of(self, pod: Pod) -> GangPods | None:
        """The gang of a pod."""
        membership = membership_of(pod)
        return None if membership is None else self._gangs.get(membership.key)

    def seconds_of(self, pod: Pod) -> float:
        """How long a pod runs."""
        return seconds_of(pod, self._assumed)

    def waiting_seconds(self, namespace: str, seconds: float, now: float) -> float:
        """How long waiting work runs that says so many seconds, as far as it is believed."""
        return max(seconds, self._assumed) if self.disbelieves(namespace, now) else seconds

    def disbelieves(self, namespace: str, now: float) -> bool:
        """Whether durations that a namespace declares are not believed now."""
        for uid, seconds in self._declared.get(namespace, {}).items():
            self._note_overrun(namespace, now - self._starts[uid] - seconds, seconds, now)
        if self._disbelieved.get(namespace, now) <= now:
            self._disbelieved.pop(namespace, None)
        return namespace in self._disbelieved

    def _note_overrun(self, namespace: str, late: float, seconds: float, now: float) -> None:
        """A pod that declared so many seconds has run for `late` seconds more."""
        if late > max(seconds, TOLERATED_SECONDS):
            until = max(now + late, self._disbelieved.get(namespace, now))
            self._disbelieved[namespace] = until

    def _forget_duration(self, uid: str, pod: Pod, now: float) -> float | None:
        """Forget the duration that a running pod is held to; the seconds, if there is one."""
        namespace = pod.metadata.namespace
        mine = self._declared.get(namespace, {})
        seconds = mine.pop(uid, None)
        if seconds is not None:
            self._note_overrun(namespace, now - self._starts[uid] - seconds, seconds, now)
            if not mine:
                del self._declared[namespace]
        return seconds

    def work_of(self, gang: GangPods, now: float) -> Work:
        """A gang as something that runs."""
        starts = [self._starts[uid] for uid, one in gang.pods.items() if one.spec.node_name]
        return Work(
            name=str(gang.key),
            start=min(starts, default=now),
            seconds=gang.seconds(self._assumed),
            queue=self._queue_of(gang.lead),
            priority=gang.priority,
        )

    def forget(self, uid: str) -> None:
        """No node names a pod any more."""
        self._seen_ending.pop(uid, None)

    def name_of(self, uid: str) -> str:
        """The name of the work that a pod belongs to."""
        pod = self._pods.get(uid)
        return f"a deleted pod that still has GPUs (UID {uid})" if pod is None else work_name(pod)

    def work(self, uid: str, now: float) -> Work:
        """The work that a pod belongs to.

        A node may name a pod that is gone: it is expected to end soon, again and again.
        """
        pod = self._pods.get(uid)
        if pod is None:
            since = self._seen_ending.setdefault(uid, now)
            return Work(self.name_of(uid), since, ENDING)
        gang = self.gang_of(pod)
        if gang is not None:
            return self.work_of(gang, now)
        return Work(
            name=work_name(pod),
            start=self._starts[uid],
            seconds=self.seconds_of(pod),
            queue=self._queue_of(pod),
            priority=pod.spec.priority or 0,
        )

    def _add(self, uid: str, pod: Pod, now: float, declared: float | None) -> None:
        """Record a pod; `declared` is the duration that it was held to before."""
        self._pods[uid] = pod
        times = (pod.status.start_time, pod.metadata.creation_timestamp)
        self._starts[uid] = next((at for one in times if (at := seconds_at(one))), now)
        both = (one for one in (declared_seconds(pod), declared) if one is not None)
        seconds = min(both, default=None)
        leaving = pod.metadata.deletion_timestamp is not None  # a dead node keeps it for long
        if seconds is not None and pod.spec.node_name and not leaving:
            self._declared.setdefault(pod.metadata.namespace, {})[uid] = seconds
        membership = membership_of(pod)
        if membership is None:
            return
        gang = self._gangs.get(membership.key)
        pods, others = (dict(gang.pods), dict(gang.others)) if gang is not None else ({}, {})
        (pods if self._asks(pod) else others)[uid] = pod
        self._put(membership.key, pods, others)

    def _remove(self, uid: str, before: Pod) -> None:
        gang = self.gang_of(before)
        if gang is None:
            return
        pods, others = dict(gang.pods), dict(gang.others)
        pods.pop(uid, None)
        others.pop(uid, None)
        self._put(gang.key, pods, others)

    def _put(self, key: GangKey, pods: dict[str, Pod], others: dict[str, Pod]) -> None:
        self._version += 1
        if pods or others:
            self._gangs[key] = GangPods(key, pods, others, self._version)
        else:
            self._gangs.pop(key, None)


def work_name(pod: Pod) -> str:
    """The name of a pod's work: its gang, or the pod itself."""
    membership = membership_of(pod)
    return single_name(pod) if membership is None else str(membership.key)


def single_name(pod: Pod) -> str:
    """The name of a pod that is in no gang."""
    return f"{SINGLE}{pod.key}"


def is_single(name: str) -> bool:
    """Whether a name is that of a single pod: the name of a gang has no space."""
    return name.startswith(SINGLE)
