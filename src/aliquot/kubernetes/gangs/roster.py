"""Who belongs to which gang, as pods come and go. No input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.gangs.members import claim_of, seconds_of
from aliquot.kubernetes.gangs.picture import Work
from aliquot.kubernetes.gangs.state import Known
from aliquot.kubernetes.gangs.words import seconds_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.gangs.members import Key

ENDING = 5.0  # seconds that a pod's GPUs are still named when it is gone


class Roster:
    """All live pods that ask for GPUs, and the gangs that they are."""

    def __init__(
        self, queue_of: Callable[[Pod], str], asks: Callable[[Pod], bool], assumed: float
    ) -> None:
        self._queue_of = queue_of
        self._asks = asks
        self._assumed = assumed
        self.gangs: dict[Key, Known] = {}
        self.pods: dict[str, Pod] = {}
        self._starts: dict[str, float] = {}
        self._seen_ending: dict[str, float] = {}

    def change(self, uid: str, pod: Pod | None, now: float) -> Known | None:
        """A pod is now so; None: it is gone. The gang that it belongs to, or did."""
        before = self.pods.pop(uid, None)
        gang = self.gang_of(before) if before is not None else None
        if gang is not None:
            gang.pods.pop(uid, None)
            gang.others.pop(uid, None)
            gang.version += 1
        if pod is None or pod.ended:
            self._starts.pop(uid, None)
            return gang
        self.pods[uid] = pod
        times = (pod.status.start_time, pod.metadata.creation_timestamp)
        self._starts[uid] = next((at for one in times if (at := seconds_at(one))), now)
        claim = claim_of(pod)
        if claim is None:
            return gang
        gang = self.gangs.setdefault(claim.key, Known(claim.key))
        (gang.pods if self._asks(pod) else gang.others)[uid] = pod
        gang.version += 1
        return gang

    def gang_of(self, pod: Pod) -> Known | None:
        """The gang of a pod, where one is known."""
        claim = claim_of(pod)
        return None if claim is None else self.gangs.get(claim.key)

    def gang_named(self, name: str) -> Known | None:
        """By the name that the brain has for it."""
        return next((one for key, one in self.gangs.items() if str(key) == name), None)

    def single_named(self, name: str) -> Pod | None:
        """The same of a pod that is in no gang."""
        return next((one for one in self.pods.values() if single_name(one) == name), None)

    def seconds_of(self, pod: Pod) -> float:
        """How long a pod runs."""
        return seconds_of(pod, self._assumed)

    def work_of(self, gang: Known, now: float) -> Work:
        """A gang, as something that runs."""
        starts = [self._starts[uid] for uid, one in gang.pods.items() if one.spec.node_name]
        some = next(iter(gang.pods.values()))
        return Work(
            name=str(gang.key),
            start=min(starts, default=now),
            seconds=gang.seconds(self._assumed),
            queue=self._queue_of(some),
            priority=gang.priority,
        )

    def whose(self, now: float) -> Callable[[str], Work | None]:
        """Whose GPUs those of a UID are, at this moment.

        A node may name a pod that is gone: it ends soon, and the longer it does not the later.
        """
        works: dict[Key, Work] = {}

        def found(uid: str) -> Work | None:
            pod = self.pods.get(uid)
            if pod is None:
                since = self._seen_ending.setdefault(uid, now)
                return Work(f"what is left of {uid}", since, ENDING)
            self._seen_ending.pop(uid, None)
            gang = self.gang_of(pod)
            if gang is None:
                return Work(
                    name=single_name(pod),
                    start=self._starts[uid],
                    seconds=self.seconds_of(pod),
                    queue=self._queue_of(pod),
                    priority=pod.spec.priority or 0,
                )
            if gang.key not in works:
                works[gang.key] = self.work_of(gang, now)
            return works[gang.key]

        return found


def single_name(pod: Pod) -> str:
    """What a pod that is in no gang is called among gangs."""
    return f"pod {pod.key}"
