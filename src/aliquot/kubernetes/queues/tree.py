"""What comes from all queues together: the tree, bounds as the brain knows them, mistakes. Pure.

Some mistakes leave no way to say whose turn it is, as a circle does, or a parent that does not
exist: `troubles`. Such a queue is taken as a topmost one, so that what runs there keeps what it
has; who asks must start nothing there. Others are only hardly what is meant: `doubts`.

A queue without a quota that has others below it has theirs together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.pods import quantity
from aliquot.kubernetes.queues.spec import DEFAULT, LEVELS, QueueSpec
from aliquot.model import format_bytes
from aliquot.model.errors import InvalidValueError
from aliquot.placement.demand import WHOLE_MILLI
from aliquot.placement.queues import Bound, Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aliquot.kubernetes.queues.spec import Amounts

    Specs = Mapping[str, QueueSpec]

NAMED = 8  # queues that a sentence names
NOTHING = Bound(0, 0)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing starts in a queue: `reason` is the word for it, and `text` follows its name."""

    queue: str
    reason: str
    text: str
    hint: str

    def of(self, name: str) -> str:
        """As it is told of that queue, or of one below it."""
        if name == self.queue:
            return f"queue {name!r} {self.text}. {self.hint}"
        return f"queue {name!r} is below {self.queue!r}, which {self.text}. {self.hint}"


@dataclass(frozen=True, slots=True)
class Picture:
    """All queues, with what is wrong and what is doubtful, and the queue of each namespace."""

    queues: dict[str, Queue] = field(default_factory=dict)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    doubts: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    namespaces: dict[str, str] = field(default_factory=dict)


def picture_of(specs: Specs, ages: Mapping[str, str], largest_gpu: int) -> Picture:
    """All of it. `ages` is when each queue was made; `largest_gpu` its bytes, 0 without any."""
    written = DEFAULT in specs
    specs = {DEFAULT: QueueSpec(), **specs}
    picture = Picture()
    levels = _find_troubles(picture, specs)
    _make_queues(picture, specs, largest_gpu)
    _sum_up_quotas(picture, specs, levels)
    _doubt_bounds(picture, specs)
    _share_out_namespaces(picture, specs, ages)
    if not written and DEFAULT not in _below(picture):
        del picture.queues[DEFAULT]
    return picture


# --- the tree -------------------------------------------------------------------------------------


def _find_troubles(picture: Picture, specs: Specs) -> dict[str, int]:
    """Look at each queue once, those above it first. The level of each, where mistakes are cut."""
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
                picture.troubles[one] = _circular(one, circle)
        for one in reversed(way):
            levels[one] = levels.get(specs[one].parent, 0) + 1
            own = _trouble_of(specs, one, levels[one])
            if own is not None:
                levels[one] = 1
            trouble = own or picture.troubles.get(specs[one].parent)
            if trouble is not None:
                picture.troubles[one] = trouble
    return levels


def _circular(name: str, circle: list[str]) -> Trouble:
    at = circle.index(name)
    way = [*circle[at:], *circle[:at], name]
    shown = way if len(way) <= NAMED else [*way[: NAMED - 1], "…", name]
    text = f"is below itself: {' below '.join(shown)}"
    return Trouble(name, "CircularTree", text, "Change spec.parent of one of them.")


def _trouble_of(specs: Specs, name: str, level: int) -> Trouble | None:
    """What is wrong with a queue itself, not with one above it."""
    spec = specs[name]
    if spec.parent and spec.parent not in specs:
        text = f"has the parent {spec.parent!r}, which does not exist"
        hint = f"Create queue {spec.parent!r}, or change spec.parent of {name!r}."
        return Trouble(name, "NoSuchParent", text, hint)
    if level > LEVELS:
        text = f"has {LEVELS} queues above it, which is one too many"
        return Trouble(name, "TooDeep", text, "Put it below one that is nearer to the top.")
    try:
        _queue(name, spec, 0)
    except InvalidValueError as error:
        return Trouble(name, "BadSpec", f"makes no sense: {error.message}", "Correct its spec.")
    return None


# --- bounds ---------------------------------------------------------------------------------------


def _make_queues(picture: Picture, specs: Specs, largest_gpu: int) -> None:
    for name in sorted(specs):
        trouble = picture.troubles.get(name)
        try:
            one = _queue(name, specs[name], largest_gpu)
        except InvalidValueError:
            one = Queue(name)
        own = trouble is not None and trouble.queue == name
        picture.queues[name] = replace(one, parent="") if own else one


def _queue(name: str, spec: QueueSpec, largest_gpu: int) -> Queue:
    return Queue(
        name=name,
        weight=spec.weight,
        quota=NOTHING if spec.quota is None else bound_of(spec.quota, largest_gpu),
        limit=Bound() if spec.limit is None else bound_of(spec.limit, largest_gpu),
        parent=spec.parent,
    )


def bound_of(amounts: Amounts, largest_gpu: int) -> Bound:
    """A bound for the brain: all that is written. So many GPUs of unknown size have any memory."""
    gpus, compute, memory = amounts.gpus, amounts.compute, amounts.memory
    milli = [] if gpus is None else [WHOLE_MILLI * gpus]
    milli += [] if compute is None else [WHOLE_MILLI // 100 * compute]
    sizes = [] if gpus is None or (gpus and not largest_gpu) else [largest_gpu * gpus]
    sizes += [] if memory is None else [int(quantity(memory))]
    return Bound(min(milli, default=None), min(sizes, default=None))


def _sum_up_quotas(picture: Picture, specs: Specs, levels: Mapping[str, int]) -> None:
    """Give those without a quota that of all below them, the lowest first."""
    below = _below(picture)
    for name in sorted(below, key=lambda one: -levels[one]):
        if specs[name].quota is None:
            quota = _together(picture.queues[one].quota for one in below[name])
            picture.queues[name] = replace(picture.queues[name], quota=quota)


def _below(picture: Picture) -> dict[str, list[str]]:
    """The queues below each that has any."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for one in picture.queues.values():
        if one.parent:
            found[one.parent].append(one.name)
    return found


def _together(bounds: Iterable[Bound]) -> Bound:
    milli, sizes = zip(*((one.milli, one.bytes) for one in bounds), strict=True)
    return Bound(None if None in milli else sum(milli), None if None in sizes else sum(sizes))


# --- doubts ---------------------------------------------------------------------------------------


def _doubt_bounds(picture: Picture, specs: Specs) -> None:
    below = _below(picture)
    for name, one in picture.queues.items():
        doubts = picture.doubts[name]
        above = picture.queues.get(one.parent)
        if above is not None and (found := _larger(one.quota, above.quota)):
            doubts.append(
                f"its quota of {found[0]} is larger than the {found[1]} of {above.name!r} above it:"
                " that one's counts for all below"
            )
        if found := _larger(one.quota, one.limit):
            doubts.append(
                f"its quota of {found[0]} is larger than its limit of {found[1]}:"
                " it never has all of it"
            )
        if name in below and specs[name].quota is not None:
            together = _together(picture.queues[other].quota for other in below[name])
            if found := _larger(together, one.quota):
                doubts.append(
                    f"the queues below it have a quota of {found[0]} together, and it has"
                    f" {found[1]}: not all of them can have theirs at once"
                )


def _larger(one: Bound, other: Bound) -> tuple[str, str] | None:
    """Both, for people, in what the one is larger in."""
    if one.milli is not None and other.milli is not None and one.milli > other.milli:
        return f"{one.milli / 10:g} % of compute", f"{other.milli / 10:g} %"
    if one.bytes is not None and other.bytes is not None and one.bytes > other.bytes:
        return f"{format_bytes(one.bytes)} of memory", format_bytes(other.bytes)
    return None


def _share_out_namespaces(picture: Picture, specs: Specs, ages: Mapping[str, str]) -> None:
    """A namespace that several name belongs to the oldest of them."""
    for name in sorted(specs, key=lambda one: (ages.get(one, ""), one)):
        for namespace in specs[name].namespaces:
            first = picture.namespaces.setdefault(namespace, name)
            if first != name:
                text = f"names the namespace {namespace!r}, which is {first!r}'s already"
                picture.doubts[name].append(f"it {text}")
                picture.doubts[first].append(f"{name!r} {text}")
