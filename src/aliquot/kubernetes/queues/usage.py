"""What each queue has and what waits in it. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from aliquot.kubernetes.queues.status import QueueUsage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.gangs.state import GangState


def loads_of(
    holdings: WorkloadAllocations,
    gangs: Iterable[GangState],
    waiting: Iterable[tuple[Pod, float]],
    queues: Queues,
    now: float,
) -> dict[str, QueueUsage]:
    """By queue; `waiting` are single pods and since when."""
    loads: defaultdict[str, QueueUsage] = defaultdict(QueueUsage)
    for name, used in holdings.used(now).items():
        loads[name] += QueueUsage(used=used)
    for name, count in holdings.singles(now).items():
        loads[name] += QueueUsage(pods=count)
    for gang in gangs:
        some = next(iter((*gang.pods.values(), *gang.others.values())))
        bound, unbound = len(gang.bound), len(gang.unbound)
        whole = bool(gang.reserved or gang.had_nodes)
        loads[queues.queue_of(some)] += QueueUsage(
            pods=bound,
            gangs=int(whole),
            waiting_pods=0 if whole else unbound,
            waiting_gangs=int(not whole),
            since=gang.since or None if not whole else None,
        )
    for pod, since in waiting:
        loads[queues.queue_of(pod)] += QueueUsage(waiting_pods=1, since=since)
    return dict(loads)
