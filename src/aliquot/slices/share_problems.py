"""Slices and processes whose compute share does not hold, or that disturb the shares of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import Gates, Turn
from aliquot.slices.gate_support import error_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.model import ComputeUse, Grant
    from aliquot.slices.arbiter_status import Status


def share_problems(status: Status) -> Iterator[str]:
    """One sentence for every such slice or process; it names the grant and the process."""
    yield from lost_shares(status)
    yield from slice_problems(status)


def slice_problems(status: Status) -> Iterator[str]:
    """The sentences about slices."""
    gpus = {one.gpu.uuid: str(one.gpu) for one in status.gpus}
    for grant in status.grants:
        for part, compute in zip(grant.slices, grant.compute, strict=True):
            gpu = gpus.get(part.gpu_uuid, part.gpu_uuid)
            if problem := _problem(grant, compute, gpu):
                whose = "another user's grant" if grant.is_hidden else f"grant {grant.name}"
                yield f"{whose}: {problem}"


def lost_shares(status: Status) -> Iterator[str]:
    """One sentence for every process that an arbiter could not adopt with its share."""
    for grant in status.grants:
        for process in grant.processes:
            if process.ungated is not None:
                yield (
                    f"grant {grant.name}: process {process.name} ({process.pid}) takes no turns:"
                    f" {process.ungated}"
                )


def _problem(grant: Grant, compute: ComputeUse, gpu: str) -> str | None:
    if compute.gates is Gates.FAIL:
        return (
            f"its compute share does not work on {gpu}: {error_text(compute.why)};"
            " its memory limit does"
        )
    if compute.gates is Gates.INVALID:
        return (
            f"{_processes(grant)} wrote impossible counts to its work page on {gpu}: it gets no"
            " more credit. End it"
        )
    match compute.turn:
        case Turn.OVERDUE:
            return f"{_processes(grant)} is overdue on {gpu}: the others run at the same time"
        case Turn.EXEMPT:
            return (
                f"{_processes(grant)} was overdue too often on {gpu}: it takes no turns for a while"
                " and runs at the same time as the others"
            )
        case _:
            return None


def _processes(grant: Grant) -> str:
    live = [f"{one.name} ({one.pid})" for one in grant.processes if one.state == "live"]
    match live:
        case []:
            return "what it started"
        case [one]:
            return f"process {one}"
        case _:
            return f"one of {', '.join(live)}"
