"""Who belongs to which gang, as pods come and go. No input or output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import membership_of, seconds_of
from aliquot.kubernetes.gangs.state import GangState

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.membership import GangKey

SINGLE = "pod "
ENDING = 5.0  # seconds that a pod's GPUs are still named when it is gone


@dataclass(frozen=True, slots=True)
class Work:
    """Whose GPUs a pod's are: a gang's, or its own; since when and for how long."""

    name: str
    start: float
    seconds: float
    queue: str = ""
    priority: int = 0


class Workloads:
    """All live pods that ask for GPUs, and the gangs that they are.

    `listeners` hear the UID of each pod that changes, with the name of the work that it is a part
    of, and was.
    """

    def __init__(
        self, queue_of: Callable[[Pod], str], asks: Callable[[Pod], bool], assumed: float
    ) -> None:
        self._queue_of = queue_of
        self._asks = asks
        self._assumed = assumed
        self.gangs: dict[GangKey, GangState] = {}
        self.pods: dict[str, Pod] = {}
        self.listeners: list[Callable[[str, str], None]] = []
        self._starts: dict[str, float] = {}
        self._seen_ending: dict[str, float] = {}

    def change(self, uid: str, pod: Pod | None, now: float) -> GangState | None:
        """A pod is now so; None: it is gone. The gang that it belongs to, or did."""
        before = self.pods.get(uid)
        gang = self._take_out(uid)
        if pod is None or pod.ended:
            self._starts.pop(uid, None)
        else:
            self._seen_ending.pop(uid, None)
            gang = self._put_in(uid, pod, now) or gang
        for name in {work_name(one) for one in (before, pod) if one is not None}:
            for hear in self.listeners:
                hear(uid, name)
        return gang

    def _take_out(self, uid: str) -> GangState | None:
        before = self.pods.pop(uid, None)
        gang = self.gang_of(before) if before is not None else None
        if gang is not None:
            gang.pods.pop(uid, None)
            gang.others.pop(uid, None)
            gang.version += 1
        return gang

    def _put_in(self, uid: str, pod: Pod, now: float) -> GangState | None:
        self.pods[uid] = pod
        times = (pod.status.start_time, pod.metadata.creation_timestamp)
        self._starts[uid] = next((at for one in times if (at := seconds_at(one))), now)
        claim = membership_of(pod)
        if claim is None:
            return None
        gang = self.gangs.setdefault(claim.key, GangState(claim.key))
        (gang.pods if self._asks(pod) else gang.others)[uid] = pod
        gang.version += 1
        return gang

    def gang_of(self, pod: Pod) -> GangState | None:
        """The gang of a pod, where one is known."""
        claim = membership_of(pod)
        return None if claim is None else self.gangs.get(claim.key)

    @property
    def ending(self) -> set[str]:
        """The UIDs of all that make room for gangs, and still have what they had."""
        return {uid for gang in self.gangs.values() for uid in gang.making_room}

    def seconds_of(self, pod: Pod) -> float:
        """How long a pod runs."""
        return seconds_of(pod, self._assumed)

    def work_of(self, gang: GangState, now: float) -> Work:
        """A gang, as something that runs."""
        starts = [self._starts[uid] for uid, one in gang.pods.items() if one.spec.node_name]
        some = next(iter((*gang.pods.values(), *gang.others.values())))
        return Work(
            name=str(gang.key),
            start=min(starts, default=now),
            seconds=gang.seconds(self._assumed),
            queue=self._queue_of(some),
            priority=gang.priority,
        )

    def forget(self, uid: str) -> None:
        """No node names a pod any more."""
        self._seen_ending.pop(uid, None)

    def name_of(self, uid: str) -> str:
        """What the work is called whose GPUs those of a UID are."""
        pod = self.pods.get(uid)
        return f"what is left of {uid}" if pod is None else work_name(pod)

    def work(self, uid: str, now: float) -> Work:
        """Whose GPUs those of a UID are.

        A node may name a pod that is gone: it ends soon, and the longer it does not the later.
        """
        pod = self.pods.get(uid)
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


def work_name(pod: Pod) -> str:
    """What a pod's work is called: its gang, or the pod itself."""
    claim = membership_of(pod)
    return single_name(pod) if claim is None else str(claim.key)


def single_name(pod: Pod) -> str:
    """What a pod that is in no gang is called among gangs."""
    return f"{SINGLE}{pod.key}"


def is_single(name: str) -> bool:
    """Whether that is the name of one: a gang's has no space."""
    return name.startswith(SINGLE)
