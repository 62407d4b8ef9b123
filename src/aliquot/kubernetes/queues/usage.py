"""What each queue uses, and what waits in it. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.queues.status import QueueUsage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.workloads import GangPods


@dataclass(frozen=True, slots=True)
class GangUse:
    """A gang, and whether it has places or nodes; if it waits, since when."""

    pods: GangPods
    started: bool
    since: float | None


def queue_usage(
    allocations: WorkloadAllocations,
    gangs: Iterable[GangUse],
    waiting: Iterable[tuple[Pod, float]],
    queues: Queues,
    now: float,
) -> dict[str, QueueUsage]:
    """By queue; `waiting` are the single pods that wait, each with the time since when.

    What waits in vain, since the queue that it names does not accept it, counts nowhere.
    """
    loads: defaultdict[str, QueueUsage] = defaultdict(QueueUsage)
    for name, used in allocations.used(now).items():
        loads[name] += QueueUsage(used=used)
    for name, count in allocations.singles(now).items():
        loads[name] += QueueUsage(pods=count)
    for gang in gangs:
        lead = gang.pods.lead
        if not gang.started and not queues.accepts(queues.named_by(lead), lead.metadata.namespace):
            continue
        loads[queues.queue_of(lead)] += QueueUsage(
            pods=len(gang.pods.bound),
            gangs=int(gang.started),
            waiting_pods=0 if gang.started else len(gang.pods.unbound),
            waiting_gangs=int(not gang.started),
            since=None if gang.started else gang.since,
        )
    for pod, since in waiting:
        if not queues.accepts(queues.named_by(pod), pod.metadata.namespace):
            continue
        loads[queues.queue_of(pod)] += QueueUsage(waiting_pods=1, since=since)
    return dict(loads)
