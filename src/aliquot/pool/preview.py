"""What `aliquot run` would do now: as the arbiter's status says, and the pool if it decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.model.errors import AliquotError, NoCapacityError
from aliquot.pool.refusal import WAIT_FOR_IT, no_queue, not_admitted
from aliquot.pool.run_client import ask_preview
from aliquot.pool.runs import Waiting
from aliquot.slices.gpu_choice import free_bytes, free_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.devices import Driver, Shape
    from aliquot.model import Grant, Request
    from aliquot.slices import Preview, StateDirectory
    from aliquot.slices.gpu_choice import GpuVerdict


@dataclass(frozen=True, slots=True)
class RunPreview:
    """What it would get. If it is refused, `waiting` is its place if it waited, where known.

    `swap`: --swap and --park-after as they would hold for it.
    """

    preview: Preview
    waiting: Waiting | None = None
    swap: str = ""


def preview_run(  # noqa: PLR0913 - all of a run
    state: StateDirectory,
    driver: Driver,
    request: Request,
    *,
    name: str | None = None,
    queue: str | None = None,
    wait: bool = False,
) -> RunPreview:
    """Preview a run. Root's pool decides about all, any other one about those in its queues."""
    found = slices.preview_grant(state, driver, request, name)
    fits = found.refusal is None
    if not fits and not isinstance(found.refusal, NoCapacityError):
        return RunPreview(found)
    try:
        said = ask_preview(state, request, queue, shared=fits and not wait and queue is None)
    except AliquotError as error:
        return RunPreview(replace(found, gpus=(), refusal=error))
    if said is None:
        shown = found if queue is None else replace(found, gpus=(), refusal=no_queue(queue))
        return RunPreview(shown, swap=request.swap_options)
    if isinstance(said, Waiting):
        planned = NoCapacityError(not_admitted(said.why), WAIT_FOR_IT)
        return RunPreview(replace(found, gpus=(), refusal=found.refusal or planned), said)
    by_uuid = {one.shared.gpu.uuid: one.shared.gpu for one in found.verdicts}
    chosen = tuple(by_uuid[uuid] for uuid in said.gpus if uuid in by_uuid)
    return RunPreview(replace(found, gpus=chosen, refusal=None), swap=said.swap)


def preview_json(found: RunPreview, request: Request, shape: Shape | None) -> dict[str, Any]:
    """What would be made and where, or why not; every GPU with the reason, the best first."""
    preview, place = found.preview, found.waiting
    refusal = preview.refusal
    return {
        "simulated": None if shape is None else str(shape),
        "fits": refusal is None,
        "error": None if refusal is None else refusal.message,
        "hint": None if refusal is None else refusal.hint,
        "waiting": None
        if place is None
        else {
            "reason": place.why,
            "place": place.place,
            "of": place.of,
            "expected_start": place.expected,
        },
        "slices": [
            {
                "gpu": gpu.uuid,
                "index": gpu.index,
                "memory_bytes": request.bytes_on(gpu),
                "compute_percent": request.compute_percent or None,
            }
            for gpu in preview.gpus
        ],
        "swap": found.swap or None,
        "gpus": [_gpu_json(one, preview.grants) for one in preview.verdicts],
    }


def _gpu_json(one: GpuVerdict, grants: Sequence[Grant]) -> dict[str, Any]:
    gpu = one.shared.gpu
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "free_bytes": free_bytes(one.shared),
        "free_percent": free_percent(one.shared, grants),
        "fits": one.fits,
        "why": one.why,
    }
