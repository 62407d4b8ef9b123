"""What `aliquot run` would do now: as the arbiter's status says, and the pool if it decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.model.errors import AliquotError, NoCapacityError
from aliquot.pool.refusal import WAIT_FOR_IT, no_queue, not_admitted
from aliquot.pool.run_client import ask_preview
from aliquot.pool.runs import Waiting

if TYPE_CHECKING:
    from aliquot.devices import Driver
    from aliquot.model import Request
    from aliquot.slices import Preview, StateDirectory


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
