"""`aliquot explain` for this machine, and what `aliquot run --dry-run` prints for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import Column, Output, print_json, print_note, show_rows
from aliquot.devices import parse_shape
from aliquot.model import format_bytes
from aliquot.pool.preview import preview_json, preview_run
from aliquot.pool.refusal import with_wait
from aliquot.slices.gpu_choice import free_bytes, free_percent
from aliquot.slices.grant_facts import overcommit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Grant, Request
    from aliquot.pool.preview import RunPreview
    from aliquot.slices.gpu_choice import GpuVerdict

COLUMNS = (
    Column("gpu", "GPU"),
    Column("model", "Model", drop=2),
    Column("free", "Free", drop=1),
    Column("compute", "Compute", drop=1),
    Column("fits", "Fits"),
    Column("why", "Why", least=20, wraps=True),
)


def explain_machine(request: Request, simulate: str | None, *, json: bool) -> bool:
    """Say of each GPU of this machine why a request fits or not; whether it fits in all."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    driver = state.driver()
    if state.shape is not None:
        slices.prepare(state)
    found = preview_run(state, driver, request)
    preview = found.preview
    if json:
        print_json(preview_json(found, request, state.shape))
        return preview.refusal is None
    chosen = {gpu.uuid for gpu in preview.gpus}
    show_rows(COLUMNS, [_row(one, preview.grants, chosen) for one in preview.verdicts], Output())
    if preview.refusal is not None:
        print_note(f"The request does not fit: {_first_line(preview.refusal.message)}.")
    if found.swap and found.swap != request.swap_options:
        print_note(f"{by_queue(found)}.")
    for one in preview.verdicts:
        if (turns := overcommit_of(one.shared, preview.grants)) is not None:
            print_note(f"{one.shared.gpu}: {turns}.")
    if found.waiting is not None:
        print_note(f"{with_wait(found.waiting)}.")
    return preview.refusal is None


def by_queue(found: RunPreview) -> str:
    """What the request gets although it does not say so itself."""
    return f"By default of its queue it has {found.swap}"


def _row(one: GpuVerdict, grants: Sequence[Grant], chosen: set[str]) -> dict[str, str]:
    gpu = one.shared.gpu
    return {
        "gpu": str(gpu.index),
        "model": gpu.model,
        "free": format_bytes(free_bytes(one.shared)),
        "compute": f"{free_percent(one.shared, grants)}%",
        "fits": "chosen" if gpu.uuid in chosen else "yes" if one.fits else "no",
        "why": one.why,
    }


def _first_line(message: str) -> str:
    return message.partition("\n")[0].rstrip(":")
