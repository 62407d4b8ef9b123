"""Single pods beside gangs: where they harm no promise, and within their queue's limit.

Where nothing is promised and no queue is described, nothing here is asked: a single pod goes its
usual way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.gangs.nodes import Limits
from aliquot.kubernetes.gangs.picture import bare
from aliquot.kubernetes.gangs.roster import single_name
from aliquot.kubernetes.names import QUEUE
from aliquot.kubernetes.pods import BadRequestError
from aliquot.kubernetes.scheduler.cluster import Reserved
from aliquot.kubernetes.scheduler.planner import RESERVED_SECONDS, Answer
from aliquot.placement.demand import Gang, Running
from aliquot.placement.queues import Tree, needs, usage
from aliquot.placement.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.gangs.planning import Planning
    from aliquot.kubernetes.gangs.roster import Roster
    from aliquot.kubernetes.pods import ContainerRequest
    from aliquot.kubernetes.queues.known import Queues
    from aliquot.kubernetes.scheduler.planner import Planner

PROMISED = "what is free is promised to gangs"


class Singles:
    """Answers for single pods; `promises` are the gangs' as they were last decided."""

    def __init__(
        self, planner: Planner, planning: Planning, roster: Roster, queues: Queues
    ) -> None:
        self._planner = planner
        self._planning = planning
        self._roster = roster
        self._queues = queues
        self.promises: tuple[Running, ...] = ()

    def answer(self, pod: Pod, names: Sequence[str], now: float) -> Answer | None:
        """Where a pod may go for all that gangs and queues say; None: anywhere."""
        described = self._queues.objects or QUEUE in pod.metadata.labels
        if not (self.promises or described):
            return None
        try:
            requests = self._planner.requests(pod)
        except BadRequestError:
            return None
        if not requests:
            return None
        if described:
            refused = self._by_queue(pod, requests, names, now)
            if refused is not None:
                return refused
        return self._beside(pod, requests, names, now) if self.promises else None

    def _by_queue(
        self, pod: Pod, requests: Sequence[ContainerRequest], names: Sequence[str], now: float
    ) -> Answer | None:
        queue = self._queues.queue_of(pod)
        problem = self._queues.problem_of(queue)
        if problem:
            return _refusal(names, "BadQueue", problem)
        limits = Limits()
        picture = self._planning.picture([limits])
        running = picture.running(self._roster.whose(now), {pod.metadata.uid})
        tree = Tree(self._queues.queues())
        sums = tree.summed(usage(running, picture.hardware))
        members = tuple(picture.demand([one], limits) for one in requests if not one.init)
        if not members:
            return None
        asked = needs(Gang(single_name(pod), members), picture.hardware)
        over = tree.over(queue, asked, sums)
        if over is None:
            return None
        return _refusal(names, "QueueFull", f"queue {over[-1]!r} is at its limit")

    def _beside(
        self, pod: Pod, requests: Sequence[ContainerRequest], names: Sequence[str], now: float
    ) -> Answer | None:
        """The place that leaves all promises as they are."""
        cluster = self._planner.cluster
        cluster.forget(pod.metadata.uid)
        limits = Limits(barred=frozenset(cluster.nodes.keys() - set(names)))
        picture = self._planning.picture([limits])
        try:
            demand = picture.demand(requests, limits)
        except BadRequestError:
            return self._elsewhere(pod, names)
        promised = [_bare(one) for one in self.promises]
        running = picture.running(self._roster.whose(now))
        seconds = self._roster.seconds_of(pod)
        line = Timeline(picture.books, running, promised, now, by=picture.by)
        found = line.fits_now(Gang(single_name(pod), (demand,), seconds))
        if found is None:
            usual = self._planner.filter(pod, names)
            cluster.forget(pod.metadata.uid)
            return _refusal(names, "Promised", PROMISED) if usual.names else usual
        (place,) = found.placements
        node, parts = picture.names[place.node], picture.parts(requests, place)
        until = cluster.now() + RESERVED_SECONDS
        cluster.reserve(pod.metadata.uid, Reserved(pod.key, node, parts, until))
        return Answer((node,))

    def _elsewhere(self, pod: Pod, names: Sequence[str]) -> Answer:
        """On nodes of which nothing is promised: for pods that are more than one demand."""
        rows = {place.node for one in self.promises for place in one.placements}
        taken = {name for name, row in self._planner.cluster.rows.items() if row in rows}
        left = [name for name in names if name not in taken]
        usual = self._planner.filter(pod, left)
        if usual.names:
            return usual
        why = {**dict(usual.refused), **dict.fromkeys(taken.intersection(names), PROMISED)}
        return Answer((), why, "Promised", PROMISED)


def _bare(one: Running) -> Running:
    gang = replace(one.gang, members=tuple(map(bare, one.gang.members)))
    return replace(one, gang=gang)


def _refusal(names: Sequence[str], reason: str, text: str) -> Answer:
    return Answer((), dict.fromkeys(names, text), reason, text)
