"""Our own trace: CSV files which also know gangs, durations, queues, GPU memory and links.

docs/placement.md, "Traces", has every column with its unit and its values, and files to start from.

Nodes must have `name,gpus`, gangs `gang,submitted,seconds`, queues `name`. A line of gangs stands
for a number of equal members; lines with the same gang name are one gang. Columns about the gang
itself must be equal in all its lines, and may be empty below the first one. `seconds` is the
declared duration, `ran` the real one with its own members. `least` and `most`, in the first line of
a gang whose members are equal, say between which numbers of members it can be resized (see
`elastic`).

Quotas and limits of queues are GPUs' compute, where 2.5 is two and a half GPUs' time, and GPU
memory. If only one of the two is empty, that one is not bounded. Without any quota the queue owns
nothing, and without a limit it may borrow all that others leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.job import MAX_WORKERS, Sizes
from aliquot.model.units import MIB
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Gang, Kind
from aliquot.placement.core.links import Reach
from aliquot.placement.core.snapshot import NodeHardware
from aliquot.placement.core.wishes import Wishes
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.simulate.rows import (
    MOST,
    MOST_GPUS,
    MOST_SECONDS,
    Columns,
    read_rows,
    refuse_again,
)

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.placement.core.links import Links
    from aliquot.simulate.rows import CsvRow

MOST_MEMBERS = 10_000
MOST_MIB = 10**12  # of all GPUs
SHAPES = ("nvswitch", "nvlink-pairs", "pcie")
NODES = Columns(
    "nodes",
    ("name", "gpus"),
    (
        "model",
        "cpu_milli",
        "memory_mib",
        "gpu_memory_mib",
        "rack",
        "block",
        "links",
        "strength",
    ),
)
OF_THE_GANG = ("submitted", "seconds", "ran", "queue", "priority")
GANGS = Columns(
    "gangs",
    ("gang", "submitted", "seconds"),
    (
        "members",
        "gpus",
        "milli",
        "kind",
        "gpu_memory_mib",
        "cpu_milli",
        "memory_mib",
        "models",
        "thrifty",
        "min_strength",
        "on",
        "not_on",
        "label",
        "with",
        "apart_from",
        "alone",
        "queue",
        "priority",
        "ran",
        "least",
        "most",
    ),
)
QUEUES = Columns(
    "queues",
    ("name",),
    ("weight", "quota_gpus", "quota_memory_mib", "limit_gpus", "limit_memory_mib"),
)
OF_GPUS = (
    *("milli", "kind", "gpu_memory_mib", "models", "min_strength"),
    *("on", "not_on", "label", "with", "apart_from", "alone"),
)
KINDS = {"whole": Kind.WHOLE, "shared": Kind.SHARED, "sliced": Kind.SLICED}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang of a trace, and how long it really runs with the members that it asks for.

    `sizes` are the numbers of members that it can run with; None: with its own alone.
    """

    gang: Gang
    ran: float
    sizes: Sizes | None = None

    def __post_init__(self) -> None:
        if self.sizes is not None and len(set(self.gang.members)) > 1:
            raise InvalidValueError(
                f"gang {self.gang.name!r} cannot be resized: its members differ",
                "Make them equal, or leave out its least and most.",
            )


def read_nodes(path: Path) -> list[NodeHardware]:
    """The nodes of a trace."""
    rows = read_rows(path, NODES)
    refuse_again(rows, "name")
    return [_node(row) for row in rows]


def read_gangs(path: Path) -> list[Arrival]:
    """The gangs of a trace in the order in which they come."""
    gangs: dict[str, Arrival] = {}
    first: dict[str, CsvRow] = {}
    for row in read_rows(path, GANGS):
        name = row.name("gang")
        members = (_demand(row),) * row.whole("members", 1, least=1, most=MOST_MEMBERS)
        if name not in gangs:
            first[name], gangs[name] = row, _arrival(row, members)
            continue
        _check_same(row, first[name])
        known = gangs[name]
        if known.sizes is not None and members[0] != known.gang.members[0]:
            column = "least" if first[name].text("least") else "most"
            why = f": the gang's members differ, see line {row.line}, and it cannot be resized"
            raise first[name].wrong(column, "equal members, or nothing there", why=why)
        both = replace(known.gang, members=known.gang.members + members)
        gangs[name] = replace(known, gang=both)
    return sorted(gangs.values(), key=lambda one: (one.gang.submitted, one.gang.name))


def read_queues(path: Path) -> dict[str, Queue]:
    """The queues of a trace, by their names."""
    rows = read_rows(path, QUEUES)
    refuse_again(rows, "name")
    return {row.name("name"): _queue(row) for row in rows}


def _node(row: CsvRow) -> NodeHardware:
    gpus = row.whole("gpus", most=MOST_GPUS)
    return NodeHardware(
        name=row.name("name"),
        gpus=gpus,
        model=row.text("model"),
        cpu_milli=row.whole("cpu_milli", 0),
        ram_bytes=row.whole("memory_mib", 0) * MIB,
        gpu_bytes=row.whole("gpu_memory_mib", 0) * MIB,
        rack=row.text("rack"),
        block=row.text("block"),
        links=links(row.word("links", SHAPES), gpus),
        strength=row.number("strength", 0, least=-MOST),
        uuids=tuple(gpu_name(f"{row.name('name')}/{gpu}") for gpu in range(gpus)),
    )


def _arrival(row: CsvRow, members: tuple[Demand, ...]) -> Arrival:
    seconds = row.above_zero("seconds")
    gang = Gang(
        name=row.name("gang"),
        members=members,
        seconds=seconds,
        queue=row.text("queue"),
        priority=row.whole("priority", 0, least=-MOST),
        submitted=row.number("submitted", most=MOST_SECONDS),
    )
    ran = row.above_zero("ran", seconds)
    return Arrival(gang, ran, _sizes(row, len(members)))


def _check_same(row: CsvRow, first: CsvRow) -> None:
    """Refuse a line of a gang that says something else of it than its first line."""
    for column in OF_THE_GANG:
        said, before = row.text(column), first.text(column)
        if said and not _is_same(said, before):
            there = repr(before) if before else "empty"
            why = f": gang {first.text('gang')!r} is in line {first.line} already, with {there}"
            raise row.wrong(column, "the same, leave it empty, or name another gang", why=why)
    for column in ("least", "most"):
        if row.text(column):
            why = f": gang {first.text('gang')!r} is in line {first.line} already"
            raise row.wrong(column, "it in the gang's first line, and leave it empty here", why=why)


def _is_same(one: str, other: str) -> bool:
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


def _queue(row: CsvRow) -> Queue:
    quota, limit = (_bound(row, of) for of in ("quota", "limit"))
    pairs = {"gpus": (quota.milli, limit.milli), "memory_mib": (quota.bytes, limit.bytes)}
    for unit, (own, most) in pairs.items():
        if own is not None and most is not None and own > most:
            raise row.wrong(
                f"quota_{unit}",
                f"{row.text(f'limit_{unit}')} or less, or a higher limit",
                why=f": limit_{unit} is {row.text(f'limit_{unit}')}",
            )
    return Queue(
        row.name("name"),
        weight=row.above_zero("weight", 1, most=MOST),
        quota=Bound(0, 0) if quota == Bound() else quota,
        limit=limit,
    )


def _bound(row: CsvRow, of: str) -> Bound:
    gpus, memory = f"{of}_gpus", f"{of}_memory_mib"
    return Bound(
        round(row.number(gpus) * WHOLE_MILLI) if row.text(gpus) else None,
        row.whole(memory, most=MOST_MIB) * MIB if row.text(memory) else None,
    )


def links(shape: str, gpus: int) -> Links:
    """The links of a node by the name of their shape."""
    if shape in ("", "pcie"):
        return ()
    if shape == "nvswitch":
        return _table(gpus, lambda *_: int(Reach.NVLINK) + 18)
    if shape == "nvlink-pairs":
        near, far = int(Reach.NVLINK) + 4, int(Reach.PHB)
        return _table(gpus, lambda a, b: near if a // 2 == b // 2 else far)
    raise InvalidValueError(
        f"{shape!r} is no shape of links", "Write nvswitch, nvlink-pairs or pcie."
    )


def _table(gpus: int, rank: object) -> Links:
    return tuple(tuple(0 if a == b else rank(a, b) for b in range(gpus)) for a in range(gpus))  # type: ignore[operator]


def _demand(row: CsvRow) -> Demand:
    gpus = row.whole("gpus", 1, most=MOST_GPUS)
    if not gpus:
        for column in OF_GPUS:
            if row.text(column):
                raise row.wrong(column, "nothing there, or gpus above 0", why=" where gpus is 0")
    milli = row.whole("milli", WHOLE_MILLI, least=1, most=WHOLE_MILLI) if gpus else 0
    word = row.word("kind", tuple(KINDS)) or ("whole" if milli == WHOLE_MILLI else "sliced")
    if gpus and word == "whole" and milli != WHOLE_MILLI:
        raise row.wrong(
            "milli", "1000, leave it empty, or write kind sliced", why=" for kind whole"
        )
    is_alone = row.word("alone", ("0", "1")) == "1"
    return Demand(
        gpus=gpus,
        kind=(Kind.WHOLE if is_alone else KINDS[word]) if gpus else Kind.FREE,
        milli=WHOLE_MILLI if is_alone else milli,
        gpu_bytes=row.whole("gpu_memory_mib", 0) * MIB,
        cpu_milli=row.whole("cpu_milli", 0),
        ram_bytes=row.whole("memory_mib", 0) * MIB,
        models=_words(row, "models"),
        thrifty=row.word("thrifty", ("0", "1")) == "1",
        min_strength=row.number("min_strength", 0),
        wishes=_wishes(row, is_alone=is_alone),
    )


def _wishes(row: CsvRow, *, is_alone: bool) -> Wishes | None:
    """The GPUs and neighbours that a member asks for; None if it takes any."""
    wishes = Wishes(
        named=frozenset(map(gpu_name, _words(row, "on"))),
        excluded=frozenset(map(gpu_name, _words(row, "not_on"))),
        label=row.text("label"),
        beside=row.text("with"),
        apart_from=_words(row, "apart_from"),
    )
    if wishes.beside and is_alone:
        raise row.wrong("with", "nothing there, or alone 0", why=" where alone is 1")
    if wishes.beside in wishes.apart_from:
        raise row.wrong("with", "another label", why=": apart_from names it too")
    return None if wishes == Wishes() else wishes


def _words(row: CsvRow, column: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, row.text(column).split("|"))))


def gpu_name(word: str) -> str:
    """A GPU by its node and index, `node-0/3`; or the beginning of all names of a node, `node-0`.

    The name of one GPU is not the beginning of another's.
    """
    return f"{word.rstrip('/')}/"


def _sizes(row: CsvRow, members: int) -> Sizes | None:
    if not (row.text("least") or row.text("most")):
        return None
    least = row.whole("least", members, least=1, most=MAX_WORKERS)
    most = row.whole("most", members, least=1, most=MAX_WORKERS)
    if least > most:
        column = "least" if row.text("least") else "most"
        raise row.wrong(
            column,
            "a least that is not above most; what is left empty is the number of its members"
            f" ({members})",
            why=f": a gang cannot be resized between {least} and {most} members",
        )
    return Sizes(tuple(range(least, most + 1)))
