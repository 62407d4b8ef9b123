"""What a queue adds to requests that do not say it themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.model.errors import UnsupportedError
from aliquot.pool.capacity import MachinePlan
from aliquot.slices import control

if TYPE_CHECKING:
    from aliquot.model import Request
    from aliquot.model.request import SwapDefault
    from aliquot.slices.arbiter_status import Status


def with_swap_default(
    request: Request, default: SwapDefault | None, status: Status, workers: int = 1
) -> Request:
    """The request with its queue's default, unless the machine refuses it only for that.

    What the queue says about over-commit always holds, and nothing that the request says of it.
    """
    most = default.overcommit if default is not None and request.swap else 0.0
    request = replace(request, overcommit=most)
    if default is None or (found := default.applied(request)) == request:
        return request
    try:
        control.check_swap(status, found)
    except UnsupportedError:
        return request
    empty = MachinePlan.of_empty(status)
    lost = empty.holds(request, workers) and not empty.holds(found, workers)
    return request if lost else found
