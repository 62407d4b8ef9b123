"""Options that several commands share: their names and help."""

from __future__ import annotations

from typing import Annotated

import typer

from aliquot.model.grant import Isolation
from aliquot.model.neighbours import Neighbours
from aliquot.model.parking_rule import ParkingRule, parse_parking_rule
from aliquot.model.selection import GpuSelection
from aliquot.model.strength import UNKNOWN, parse_strength

Simulate = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL:COUNT",
        envvar="ALIQUOT_SIMULATE",
        help="Use COUNT simulated GPUs of a MODEL instead of this machine's, for example h100:8.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEMPLATE",
        show_default=False,
        help="Print one line for each row by a template of fields: '{name} {user}', or "
        "'{{.Name}} {{.User}}' as with docker. \\t is a tab. A wrong field lists all fields.",
    ),
]
NoTrunc = Annotated[
    bool, typer.Option("--no-trunc", help="Show all columns, and nothing shortened or cut.")
]
MinStrength = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        show_default=False,
        help="Use no GPU weaker than this: an A100 has 100, a T4 26.1; `aliquot gpus` shows it.",
    ),
]
Model = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Use only GPUs whose model has this in its name: H100, RTX 4090. Give it several "
        "times for several models.",
    ),
]
OnlyGpu = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GPU",
        show_default=False,
        help="Use only this GPU: its index as in `aliquot gpus`, its UUID, or the beginning of its "
        "UUID. Give it several times for several GPUs to choose from.",
    ),
]
NotGpu = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GPU",
        show_default=False,
        help="Do not use this GPU, named as in --gpu. Give it several times for several GPUs.",
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default="its name",
        help="The label by which --with and --apart-from of your other commands and jobs mean its "
        "slices; several may have the same.",
    ),
]
With = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="LABEL",
        show_default=False,
        help="Use only GPUs that have a slice of yours with this label. While there is none, any.",
    ),
]
ApartFrom = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL",
        show_default=False,
        help="Use no GPU that has a slice of yours with this label, and let none come later. Give "
        "it several times for several labels.",
    ),
]
Alone = Annotated[
    bool,
    typer.Option(
        "--alone",
        help="Use only GPUs without other slices, and let nobody else get one there. It counts as "
        "whole GPUs in limits and quotas.",
    ),
]

Swap = Annotated[
    bool | None,
    typer.Option(
        "--swap/--no-swap",
        show_default=False,
        help="Let its memory leave the GPU: while it is suspended, its memory is on the host and "
        "others use the GPU. Allocations of cuMemAlloc move; other memory stays. For one GPU. "
        "Without either: as the queue says in pool.toml, else no.",
    ),
]
ParkAfter = Annotated[
    str | None,
    typer.Option(
        "--park-after",
        metavar="DURATION[,always]|never",
        show_default=False,
        help="With --swap: when it has done no GPU work for so long (10m, 2h) and somebody wants "
        "the room, move its memory to the host; with ,always (10m,always) also if nobody does. It "
        "runs on; its next call that needs the memory brings it back, or waits for room. "
        "Without it: as the queue says, else never.",
    ),
]
SwapWait = Annotated[
    str | None,
    typer.Option(
        "--swap-wait",
        metavar="DURATION",
        show_default=False,
        help="With --swap, where slices take turns with the GPU's memory: how long others may keep "
        "it off the GPU at a time, from 2s to 1h. Without it: 15s.",
    ),
]
Spill = Annotated[
    str | None,
    typer.Option(
        "--spill",
        metavar="MEMORY",
        show_default=False,
        help="Memory of the host beside that of the GPU, for example 20GiB: allocations that no "
        "longer fit the slice are there, and the GPU uses them over the bus. For one GPU; not with "
        "--swap.",
    ),
]


IsolationOption = Annotated[
    Isolation,
    typer.Option(
        "--isolation",
        help="What keeps its slice apart from others of the GPU. soft: turns; mps: the same as "
        "a client of an MPS server, on which a failure of one program ends the GPU work of all of "
        "yours (docs/isolation.md); hardware: an instance of a GPU in MIG mode, for it alone.",
    ),
]


def read_park_after(given: str | None) -> ParkingRule | None:
    """What --park-after says."""
    return None if given is None else parse_parking_rule(given)


def read_swap_wait(given: str | None) -> float:
    """What --swap-wait says, in seconds; 0 without it."""
    from aliquot.model import parse_duration  # noqa: PLC0415 - imported when needed

    return 0.0 if given is None else parse_duration(given)


def read_spill(given: str | None) -> int:
    """What --spill says, in bytes."""
    from aliquot.model import parse_host_memory  # noqa: PLC0415 - imported when needed

    return 0 if given is None else parse_host_memory(given, "--spill")


def read_neighbours(
    label: str | None, beside: str | None, apart_from: list[str] | None, *, alone: bool
) -> Neighbours:
    """What --label, --with, --apart-from and --alone say."""
    return Neighbours(label, beside, tuple(apart_from or ()), alone)


def read_selection(
    model: list[str] | None, gpu: list[str] | None, not_gpu: list[str] | None
) -> GpuSelection:
    """What --model, --gpu and --not-gpu say."""
    return GpuSelection(tuple(model or ()), tuple(gpu or ()), tuple(not_gpu or ()))


def read_min_strength(text: str | None) -> float:
    """What --min-strength says."""
    return UNKNOWN if text is None else parse_strength(text)
