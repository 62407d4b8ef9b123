"""Whose turn it is: quotas, borrowing, and weighted fair share between queues.

A queue's share is its dominant one: of all GPUs' compute or of all GPUs' memory, whichever is more,
divided by its weight. The queue with the smallest share goes first, with the gang of its highest
priority that waits longest; then it counts as having it, and the next is asked. What a queue has
within its quota is its own. Above it, up to its limit, it borrows what others leave, and may be
asked for it back (see `preempt`). At the first gang that would be over the limit a queue stops, so
that smaller ones do not overtake it; what has the promise of a start goes on, and is charged first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.demand import Gang


@dataclass(frozen=True, slots=True)
class Resources:
    """Compute and memory of GPUs."""

    milli: int = 0
    bytes: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.milli + other.milli, self.bytes + other.bytes)

    def within(self, limit: Resources) -> bool:
        """Whether it is no more than this."""
        return self.milli <= limit.milli and self.bytes <= limit.bytes


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of gangs. Without a quota nothing is its own; without a limit it may borrow all."""

    name: str
    weight: float = 1.0
    quota: Resources = Resources()
    limit: Resources | None = None


def needs(gang: Gang) -> Resources:
    """What a gang takes."""
    return Resources(gang.milli, gang.gpu_bytes)


def usage(running: Iterable[Gang]) -> dict[str, Resources]:
    """What each queue has."""
    used: dict[str, Resources] = {}
    for gang in running:
        used[gang.queue] = used.get(gang.queue, Resources()) + needs(gang)
    return used


def in_turn(
    waiting: Sequence[Gang],
    queues: Mapping[str, Queue],
    used: Mapping[str, Resources],
    total: Resources,
    promised: Collection[str] = (),
) -> tuple[list[Gang], dict[str, str]]:
    """All that wait in the order of their turns; and why not, for those over a limit."""
    lines: dict[str, list[Gang]] = {gang.queue: [] for gang in waiting}
    for gang in sorted(waiting, key=lambda one: (-one.priority, one.submitted, one.name)):
        lines[gang.queue].append(gang)
    has = {name: used.get(name, Resources()) for name in lines}
    charged = dict(has)
    for gang in waiting:
        if gang.name in promised:
            charged[gang.queue] += needs(gang)
    stopped: set[str] = set()
    order: list[Gang] = []
    refused: dict[str, str] = {}
    while any(lines.values()):
        name = min(
            (one for one in lines if lines[one]),
            key=lambda one: (share(has[one], total) / _queue(queues, one).weight, one),
        )
        gang = lines[name].pop(0)
        if gang.name not in promised:
            limit = _queue(queues, name).limit
            if limit is not None and not needs(gang).within(limit):
                refused[gang.name] = f"it asks for more than queue {name!r}'s limit"
                continue
            more = charged[name] + needs(gang)
            if name in stopped or (limit is not None and not more.within(limit)):
                refused[gang.name] = f"queue {name!r} is at its limit"
                stopped.add(name)
                continue
            charged[name] = more
        has[name] += needs(gang)
        order.append(gang)
    return order, refused


def share(used: Resources, total: Resources) -> float:
    """The dominant share."""
    return max(used.milli / max(1, total.milli), used.bytes / max(1, total.bytes))


def borrows(queue: Queue, used: Resources) -> bool:
    """Whether a queue has more than its own."""
    return not used.within(queue.quota)


def _queue(queues: Mapping[str, Queue], name: str) -> Queue:
    return queues.get(name) or Queue(name)
