"""Whose turn it is: quotas, borrowing, and weighted fair share between queues.

A queue's share is its dominant one: of all GPUs' compute or of all GPUs' memory, whichever is more,
divided by its weight. The queue with the smallest share goes first, with the gang of its highest
priority that waits longest; then it counts as having it, and the next is asked. What a queue has
within its quota is its own. Above it, up to its limit, it borrows what others leave, and may be
asked for it back (see `preempt`). At the first gang that would be over the limit a queue stops, so
that smaller ones do not overtake it; what has the promise of a start goes on, and is charged first.
Who is refused here may still ask lower priorities of its queue to end: that too is for `preempt`.

Queues may be below other queues. A queue has what all below it have, and its quota and limit are
for all of that. Turns go level by level: to one of the topmost queues, then to one of those below
it, and so on. Work in a queue that has others below it stands beside them, as a queue of the weight
1 without a quota. A circle is cut above the queue of its first name.

A whole GPU counts with all its memory: what runs with that of the GPUs it has, what waits with that
of the largest it may get, so that no limit is passed wherever it goes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.units import format_bytes
from aliquot.placement.demand import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from aliquot.placement.demand import Gang, Running
    from aliquot.placement.snapshot import Hardware

Path = tuple[str, ...]  # from a topmost queue down; an empty last name: work beside those below


@dataclass(frozen=True, slots=True)
class Resources:
    """Compute and memory of GPUs."""

    milli: int = 0
    bytes: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.milli + other.milli, self.bytes + other.bytes)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.milli - other.milli, self.bytes - other.bytes)

    def at_least(self, other: Resources) -> Resources:
        """Of compute and of memory, each as much as the one that has more."""
        return Resources(max(self.milli, other.milli), max(self.bytes, other.bytes))


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
    """A queue of gangs. Without a quota nothing is its own; without a limit it may borrow all.

    `parent` is the queue that it is below.
    """

    name: str
    weight: float = 1.0
    quota: Bound = Bound(0, 0)
    limit: Bound = Bound()
    parent: str = ""

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise InvalidValueError(f"queue {self.name!r} cannot have the weight {self.weight:g}")


BESIDE = Queue("")
WITH_THIS = "with this gang it would have"
Sums = defaultdict[Path, Resources]  # what each queue has with all below it


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


class Tree:
    """Which queue is below which."""

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        self._queues = queues
        self._parents = {one.parent for one in queues.values()}
        self._paths: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        """The way from the top to the work of a queue."""
        found = self._paths.get(name)
        if found is None:
            beside = ("",) if name and name in self._parents else ()
            found = self._paths[name] = (*reversed(self._upwards(name)), *beside)
        return found

    def queue(self, path: Path) -> Queue:
        """The queue at the end of a path."""
        return BESIDE if len(path) > 1 and not path[-1] else queue_of(self._queues, path[-1])

    def summed(self, used: Mapping[str, Resources]) -> Sums:
        """What each queue has with all below it, from what each has by itself."""
        sums: Sums = defaultdict(Resources)
        for name, one in used.items():
            self.add(sums, name, one)
        return sums

    def add(self, sums: Sums, name: str, more: Resources) -> None:
        """Count this for a queue and all above it."""
        for path in upto(self.path(name)):
            sums[path] += more

    def excess(self, before: Mapping[str, Resources], after: Mapping[str, Resources]) -> Sums:
        """What counts for limits while some end for others, beyond what those have then.

        Never do both have it: the ones begin when the others have ended.
        """
        had, has = self.summed(before), self.summed(after)
        found: Sums = defaultdict(Resources)
        for path, one in had.items():
            found[path] = one.at_least(has[path]) - has[path]
        return found

    def over(self, name: str, more: Resources, sums: Sums) -> Path | None:
        """The topmost queue, of this one and all above it, whose limit would be passed."""
        for path in upto(self.path(name)):
            if not self.queue(path).limit.covers(sums[path] + more):
                return path
        return None

    def limit_told(self, path: Path, gang: Gang, would: Resources, how: str) -> str:
        """That this is more than the queue at the end of the path may have."""
        limit = self.queue(path).limit
        below = "" if path[-1] == gang.queue else f", which {gang.queue} is below,"
        if limit.milli is not None and would.milli > limit.milli:
            most = f"{limit.milli / 1000:g} GPU{'s' * (limit.milli != 1000)}"
            all_of_it = f"{would.milli / 1000:g}"
        else:
            most = f"{format_bytes(limit.bytes or 0)} of GPU memory"
            all_of_it = format_bytes(would.bytes)
        return f"queue {path[-1]}{below} may have {most}; {how} {all_of_it}"

    def _upwards(self, name: str) -> list[str]:
        names = [name]
        while parent := queue_of(self._queues, names[-1]).parent:
            if parent in names:
                first = min(names[names.index(parent) :])
                return names[: names.index(first) + 1]
            names.append(parent)
        return names


def with_all(sums: Sums, more: Mapping[Path, Resources]) -> Sums:
    """The same, and this counted too."""
    for path, one in more.items():
        sums[path] += one
    return sums


def upto(path: Path) -> Iterator[Path]:
    """The queues on a path, the topmost first."""
    return (path[:length] for length in range(1, len(path) + 1))


def in_turn(  # noqa: PLR0913 - the whole question
    waiting: Sequence[Gang],
    queues: Mapping[str, Queue],
    used: Mapping[str, Resources],
    hardware: Hardware,
    promised: Collection[str] = (),
    *,
    ending: Mapping[Path, Resources] | None = None,
) -> tuple[list[Gang], dict[str, str]]:
    """All that wait in the order of their turns; and why not, for those over a limit.

    `ending` is what counts for limits beside what is used, until it is gone.
    """
    tree = Tree(queues)
    asked = {gang.name: needs(gang, hardware) for gang in waiting}
    turns = _Turns(tree, waiting, tree.summed(used), hardware)
    charged = with_all(tree.summed(used), ending or {})
    for gang in waiting:
        if gang.name in promised:
            tree.add(charged, gang.queue, asked[gang.name])
    stopped: dict[Path, Gang] = {}
    order: list[Gang] = []
    refused: dict[str, str] = {}
    for gang in turns:
        more = asked[gang.name]
        if gang.name not in promised:
            too_small = tree.over(gang.queue, more, defaultdict(Resources))
            if too_small is not None:
                refused[gang.name] = tree.limit_told(too_small, gang, more, "this gang asks for")
                continue
            stop = next((one for one in upto(tree.path(gang.queue)) if one in stopped), None)
            if stop is not None:
                refused[gang.name] = _behind(stopped[stop], stop, gang)
                continue
            full = tree.over(gang.queue, more, charged)
            if full is not None:
                would = charged[full] + more
                refused[gang.name] = tree.limit_told(full, gang, would, WITH_THIS)
                stopped[full] = gang
                continue
            tree.add(charged, gang.queue, more)
        turns.count(gang, more)
        order.append(gang)
    return order, refused


def within_quota(
    order: Iterable[Gang],
    queues: Mapping[str, Queue],
    used: Mapping[str, Resources],
    hardware: Hardware,
) -> set[str]:
    """The names of those that the quotas of their queue and all above it cover, in this order."""
    tree, covered = Tree(queues), set()
    has = tree.summed(used)
    for gang in order:
        more = needs(gang, hardware)
        paths = upto(tree.path(gang.queue))
        if all(tree.queue(path).quota.covers(has[path] + more) for path in paths):
            tree.add(has, gang.queue, more)
            covered.add(gang.name)
    return covered


class _Turns:
    """All gangs that wait, each when it is its turn, as shares are when it is asked for."""

    def __init__(self, tree: Tree, waiting: Iterable[Gang], has: Sums, hardware: Hardware) -> None:
        self._tree = tree
        self._has = has
        self._total = Resources(hardware.total_milli, hardware.total_bytes)
        self._lines: dict[Path, deque[Gang]] = {}
        self._below: defaultdict[Path, set[Path]] = defaultdict(set)
        self._ranks: dict[Path, tuple[float, str]] = {}
        for gang in sorted(waiting, key=lambda one: (-one.priority, one.submitted, one.name)):
            self._lines.setdefault(tree.path(gang.queue), deque()).append(gang)
        for line in self._lines:
            for path in upto(line):
                self._below[path[:-1]].add(path)
                self._rank(path)

    def __iter__(self) -> Iterator[Gang]:
        while self._lines:
            path: Path = ()
            while path not in self._lines:
                path = min(self._below[path], key=self._ranks.__getitem__)
            line = self._lines[path]
            gang = line.popleft()
            if not line:
                self._end(path)
            yield gang

    def count(self, gang: Gang, more: Resources) -> None:
        """Its queues have this now."""
        self._tree.add(self._has, gang.queue, more)
        for path in upto(self._tree.path(gang.queue)):
            self._rank(path)

    def _rank(self, path: Path) -> None:
        weight = self._tree.queue(path).weight
        self._ranks[path] = share(self._has[path], self._total) / weight, path[-1]

    def _end(self, path: Path) -> None:
        """Nothing waits there any more; nor above it, where that was the last."""
        del self._lines[path]
        while path and not self._below[path]:
            self._below[path[:-1]].discard(path)
            path = path[:-1]


def _behind(first: Gang, path: Path, gang: Gang) -> str:
    """That it does not overtake a gang that waits for its queue's limit."""
    below = "" if path[-1] == gang.queue else f", which {gang.queue} is below"
    return f"{first.name} comes before it, and waits for the limit of queue {path[-1]}{below}"


def share(used: Resources, total: Resources) -> float:
    """The dominant share."""
    return max(used.milli / max(1, total.milli), used.bytes / max(1, total.bytes))


def borrows(queue: Queue, used: Resources) -> bool:
    """Whether a queue has more than its own."""
    return not queue.quota.covers(used)


def queue_of(queues: Mapping[str, Queue], name: str) -> Queue:
    """The queue of this name: one without quota and limit where nobody described it."""
    return queues.get(name) or Queue(name)
