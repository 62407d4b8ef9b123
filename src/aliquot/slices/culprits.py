"""Who does not keep to its turns, in words that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import Gates, Turn
from aliquot.slices.gates import driver_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.model import ComputeUse, Grant
    from aliquot.slices.control import Status


def culprits(seen: Status) -> Iterator[str]:
    """A sentence for every slice whose share does not hold, or that spoils others' shares."""
    places = {one.gpu.uuid: str(one.gpu) for one in seen.gpus}
    for grant in seen.grants:
        for part, compute in zip(grant.slices, grant.compute, strict=True):
            place = places.get(part.gpu_uuid, part.gpu_uuid)
            if words := _words(grant, compute, place):
                yield f"grant {grant.name}: {words}"


def _words(grant: Grant, compute: ComputeUse, place: str) -> str | None:
    if compute.gates is Gates.FAIL:
        return (
            f"its compute share does not hold on {place}: {driver_words(compute.why)};"
            " its memory limit does"
        )
    match compute.turn:
        case Turn.OVERDUE:
            return f"{_who(grant)} has not come to its end on {place}: the others go on beside it"
        case Turn.EXEMPT:
            return (
                f"{_who(grant)} was overdue too often on {place}: for a while it takes no turns,"
                " and runs beside the others"
            )
        case _:
            return None


def _who(grant: Grant) -> str:
    live = [f"{one.name} ({one.pid})" for one in grant.processes if one.state == "live"]
    match live:
        case []:
            return "what it started"
        case [one]:
            return f"process {one}"
        case _:
            return f"one of {', '.join(live)}"
