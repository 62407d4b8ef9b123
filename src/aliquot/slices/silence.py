"""Telling a person that a command waits for an arbiter that does not answer.

The client of the arbiter waits in silence: most of its callers are programs. A command on a
terminal sets `notice.show`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Show = Callable[[Path, float], None]

PATIENCE_SECONDS = 2.0


@dataclass
class SilenceNotice:
    """Tells once of each arbiter that a command waits for it.

    `show` gets its state directory, and for how many more seconds at most.
    """

    show: Show | None = None
    _told: set[Path] = field(default_factory=set)

    def is_due(self, directory: Path, timeout: float) -> bool:
        """Whether somebody is to be told of a wait that takes at most `timeout` seconds."""
        return self.show is not None and timeout > PATIENCE_SECONDS and directory not in self._told

    def tell(self, directory: Path, seconds_left: float) -> None:
        """Tell of a wait that has begun."""
        self._told.add(directory)
        if self.show is not None:
            self.show(directory, seconds_left)


notice = SilenceNotice()
