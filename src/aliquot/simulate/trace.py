"""Our own trace: CSV files which also know gangs, durations, queues, GPU memory and links.

Nodes: `name,gpus` and, where they matter, `model,cpu_milli,memory_mib,gpu_memory_mib,rack,block,
links,strength`. `links` is `nvswitch`, `nvlink-pairs` or `pcie` (the default: all equal).

Gangs: `gang,submitted,seconds` and, where they matter, `members,gpus,milli,kind,gpu_memory_mib,
cpu_milli,memory_mib,models,thrifty,queue,priority,ran`. A line is so many equal members; lines of
the same gang are one gang. `kind` is whole, shared or sliced (the default: whole for 1000 milli,
else sliced), `models` are separated by |, `ran` is how long it really takes, where that is not what
was declared in `seconds`. Both must be more than 0; an empty `ran` is what was declared.

Queues, where there are any: `name` and, where they matter, `weight,quota_gpus,quota_memory_mib,
limit_gpus,limit_memory_mib`. GPUs may be parts of one, and are compute: 2.5 is two and a half GPUs'
time. What is left empty beside its neighbour is not bounded; without a quota at all nothing is the
queue's own, and without a limit it may borrow all that others leave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model.errors import BadValueError
from aliquot.model.units import MIB
from aliquot.placement.demand import WHOLE_MILLI, Demand, Gang, Kind
from aliquot.placement.links import Reach
from aliquot.placement.queues import Bound, Queue
from aliquot.placement.snapshot import NodeSpec
from aliquot.simulate.rows import read_rows, value

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.placement.links import Links

KINDS = {"whole": Kind.WHOLE, "shared": Kind.SHARED, "sliced": Kind.SLICED}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang of a trace, and how long it really runs."""

    gang: Gang
    ran: float


def read_nodes(path: Path) -> list[NodeSpec]:
    """The nodes of a trace."""
    return [
        NodeSpec(
            name=row["name"],
            gpus=int(value(row, "gpus", path)),
            model=row.get("model") or "",
            cpu_milli=int(value(row, "cpu_milli", path)),
            ram_bytes=int(value(row, "memory_mib", path)) * MIB,
            gpu_bytes=int(value(row, "gpu_memory_mib", path)) * MIB,
            rack=row.get("rack") or "",
            block=row.get("block") or "",
            links=links(row.get("links") or "", int(value(row, "gpus", path))),
            strength=value(row, "strength", path),
        )
        for _, row in read_rows(path, ("name", "gpus"))
    ]


def read_gangs(path: Path) -> list[Arrival]:
    """The gangs of a trace in the order in which they come."""
    gangs: dict[str, Arrival] = {}
    for line, row in read_rows(path, ("gang", "submitted", "seconds")):
        members = (_demand(row, path),) * int(_above_zero(row, "members", path, line, 1))
        name, seconds = row["gang"], _above_zero(row, "seconds", path, line)
        ran = _above_zero(row, "ran", path, line, seconds)
        if name in gangs:
            known = gangs[name]
            more = replace(known.gang, members=known.gang.members + members)
            gangs[name] = replace(known, gang=more)
            continue
        gang = Gang(
            name=name,
            members=members,
            seconds=seconds,
            queue=row.get("queue") or "",
            priority=int(value(row, "priority", path)),
            submitted=value(row, "submitted", path),
        )
        gangs[name] = Arrival(gang, ran)
    return sorted(gangs.values(), key=lambda one: (one.gang.submitted, one.gang.name))


def read_queues(path: Path) -> dict[str, Queue]:
    """The queues of a trace, by their names."""
    queues: dict[str, Queue] = {}
    for line, row in read_rows(path, ("name",)):
        name = row["name"]
        if name in queues:
            raise BadValueError(f"{path}, line {line}: queue {name!r} is there already")
        quota, limit = (_bound(row, of, path, line) for of in ("quota", "limit"))
        queues[name] = Queue(
            name,
            weight=_above_zero(row, "weight", path, line, 1),
            quota=Bound(0, 0) if quota == Bound() else quota,
            limit=limit,
        )
    return queues


def _bound(row: dict[str, str], of: str, path: Path, line: int) -> Bound:
    gpus, memory = f"{of}_gpus", f"{of}_memory_mib"
    for column in (gpus, memory):
        if value(row, column, path) < 0:
            raise BadValueError(f"{path}, line {line}: {column} cannot be {row[column]}")
    return Bound(
        round(value(row, gpus, path) * WHOLE_MILLI) if row.get(gpus) else None,
        int(value(row, memory, path)) * MIB if row.get(memory) else None,
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
    raise BadValueError(f"{shape!r} is no shape of links", "Write nvswitch, nvlink-pairs or pcie.")


def _table(gpus: int, rank: object) -> Links:
    return tuple(tuple(0 if a == b else rank(a, b) for b in range(gpus)) for a in range(gpus))  # type: ignore[operator]


def _demand(row: dict[str, str], path: Path) -> Demand:
    gpus = int(value(row, "gpus", path, 1))
    milli = int(value(row, "milli", path, WHOLE_MILLI)) if gpus else 0
    word = row.get("kind") or ("whole" if milli == WHOLE_MILLI else "sliced")
    if word not in KINDS:
        raise BadValueError(f"{path}: {word!r} is no kind", f"Write {', '.join(KINDS)}.")
    return Demand(
        gpus=gpus,
        kind=KINDS[word] if gpus else Kind.FREE,
        milli=milli,
        gpu_bytes=int(value(row, "gpu_memory_mib", path)) * MIB,
        cpu_milli=int(value(row, "cpu_milli", path)),
        ram_bytes=int(value(row, "memory_mib", path)) * MIB,
        models=frozenset(filter(None, (row.get("models") or "").split("|"))),
        thrifty=bool(value(row, "thrifty", path)),
    )


def _above_zero(
    row: dict[str, str], column: str, path: Path, line: int, default: float = 0.0
) -> float:
    found = value(row, column, path, default)
    if not (found > 0 and math.isfinite(found)):
        raise BadValueError(
            f"{path}, line {line}: {column} must be a number above 0, not {row.get(column)!r}"
        )
    return found
