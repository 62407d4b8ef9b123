"""`aliquot up`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.devices import check_version, parse_shape
from aliquot.placement.elastic.resize import Rules
from aliquot.pool.up import bring_up, read_queues

if TYPE_CHECKING:
    from pathlib import Path


def up(
    simulate: str | None, queues: Path | None, resize_every: float, settle: float | None
) -> None:
    """Run the pool of this machine or of a simulated one."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    if state.shape is None:
        check_version(state.driver())
    rules = Rules(
        resize_seconds=resize_every, settle_seconds=resize_every if settle is None else settle
    )
    bring_up(state, rules, {} if queues is None else read_queues(queues), _say)


def _say(line: str) -> None:
    with suppress(OSError):  # a closed stderr must not stop the pool
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} aliquot: {line}\n")
        sys.stderr.flush()
