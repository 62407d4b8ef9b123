"""A replica's term as the leader.

It begins when the replica has read what the leader before wrote. It lasts while it holds the lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Term:
    """Terms follow each other; `number` tells them apart.

    `leading` asks the lease's own clock: a replica that was frozen for longer than its lease does
    not act on what it knew before.
    """

    def __init__(self, leading: Callable[[], bool]) -> None:
        self._leading = leading
        self._begun = False
        self.number = 0

    @property
    def is_on(self) -> bool:
        """Whether this replica may act at this moment."""
        return self._begun and self._leading()

    def begin(self) -> None:
        """This replica leads, and has read what the leader before wrote."""
        self._begun = True

    def end(self) -> None:
        """This replica does not lead any more, or leads again."""
        self._begun = False
        self.number += 1

    def lasts(self, number: int) -> bool:
        """Whether the term of this number is still on."""
        return self.is_on and self.number == number
