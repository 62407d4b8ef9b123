"""What kube-scheduler asks, as far as gangs and queues say something to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.membership import claim_of
from aliquot.kubernetes.extender.bind import NotBoundError
from aliquot.kubernetes.extender.planner import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.cluster import Cluster, Reserved
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.gangs.reservations import Reservations
    from aliquot.kubernetes.gangs.single_pods import SinglePods
    from aliquot.kubernetes.gangs.term import Term

PERMIT_SECONDS = 50.0  # kube-scheduler waits 60 s for a bind


class Answers:
    """Where members and single pods may go, and when. `trouble` keeps all gangs from starting."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that they come from
        self,
        roster: Workloads,
        reservations: Reservations,
        singles: SinglePods,
        cluster: Cluster,
        changes: Changes,
        term: Term,
        now: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._reservations = reservations
        self._singles = singles
        self._cluster = cluster
        self._changes = changes
        self._term = term
        self._now = now
        self._held: set[str] = set()  # single pods that gangs or queues kept from starting
        self.trouble = ""

    # --- filter -----------------------------------------------------------------------------------

    def answer(self, pod: Pod, names: Sequence[str]) -> Answer | None:
        """Where a pod may go, for all that gangs and queues say; None: anywhere."""
        claim = claim_of(pod)
        if claim is None:
            answer = self._singles.answer(pod, names, self._now())
            if answer is not None and not answer.names:
                self._held.add(pod.metadata.uid)
            return answer
        gang = self._roster.gangs.get(claim.key)
        uid = pod.metadata.uid
        if gang is None or uid not in gang.pods:
            if gang is not None and uid in gang.others:
                return None
            return _told(names, f"gang {claim.key}: this pod was not seen yet")
        if not gang.is_open(uid):
            why = self.trouble or gang.reason or "it was not looked at yet"
            return _told(names, f"gang {gang.key} is {gang.phase.lower()}: {why}")
        place = gang.reserved[uid]
        if place.node in names:
            return Answer((place.node,))
        why = f"kube-scheduler did not let pod {pod.key} go to node {place.node}"
        self._reservations.give_up(gang, why, self._now(), node=place.node)
        self._changes.notify()
        return _told(names, f"gang {gang.key}: {why}")

    def advised(self, pod: Pod, answer: Answer) -> Answer:
        """A refusal, with what its queue has to do with it."""
        return self._singles.advised(pod, answer, self._now())

    def hold_no_more(self, uid: str) -> None:
        """A pod has its node, or is gone."""
        self._held.discard(uid)

    def lets(self, pod: Pod) -> bool:
        """Whether a single pod that waits for room may try again now."""
        return claim_of(pod) is None and self._singles.lets(pod, self._now())

    # --- bind -------------------------------------------------------------------------------------

    async def permit(self, pod: Pod, node: str) -> Reserved | None:
        """A member's place, when all members are there; None for a single pod that may go."""
        gang = self._roster.gang_of(pod)
        uid = pod.metadata.uid
        if gang is None:
            self._singles.may_bind(pod, self._now())
            return None
        if uid in gang.others:
            return None
        if uid not in gang.pods or not gang.is_open(uid) or gang.reserved[uid].node != node:
            raise NotBoundError(f"gang {gang.key} has no place for pod {pod.key} on node {node}")
        gang.moved = self._now()
        place = gang.reserved[uid]
        reserved = self._reservations.reserved(gang, uid)
        await self._reservations.permit(gang).arrive(uid, PERMIT_SECONDS)
        if gang.reserved.get(uid) is not place:
            raise NotBoundError(f"gang {gang.key} has no place for pod {pod.key} any more")
        return reserved

    def may_bind(self) -> bool:
        """Whether this replica leads, at this moment."""
        return self._term.is_on

    def holds(self, pod: Pod, place: Reserved) -> bool:
        """Whether a member's place is still its own."""
        gang = self._roster.gang_of(pod)
        mine = gang.reserved.get(pod.metadata.uid) if gang is not None else None
        return mine is not None and (mine.node, mine.parts) == (place.node, place.parts)

    def tried(self, pod: Pod, *, bound: bool) -> None:
        """A member was bound, or not: then its place is still its own, if it was not given up."""
        gang = self._roster.gang_of(pod)
        uid = pod.metadata.uid
        if gang is None:
            return
        if bound:
            gang.moved = self._now()
        elif uid in gang.reserved and uid in gang.pods:
            self._cluster.reserve(uid, self._reservations.reserved(gang, uid))

    # --- preempt ----------------------------------------------------------------------------------

    def may_end_others(self, pod: Pod, victims: Collection[str]) -> bool:
        """Whether kube-scheduler may end these pods, by UID, for a pod that finds no CPU.

        Not for a member of a gang, nor for one that may not start whatever ends; and no gang is
        ended by halves.
        """
        if claim_of(pod) is not None or pod.metadata.uid in self._held:
            return False
        pods = (self._roster.pods.get(uid) for uid in victims)
        return all(one is None or claim_of(one) is None for one in pods)


def _told(names: Sequence[str], text: str) -> Answer:
    """A refusal of which people are told otherwise."""
    return Answer((), dict.fromkeys(names, text), message=text, by_gang=True)
