"""The status of queues: what each uses with all queues below it, and its mistakes. Pure.

The longest wait is given as the time when it began, so that the status does not change while
nothing happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api import queue as spec
from aliquot.placement.core.demand import WHOLE_MILLI
from aliquot.placement.queues.quota import Resources, Tree, prefixes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.queue import Condition, QueueStatus
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.placement.queues.quota import Bound, Path

VALID = "Valid"
_UNITS = ("Ki", "Mi", "Gi", "Ti")


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """What a queue uses and what waits in it, without the queues below it.

    A single pod counts only in `pods`. `since` is a time as of `time.time()`.
    """

    used: Resources = field(default_factory=Resources)
    pods: int = 0
    gangs: int = 0
    waiting_pods: int = 0
    waiting_gangs: int = 0
    since: float | None = None

    def __add__(self, other: QueueUsage) -> QueueUsage:
        times = [one for one in (self.since, other.since) if one is not None]
        return QueueUsage(
            used=self.used + other.used,
            pods=self.pods + other.pods,
            gangs=self.gangs + other.gangs,
            waiting_pods=self.waiting_pods + other.waiting_pods,
            waiting_gangs=self.waiting_gangs + other.waiting_gangs,
            since=min(times, default=None),
        )


def statuses(queues: Queues, usage: Mapping[str, QueueUsage], now: float) -> dict[str, QueueStatus]:
    """The status of every Queue object; a condition that does not change keeps its time."""
    tree = Tree(queues.queues())
    sums: dict[Path, QueueUsage] = {}
    for name, one in usage.items():
        for path in prefixes(tree.path(name)):
            sums[path] = sums.get(path, QueueUsage()) + one
    found = {}
    for name, queue in queues.objects.items():
        path = tree.path(name)
        one = sums.get(path if path[-1] else path[:-1], QueueUsage())
        found[name] = spec.QueueStatus(
            used=used_of(one.used, queues.largest_gpu),
            borrowed=used_of(above(one.used, queues.queues()[name].quota), queues.largest_gpu),
            running=spec.RunningCounts(one.pods, one.gangs),
            waiting=spec.WaitingCounts(
                one.waiting_pods,
                one.waiting_gangs,
                None if one.since is None else _stamp(one.since),
            ),
            conditions=_conditions(queues, name, queue.status.conditions, now),
        )
    return found


def above(used: Resources, quota: Bound) -> Resources:
    """What is used above a quota."""
    return Resources(
        0 if quota.milli is None else max(0, used.milli - quota.milli),
        0 if quota.bytes is None else max(0, used.bytes - quota.bytes),
    )


def used_of(used: Resources, largest_gpu: int) -> spec.Used:
    """Amounts in the units of bounds. `gpus` is what counts against a bound in GPUs."""
    milli = max(used.milli, -(-WHOLE_MILLI * used.bytes // largest_gpu) if largest_gpu else 0)
    return spec.Used(
        gpus=f"{milli / WHOLE_MILLI:.3f}".rstrip("0").rstrip("."),
        memory=_quantity(used.bytes),
        compute=-(-100 * used.milli // WHOLE_MILLI),
    )


def _quantity(count: int) -> str:
    """Bytes as Kubernetes writes them, exactly."""
    unit = ""
    for larger in _UNITS:
        if not count or count % 1024:
            break
        count, unit = count // 1024, larger
    return f"{count}{unit}"


def _conditions(
    queues: Queues, name: str, before: tuple[Condition, ...], now: float
) -> tuple[Condition, ...]:
    fault, warnings = queues.fault_of(name), queues.warnings_of(name)
    found = [
        spec.Condition("Ready", "False", fault.reason, fault.message_for(name), _stamp(now))
        if fault
        else spec.Condition("Ready", "True", VALID, "", _stamp(now)),
        spec.Condition("Misconfigured", "True", "SuspiciousSpec", "; ".join(warnings), _stamp(now))
        if warnings
        else spec.Condition("Misconfigured", "False", VALID, "", _stamp(now)),
    ]
    since = {(one.type, one.status): one.last_transition_time for one in before}
    return tuple(
        msgspec.structs.replace(
            one, last_transition_time=since.get((one.type, one.status), one.last_transition_time)
        )
        for one in found
    )


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
