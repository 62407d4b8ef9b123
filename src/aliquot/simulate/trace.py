"""Our own trace: two CSV files, which also know gangs, durations, GPU memory and links.

Nodes: `name,gpus` and, where they matter, `model,cpu_milli,memory_mib,gpu_memory_mib,rack,block,
links,strength`. `links` is `nvswitch`, `nvlink-pairs` or `pcie` (the default: all equal).

Gangs: `gang,submitted,seconds` and, where they matter, `members,gpus,milli,kind,gpu_memory_mib,
cpu_milli,memory_mib,models,thrifty,queue,priority,ran`. A line is so many equal members; lines of
the same gang are one gang. `kind` is whole, shared or sliced (the default: whole for 1000 milli,
else sliced), `models` are separated by |, `ran` is how long it really takes, where that is not what
was declared in `seconds`. Both must be more than 0; an empty `ran` is what was declared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model.errors import BadValueError
from aliquot.model.units import MIB
from aliquot.placement.demand import WHOLE_MILLI, Demand, Gang, Kind
from aliquot.placement.links import Reach
from aliquot.placement.snapshot import NodeSpec
from aliquot.simulate.openb import numbered_rows, read_rows

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
            gpus=int(_value(row, "gpus", path)),
            model=row.get("model") or "",
            cpu_milli=int(_value(row, "cpu_milli", path)),
            ram_bytes=int(_value(row, "memory_mib", path)) * MIB,
            gpu_bytes=int(_value(row, "gpu_memory_mib", path)) * MIB,
            rack=row.get("rack") or "",
            block=row.get("block") or "",
            links=links(row.get("links") or "", int(_value(row, "gpus", path))),
            strength=_value(row, "strength", path),
        )
        for row in read_rows(path, ("name", "gpus"))
    ]


def read_gangs(path: Path) -> list[Arrival]:
    """The gangs of a trace in the order in which they come."""
    gangs: dict[str, Arrival] = {}
    for line, row in numbered_rows(path, ("gang", "submitted", "seconds")):
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
            priority=int(_value(row, "priority", path)),
            submitted=_value(row, "submitted", path),
        )
        gangs[name] = Arrival(gang, ran)
    return sorted(gangs.values(), key=lambda one: (one.gang.submitted, one.gang.name))


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
    gpus = int(_value(row, "gpus", path, 1))
    milli = int(_value(row, "milli", path, WHOLE_MILLI)) if gpus else 0
    word = row.get("kind") or ("whole" if milli == WHOLE_MILLI else "sliced")
    if word not in KINDS:
        raise BadValueError(f"{path}: {word!r} is no kind", f"Write {', '.join(KINDS)}.")
    return Demand(
        gpus=gpus,
        kind=KINDS[word] if gpus else Kind.FREE,
        milli=milli,
        gpu_bytes=int(_value(row, "gpu_memory_mib", path)) * MIB,
        cpu_milli=int(_value(row, "cpu_milli", path)),
        ram_bytes=int(_value(row, "memory_mib", path)) * MIB,
        models=frozenset(filter(None, (row.get("models") or "").split("|"))),
        thrifty=bool(_value(row, "thrifty", path)),
    )


def _value(row: dict[str, str], column: str, path: Path, default: float = 0.0) -> float:
    text = row.get(column)
    if not text:
        return default
    try:
        return float(text)
    except ValueError as error:
        raise BadValueError(f"{path}: {text!r} is no number for {column}") from error


def _above_zero(
    row: dict[str, str], column: str, path: Path, line: int, default: float = 0.0
) -> float:
    value = _value(row, column, path, default)
    if not (value > 0 and math.isfinite(value)):
        raise BadValueError(
            f"{path}, line {line}: {column} must be a number above 0, not {row.get(column)!r}"
        )
    return value
