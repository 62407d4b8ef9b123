"""What a queue's status is to say: what it has with all below it, and what is wrong with it. Pure.

How long the longest has waited is told by when it came, so that nothing is written while nothing
happens.
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

SOUND = "Sound"
_UNITS = ("Ki", "Mi", "Gi", "Ti")


@dataclass(frozen=True, slots=True)
class Load:
    """What a queue has and what waits in it, without those below it.

    A pod that is no member of a gang is counted by `pods` alone. `since` is a time as `time.time()`
    tells it.
    """

    used: Resources = field(default_factory=Resources)
    pods: int = 0
    gangs: int = 0
    waiting_pods: int = 0
    waiting_gangs: int = 0
    since: float | None = None

    def __add__(self, other: Load) -> Load:
        times = [one for one in (self.since, other.since) if one is not None]
        return Load(
            used=self.used + other.used,
            pods=self.pods + other.pods,
            gangs=self.gangs + other.gangs,
            waiting_pods=self.waiting_pods + other.waiting_pods,
            waiting_gangs=self.waiting_gangs + other.waiting_gangs,
            since=min(times, default=None),
        )


def statuses(known: Queues, loads: Mapping[str, Load], now: float) -> dict[str, QueueStatus]:
    """The status of every queue that is written; a condition that is as it was keeps its time."""
    tree = Tree(known.queues())
    sums: dict[Path, Load] = {}
    for name, load in loads.items():
        for path in prefixes(tree.path(name)):
            sums[path] = sums.get(path, Load()) + load
    found = {}
    for name, one in known.objects.items():
        path = tree.path(name)
        load = sums.get(path if path[-1] else path[:-1], Load())
        found[name] = spec.QueueStatus(
            used=used_of(load.used, known.largest_gpu),
            borrowed=used_of(above(load.used, known.queues()[name].quota), known.largest_gpu),
            running=spec.Running(load.pods, load.gangs),
            waiting=spec.Waiting(
                load.waiting_pods,
                load.waiting_gangs,
                None if load.since is None else _stamp(load.since),
            ),
            conditions=_conditions(known, name, one.status.conditions, now),
        )
    return found


def above(used: Resources, quota: Bound) -> Resources:
    """What is had above a quota."""
    return Resources(
        0 if quota.milli is None else max(0, used.milli - quota.milli),
        0 if quota.bytes is None else max(0, used.bytes - quota.bytes),
    )


def used_of(used: Resources, largest_gpu: int) -> spec.Used:
    """Amounts as bounds are written. GPUs: what a bound of GPUs is held to, so the larger part."""
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
    known: Queues, name: str, before: tuple[Condition, ...], now: float
) -> tuple[Condition, ...]:
    trouble, doubts = known.trouble_of(name), known.doubts_of(name)
    found = [
        spec.Condition("Ready", "False", trouble.reason, trouble.of(name), _stamp(now))
        if trouble
        else spec.Condition("Ready", "True", SOUND, "", _stamp(now)),
        spec.Condition("Doubtful", "True", "HardlyMeant", "; ".join(doubts), _stamp(now))
        if doubts
        else spec.Condition("Doubtful", "False", SOUND, "", _stamp(now)),
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
