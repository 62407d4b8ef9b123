"""Whose turn it is: quotas, borrowing, and weighted fair share between queues.

A queue's share is its dominant one: of all GPUs' compute or of all GPUs' memory, whichever is more,
divided by its weight. The queue with the smallest share goes first, with the gang of its highest
priority that waits longest; then it counts as having it, and the next is asked. What a queue has
within its quota is its own. Above it, up to its limit, it borrows what others leave, and may be
asked for it back (see `preempt`). At the first gang that would be over the limit a queue stops, so
that smaller ones do not overtake it; what has the promise of a start goes on, and is charged first.

A whole GPU counts with all its memory: what runs with that of the GPUs it has, what waits with that
of the largest it may get, so that no limit is passed wherever it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import BadValueError
from aliquot.placement.demand import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.demand import Gang, Running
    from aliquot.placement.snapshot import Hardware


@dataclass(frozen=True, slots=True)
class Resources:
    """Compute and memory of GPUs."""

    milli: int = 0
    bytes: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.milli + other.milli, self.bytes + other.bytes)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.milli - other.milli, self.bytes - other.bytes)


@dataclass(frozen=True, slots=True)
class Bound:
    """The most of compute and of memory; None is any amount."""

    milli: int | None = None
    bytes: int | None = None

    def covers(self, used: Resources) -> bool:
        """Whether it is no more than this."""
        return (self.milli is None or used.milli <= self.milli) and (
            self.bytes is None or used.bytes <= self.bytes
        )


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of gangs. Without a quota nothing is its own; without a limit it may borrow all."""

    name: str
    weight: float = 1.0
    quota: Bound = Bound(0, 0)
    limit: Bound = Bound()

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise BadValueError(f"queue {self.name!r} cannot have the weight {self.weight:g}")


def needs(gang: Gang, hardware: Hardware) -> Resources:
    """The most that a gang can take."""
    each = (
        hardware.largest_gpu(member.models) if member.kind is Kind.WHOLE else member.gpu_bytes
        for member in gang.members
    )
    pairs = zip(gang.members, each, strict=True)
    return Resources(gang.milli, sum(member.gpus * size for member, size in pairs))


def takes(one: Running, hardware: Hardware) -> Resources:
    """What a gang has where it runs."""
    pairs = zip(one.placements, one.gang.members, strict=True)
    sizes = (
        member.gpus * hardware.taken_of_each(placement.node, member)[1]
        for placement, member in pairs
    )
    return Resources(one.gang.milli, sum(sizes))


def usage(running: Iterable[Running], hardware: Hardware) -> dict[str, Resources]:
    """What each queue has."""
    used: dict[str, Resources] = {}
    for one in running:
        name = one.gang.queue
        used[name] = used.get(name, Resources()) + takes(one, hardware)
    return used


def in_turn(
    waiting: Sequence[Gang],
    queues: Mapping[str, Queue],
    used: Mapping[str, Resources],
    hardware: Hardware,
    promised: Collection[str] = (),
) -> tuple[list[Gang], dict[str, str]]:
    """All that wait in the order of their turns; and why not, for those over a limit."""
    total = Resources(hardware.total_milli, hardware.total_bytes)
    lines: dict[str, list[Gang]] = {gang.queue: [] for gang in waiting}
    for gang in sorted(waiting, key=lambda one: (-one.priority, one.submitted, one.name)):
        lines[gang.queue].append(gang)
    has = {name: used.get(name, Resources()) for name in lines}
    charged = dict(has)
    for gang in waiting:
        if gang.name in promised:
            charged[gang.queue] += needs(gang, hardware)
    stopped: set[str] = set()
    order: list[Gang] = []
    refused: dict[str, str] = {}
    while any(lines.values()):
        name = min(
            (one for one in lines if lines[one]),
            key=lambda one: (share(has[one], total) / queue_of(queues, one).weight, one),
        )
        gang = lines[name].pop(0)
        more = needs(gang, hardware)
        if gang.name not in promised:
            limit = queue_of(queues, name).limit
            if not limit.covers(more):
                refused[gang.name] = f"it asks for more than queue {name!r}'s limit"
                continue
            if name in stopped or not limit.covers(charged[name] + more):
                refused[gang.name] = f"queue {name!r} is at its limit"
                stopped.add(name)
                continue
            charged[name] += more
        has[name] += more
        order.append(gang)
    return order, refused


def share(used: Resources, total: Resources) -> float:
    """The dominant share."""
    return max(used.milli / max(1, total.milli), used.bytes / max(1, total.bytes))


def borrows(queue: Queue, used: Resources) -> bool:
    """Whether a queue has more than its own."""
    return not queue.quota.covers(used)


def queue_of(queues: Mapping[str, Queue], name: str) -> Queue:
    """The queue of this name: one without quota and limit where nobody described it."""
    return queues.get(name) or Queue(name)
