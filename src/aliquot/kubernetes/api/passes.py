"""A loop that looks at everything again whenever something has changed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aliquot.kubernetes.api.changes import Changes

PASS_SECONDS = 2.0  # at least so often, since time alone makes a difference
LONGEST_PAUSE = 5.0  # between passes; a long pass is followed by a pause as long
BURST_SECONDS = 0.05  # changes come in bursts

_log = structlog.get_logger(__name__)


async def repeat(
    one_pass: Callable[[], Awaitable[None]],
    changes: Changes,
    leading: Callable[[], bool],
    over: str,
) -> None:
    """Make a pass whenever something has changed, while this replica leads, until cancelled.

    A pass that fails is logged, as one over what `over` says, and the next one comes soon.
    """
    seen = -1
    while True:
        if changes.count == seen or not leading():
            await changes.wait(PASS_SECONDS)
        await asyncio.sleep(BURST_SECONDS)
        seen = changes.count
        if not leading():
            continue
        began = time.perf_counter()
        try:
            await one_pass()
        except Exception:  # noqa: BLE001 - the rest of the scheduler goes on
            _log.exception(f"a pass over {over} failed; the next one comes soon")
        await asyncio.sleep(min(time.perf_counter() - began, LONGEST_PAUSE))
