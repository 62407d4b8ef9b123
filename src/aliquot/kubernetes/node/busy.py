"""How much of the time of their GPUs containers really use, in coarse steps, once a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import busy_steps
from aliquot.slices.rates import slice_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.slices.arbiter_status import Status

SECONDS = 60.0


class BusyMonitor:
    """`steps` are eighths of a GPU's time in the last whole minute, by grant and UUID.

    Those that used none, or less than a sixteenth, are not in it. `changed` is called if another
    minute gave something else: so the node's object is written at most once a minute for this.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._since: Status | None = None
        self.steps: Mapping[tuple[str, str], int] = {}

    def check(self, status: Status) -> None:
        """Look at a status of the arbiter; counters of another arbiter begin anew."""
        since = self._since
        if since is None or since.pid != status.pid:
            self._since = status
            return
        if status.now - since.now < SECONDS:
            return
        self._since = status
        before, self.steps = (
            self.steps,
            {
                (name, gpu): steps
                for (name, _, gpu), rates in slice_rates(since, status).items()
                if (steps := busy_steps(rates.got_ratio))
            },
        )
        if self.steps != before:
            self._changed()
