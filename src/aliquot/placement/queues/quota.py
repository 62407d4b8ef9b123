"""Fair share between queues: quotas, borrowing, limits and the order of waiting gangs.

A queue's share is its dominant one: of all compute or of all GPU memory, whichever is more, divided
by its weight. The queue with the smallest share goes first, with its gang of the highest priority
that waits longest; then it counts as having that gang, and the next queue is chosen. What a queue
uses within its quota is its own. Above it, up to its limit, it borrows what others leave, and
others may reclaim it (see `preempt`). At the first gang that would pass the limit a queue stops, so
that smaller gangs do not overtake it; gangs with a planned start go on, and are charged first. A
gang that is refused at a limit may still preempt lower priorities of its queue: that is for
`preempt`.

Queues form a tree. A queue uses what all queues below it use, and its quota and limit hold for all
of that. The order is found level by level: one of the topmost queues, then one of its children, and
so on. Gangs submitted directly to a queue with children are treated as a child of weight 1 without
a quota. A circle is cut above the queue of its first name.

A whole GPU counts with all its memory: for running gangs that of the GPUs they have, for waiting
gangs that of the largest GPU they may get, so no limit is passed wherever they go.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.units import format_bytes
from aliquot.placement.core.demand import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from aliquot.placement.core.demand import Gang, Running
    from aliquot.placement.core.snapshot import Hardware

Path = tuple[
    str, ...
]  # from a topmost queue down; an empty last name: gangs directly in a queue that has children


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
        """The larger amount of compute, and the larger amount of memory."""
        return Resources(max(self.milli, other.milli), max(self.bytes, other.bytes))


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound of compute and of memory; None is no bound."""

    milli: int | None = None
    bytes: int | None = None

    def covers(self, used: Resources) -> bool:
        """Whether this amount is within the bound."""
        return (self.milli is None or used.milli <= self.milli) and (
            self.bytes is None or used.bytes <= self.bytes
        )


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of gangs. Without a quota nothing is its own; without a limit it may borrow anything.

    `parent` is the queue above it, if any. `past` counts in the order of waiting gangs as if the
    queue used it, and for nothing else. `user` is whose queue it is, if it is one user's part of
    its parent (`users`): messages name that user, because people know no such queue. What it uses
    counts for the limit of the queue `also_counts_for` too, which is not above it.
    """

    name: str
    weight: float = 1.0
    quota: Bound = Bound(0, 0)
    limit: Bound = Bound()
    parent: str = ""
    past: Resources = Resources()
    user: str = ""
    also_counts_for: str = ""

    @property
    def label(self) -> str:
        """What people call it."""
        return f"user {self.user}" if self.user else f"queue {self.name}"

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise InvalidValueError(f"queue {self.name!r} cannot have the weight {self.weight:g}")


DIRECT = Queue("")
WITH_THIS = "with this gang it would have"
Sums = defaultdict[Path, Resources]  # what each queue uses with all queues below it


def needs(gang: Gang, hardware: Hardware) -> Resources:
    """The most that a gang can use."""
    each = (
        hardware.largest_gpu(member.models) if member.kind is Kind.WHOLE else member.gpu_bytes
        for member in gang.members
    )
    pairs = zip(gang.members, each, strict=True)
    return Resources(gang.milli, sum(member.gpus * size for member, size in pairs))


def takes(one: Running, hardware: Hardware) -> Resources:
    """What a gang uses where it runs."""
    pairs = zip(one.placements, one.gang.members, strict=True)
    sizes = (
        member.gpus * hardware.taken_of_each(placement.node, member)[1]
        for placement, member in pairs
    )
    return Resources(one.gang.milli, sum(sizes))


def usage(running: Iterable[Running], hardware: Hardware) -> dict[str, Resources]:
    """What each queue uses."""
    used: dict[str, Resources] = {}
    for one in running:
        name = one.gang.queue
        used[name] = used.get(name, Resources()) + takes(one, hardware)
    return used


class Tree:
    """The tree of queues."""

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        self._queues = queues
        self._parents = {one.parent for one in queues.values()}
        self._paths: dict[str, Path] = {}
        self._counting: dict[str, tuple[Path, ...]] = {}

    def path(self, name: str) -> Path:
        """The path from the topmost queue to the gangs of a queue."""
        found = self._paths.get(name)
        if found is None:
            direct = ("",) if name and name in self._parents else ()
            found = self._paths[name] = (*reversed(self._upwards(name)), *direct)
        return found

    def counting(self, name: str) -> tuple[Path, ...]:
        """The queues that count what a queue uses: those on its path, and `also_counts_for`."""
        found = self._counting.get(name)
        if found is None:
            also = queue_of(self._queues, name).also_counts_for
            found = (*prefixes(self.path(name)), *([(also,)] if also else []))
            self._counting[name] = found
        return found

    def queue(self, path: Path) -> Queue:
        """The queue at the end of a path."""
        return DIRECT if len(path) > 1 and not path[-1] else queue_of(self._queues, path[-1])

    def summed(self, used: Mapping[str, Resources]) -> Sums:
        """What each queue uses with all below it, from what each uses by itself."""
        sums: Sums = defaultdict(Resources)
        for name, one in used.items():
            self.add(sums, name, one)
        return sums

    def add(self, sums: Sums, name: str, more: Resources) -> None:
        """Count this for all queues that count it."""
        for path in self.counting(name):
            sums[path] += more

    def excess(self, before: Mapping[str, Resources], after: Mapping[str, Resources]) -> Sums:
        """What counts for limits while victims end, beyond what the gangs after them use.

        Both are never counted: gangs start when their victims have ended.
        """
        had, has = self.summed(before), self.summed(after)
        found: Sums = defaultdict(Resources)
        for path, one in had.items():
            found[path] = one.at_least(has[path]) - has[path]
        return found

    def over(self, name: str, more: Resources, sums: Sums) -> Path | None:
        """The first queue that counts this one's use and would pass its limit; or None."""
        for path in self.counting(name):
            if not self.queue(path).limit.covers(sums[path] + more):
                return path
        return None

    def is_limited(self, name: str) -> bool:
        """Whether a queue that counts this one's use has a limit."""
        return any(self.queue(path).limit != Bound() for path in self.counting(name))

    def limit_message(self, path: Path, queue: str, would: Resources, how: str) -> str:
        """The message that a queue would pass the limit of the one at the end of the path."""
        limit = self.queue(path).limit
        below = f"{below}," if (below := self._below(path, queue)) else ""
        if limit.milli is not None and would.milli > limit.milli:
            most = f"{limit.milli / 1000:g} GPU{'s' * (limit.milli != 1000)}"
            all_of_it = f"{would.milli / 1000:g}"
        else:
            most = f"{format_bytes(limit.bytes or 0)} of GPU memory"
            all_of_it = format_bytes(would.bytes)
        return f"{self.queue(path).label}{below} may have {most}; {how} {all_of_it}"

    def behind_message(self, first: Gang, path: Path, queue: str) -> str:
        """The message that nothing overtakes a gang that waits for the limit of a queue."""
        label = f"{self.queue(path).label}{self._below(path, queue)}"
        return f"{first.name} comes before it, and waits for the limit of {label}"

    def _below(self, path: Path, queue: str) -> str:
        """That a queue is below the one at the end of the path, where people know both."""
        is_plain = path[-1] == queue or bool(queue_of(self._queues, queue).user)
        return "" if is_plain else f", which {queue} is below"

    def _upwards(self, name: str) -> list[str]:
        names = [name]
        while parent := queue_of(self._queues, names[-1]).parent:
            if parent in names:
                first = min(names[names.index(parent) :])
                return names[: names.index(first) + 1]
            names.append(parent)
        return names


def add_all(sums: Sums, more: Mapping[Path, Resources]) -> Sums:
    """Add these amounts to the sums, and return them."""
    for path, one in more.items():
        sums[path] += one
    return sums


def prefixes(path: Path) -> Iterator[Path]:
    """The queues on a path, topmost first."""
    return (path[:length] for length in range(1, len(path) + 1))


def fair_share_order(  # noqa: PLR0913 - the whole question
    waiting: Sequence[Gang],
    queues: Mapping[str, Queue],
    used: Mapping[str, Resources],
    hardware: Hardware,
    planned: Collection[str] = (),
    *,
    ending: Mapping[Path, Resources] | None = None,
) -> tuple[list[Gang], dict[str, str]]:
    """The waiting gangs in fair-share order; and why not, for those over a limit.

    `planned` are the names of gangs with a planned start. `ending` is what counts for limits in
    addition to what is used, until victims are gone.
    """
    tree = Tree(queues)
    asked = {gang.name: needs(gang, hardware) for gang in waiting}
    turns = _Turns(tree, waiting, tree.summed(used), hardware)
    charged = add_all(tree.summed(used), ending or {})
    for gang in waiting:
        if gang.name in planned:
            tree.add(charged, gang.queue, asked[gang.name])
    stopped: dict[Path, Gang] = {}
    order: list[Gang] = []
    refused: dict[str, str] = {}
    for gang in turns:
        more = asked[gang.name]
        is_users = bool(queue_of(queues, gang.queue).user)  # a job or command, and no gang
        if gang.name not in planned:
            too_small = tree.over(gang.queue, more, defaultdict(Resources))
            if too_small is not None:
                how = "this one asks for" if is_users else "this gang asks for"
                refused[gang.name] = tree.limit_message(too_small, gang.queue, more, how)
                continue
            stop = next((one for one in tree.counting(gang.queue) if one in stopped), None)
            if stop is not None:
                refused[gang.name] = tree.behind_message(stopped[stop], stop, gang.queue)
                continue
            full = tree.over(gang.queue, more, charged)
            if full is not None:
                would = charged[full] + more
                how = "with this one it would be" if is_users else WITH_THIS
                refused[gang.name] = tree.limit_message(full, gang.queue, would, how)
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
    """The names of the gangs that their queue's and its ancestors' quotas cover, in this order."""
    tree, covered = Tree(queues), set()
    has = tree.summed(used)
    for gang in order:
        more = needs(gang, hardware)
        paths = prefixes(tree.path(gang.queue))
        if all(tree.queue(path).quota.covers(has[path] + more) for path in paths):
            tree.add(has, gang.queue, more)
            covered.add(gang.name)
    return covered


class _Turns:
    """Yields waiting gangs by the shares at that moment."""

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
            for path in prefixes(line):
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
        """Count a gang for its queues."""
        self._tree.add(self._has, gang.queue, more)
        for path in prefixes(self._tree.path(gang.queue)):
            self._rank(path)

    def _rank(self, path: Path) -> None:
        queue = self._tree.queue(path)
        had = share(self._has[path] + queue.past, self._total)
        self._ranks[path] = had / queue.weight, path[-1]

    def _end(self, path: Path) -> None:
        """Nothing waits in a queue any more, nor above it if that was the last."""
        del self._lines[path]
        while path and not self._below[path]:
            self._below[path[:-1]].discard(path)
            path = path[:-1]


def share(used: Resources, total: Resources) -> float:
    """The dominant share."""
    return max(used.milli / max(1, total.milli), used.bytes / max(1, total.bytes))


def borrows(queue: Queue, used: Resources) -> bool:
    """Whether a queue uses more than its quota."""
    return not queue.quota.covers(used)


def queue_of(queues: Mapping[str, Queue], name: str) -> Queue:
    """The queue of this name; without quota and limit if it is not described."""
    return queues.get(name) or Queue(name)
