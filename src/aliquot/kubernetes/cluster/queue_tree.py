"""The tree of all queues, with their bounds and the mistakes in their specs. Pure.

Some mistakes make the order of queues undefined, such as a circle or a parent that does not exist:
`faults`. Nothing may start in such a queue. It counts as a top queue, so that what runs there keeps
its GPUs. Other mistakes are only suspicious: `warnings`.

A queue without a quota, but with queues below it, has the sum of their quotas. A queue without a
list of namespaces has the list of the queue above it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.queue import DEFAULT, LEVELS, QueueSpec
from aliquot.kubernetes.api.requests import quantity
from aliquot.model import format_bytes
from aliquot.model.errors import InvalidValueError
from aliquot.placement.core.demand import WHOLE_MILLI
from aliquot.placement.queues.quota import Bound, Queue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.kubernetes.api.queue import Amounts

    Specs = Mapping[str, QueueSpec]

NAMED = 8  # queues that a message lists at most
NOTHING = Bound(0, 0)


@dataclass(frozen=True, slots=True)
class QueueFault:
    """Why nothing can start in a queue; `text` continues a sentence after the queue's name."""

    queue: str
    reason: str
    text: str
    hint: str

    def message_for(self, name: str) -> str:
        """The message for that queue, or for one below it."""
        if name == self.queue:
            return f"queue {name!r} {self.text}. {self.hint}"
        return f"queue {name!r} is below {self.queue!r}, which {self.text}. {self.hint}"


@dataclass(frozen=True, slots=True)
class QueueTree:
    """All queues, with faults and warnings, and the queue of each namespace.

    `lists` names the queue whose `spec.namespaces` bounds a queue: its own, or the nearest above
    it. A queue that is missing there accepts all namespaces.
    """

    queues: dict[str, Queue] = field(default_factory=dict)
    faults: dict[str, QueueFault] = field(default_factory=dict)
    warnings: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    namespaces: dict[str, str] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)


def queue_tree_of(
    specs: Specs, ages: Mapping[str, str], largest_gpu: int, labelled: Collection[str] = ()
) -> QueueTree:
    """The tree of these specs.

    `ages`: when each queue was created; `largest_gpu`: bytes, or 0; `labelled`: the namespaces
    whose label names their queue.
    """
    written = DEFAULT in specs
    specs = {DEFAULT: QueueSpec(), **specs}
    tree = QueueTree()
    levels = _find_faults(tree, specs)
    _make_queues(tree, specs, largest_gpu)
    _sum_up_quotas(tree, specs, levels)
    _check_bounds(tree, specs)
    _share_out_namespaces(tree, specs, ages, labelled)
    _find_lists(tree, specs, levels)
    if not written and DEFAULT not in _below(tree):
        del tree.queues[DEFAULT]
    return tree


# --- the tree -------------------------------------------------------------------------------------


def _find_faults(tree: QueueTree, specs: Specs) -> dict[str, int]:
    """Visit each queue once, its parent first. Returns the level of each; a fault begins at 1."""
    levels: dict[str, int] = {}
    for start in sorted(specs):
        way: list[str] = []
        name = start
        while name in specs and name not in levels:
            levels[name] = 0  # on the way
            way.append(name)
            name = specs[name].parent
        if levels.get(name) == 0:
            circle = way[way.index(name) :]
            way = way[: way.index(name)]
            for one in circle:
                levels[one] = 1
                tree.faults[one] = _circular(one, circle)
        for one in reversed(way):
            levels[one] = levels.get(specs[one].parent, 0) + 1
            own = _fault_of(specs, one, levels[one])
            if own is not None:
                levels[one] = 1
            fault = own or tree.faults.get(specs[one].parent)
            if fault is not None:
                tree.faults[one] = fault
    return levels


def _circular(name: str, circle: list[str]) -> QueueFault:
    at = circle.index(name)
    way = [*circle[at:], *circle[:at], name]
    shown = way if len(way) <= NAMED else [*way[: NAMED - 1], "…", name]
    text = f"is below itself: {' below '.join(shown)}"
    return QueueFault(name, "CircularParents", text, "Change spec.parent of one of them.")


def _fault_of(specs: Specs, name: str, level: int) -> QueueFault | None:
    """The fault of a queue itself, not of one above it."""
    spec = specs[name]
    if spec.parent and spec.parent not in specs:
        text = f"has the parent {spec.parent!r}, which does not exist"
        hint = f"Create queue {spec.parent!r}, or change spec.parent of {name!r}."
        return QueueFault(name, "ParentNotFound", text, hint)
    if level > LEVELS:
        text = f"is below {LEVELS} other queues, and at most {LEVELS - 1} are allowed"
        return QueueFault(name, "TooDeep", text, "Choose a parent nearer to the top.")
    try:
        _queue(name, spec, 0)
    except InvalidValueError as error:
        return QueueFault(
            name, "InvalidSpec", f"has an invalid spec: {error.message}", "Correct its spec."
        )
    return None


# --- bounds ---------------------------------------------------------------------------------------


def _make_queues(tree: QueueTree, specs: Specs, largest_gpu: int) -> None:
    for name in sorted(specs):
        fault = tree.faults.get(name)
        try:
            one = _queue(name, specs[name], largest_gpu)
        except InvalidValueError:
            one = Queue(name)
        own = fault is not None and fault.queue == name
        tree.queues[name] = replace(one, parent="") if own else one


def _queue(name: str, spec: QueueSpec, largest_gpu: int) -> Queue:
    return Queue(
        name=name,
        weight=spec.weight,
        quota=NOTHING if spec.quota is None else bound_of(spec.quota, largest_gpu),
        limit=Bound() if spec.limit is None else bound_of(spec.limit, largest_gpu),
        parent=spec.parent,
    )


def bound_of(amounts: Amounts, largest_gpu: int) -> Bound:
    """The bound that all given amounts make. GPUs of unknown size do not bound memory."""
    gpus, compute, memory = amounts.gpus, amounts.compute, amounts.memory
    milli = [] if gpus is None else [WHOLE_MILLI * gpus]
    milli += [] if compute is None else [WHOLE_MILLI // 100 * compute]
    sizes = [] if gpus is None or (gpus and not largest_gpu) else [largest_gpu * gpus]
    sizes += [] if memory is None else [int(quantity(memory))]
    return Bound(min(milli, default=None), min(sizes, default=None))


def _sum_up_quotas(tree: QueueTree, specs: Specs, levels: Mapping[str, int]) -> None:
    """Give queues without a quota the sum of the quotas below them, the deepest first."""
    below = _below(tree)
    for name in sorted(below, key=lambda one: -levels[one]):
        if specs[name].quota is None:
            quota = _sum(tree.queues[one].quota for one in below[name])
            tree.queues[name] = replace(tree.queues[name], quota=quota)


def _below(tree: QueueTree) -> dict[str, list[str]]:
    """The queues directly below each queue that has any."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for one in tree.queues.values():
        if one.parent:
            found[one.parent].append(one.name)
    return found


def _sum(bounds: Iterable[Bound]) -> Bound:
    milli, sizes = zip(*((one.milli, one.bytes) for one in bounds), strict=True)
    return Bound(None if None in milli else sum(milli), None if None in sizes else sum(sizes))


# --- warnings -------------------------------------------------------------------------------------


def _check_bounds(tree: QueueTree, specs: Specs) -> None:
    below = _below(tree)
    for name, one in tree.queues.items():
        warnings = tree.warnings[name]
        above = tree.queues.get(one.parent)
        if above is not None and (found := _larger(one.quota, above.quota)):
            warnings.append(
                f"its quota of {found[0]} is larger than the {found[1]} of its parent"
                f" {above.name!r}: the parent's quota counts for all queues below it"
            )
        if found := _larger(one.quota, one.limit):
            warnings.append(
                f"its quota of {found[0]} is larger than its limit of {found[1]}:"
                " it can never use all of its quota"
            )
        if name in below and specs[name].quota is not None:
            together = _sum(tree.queues[other].quota for other in below[name])
            if found := _larger(together, one.quota):
                warnings.append(
                    f"the queues below it have a total quota of {found[0]}, and it has {found[1]}:"
                    " they cannot all use their quotas at the same time"
                )


def _larger(one: Bound, other: Bound) -> tuple[str, str] | None:
    """Both amounts, for messages, of what the first is larger in; None if it is not larger."""
    if one.milli is not None and other.milli is not None and one.milli > other.milli:
        return f"{one.milli / 10:g} % of compute", f"{other.milli / 10:g} %"
    if one.bytes is not None and other.bytes is not None and one.bytes > other.bytes:
        return f"{format_bytes(one.bytes)} of memory", format_bytes(other.bytes)
    return None


def _find_lists(tree: QueueTree, specs: Specs, levels: Mapping[str, int]) -> None:
    """Find the list of namespaces that bounds each queue, the highest queues first."""
    for name in sorted(specs, key=lambda one: levels[one]):
        if specs[name].namespaces:
            tree.lists[name] = name
        elif (above := tree.queues[name].parent) in tree.lists:
            tree.lists[name] = tree.lists[above]


def _share_out_namespaces(
    tree: QueueTree, specs: Specs, ages: Mapping[str, str], labelled: Collection[str]
) -> None:
    """A namespace that several queues name is in the oldest of them, unless its label decides."""
    for name in sorted(specs, key=lambda one: (ages.get(one, ""), one)):
        for namespace in specs[name].namespaces:
            first = tree.namespaces.setdefault(namespace, name)
            if first != name and namespace not in labelled:
                text = f"names the namespace {namespace!r}, which belongs to {first!r}"
                tree.warnings[name].append(f"it {text}")
                tree.warnings[first].append(f"{name!r} {text}")
