"""Telling a person that a command waits for an arbiter or a pool that does not answer.

Their clients wait in silence: most of their callers are programs. A command on a terminal sets
`notice.show`.
"""

from __future__ import annotations

import select
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    Show = Callable[[str, float | None], None]

PATIENCE_SECONDS = 2.0


@dataclass
class SilenceNotice:
    """Tells once of each service that a command waits for it.

    `show` gets what it waits for, as "the arbiter in /run/aliquot", and for how many more seconds
    at most; None: without limit.
    """

    show: Show | None = None
    _told: set[str] = field(default_factory=set)

    def is_due(self, service: str, timeout: float | None) -> bool:
        """Whether somebody is to be told of a wait that takes at most `timeout` seconds."""
        long = timeout is None or timeout > PATIENCE_SECONDS
        return self.show is not None and long and service not in self._told

    def tell(self, service: str, seconds_left: float | None) -> None:
        """Tell of a wait that has begun."""
        self._told.add(service)
        if self.show is not None:
            self.show(service, seconds_left)


notice = SilenceNotice()


def await_reply(
    connection: socket.socket, service: str, timeout: float | None = None
) -> float | None:
    """Wait two seconds for a reply, then show the notice, if a command set one.

    Returns what is left of the timeout. Nothing is read, and without a notice nothing waited for.
    """
    if not notice.is_due(service, timeout):
        return timeout
    replies = select.poll()  # select(2) refuses descriptors from 1024 on
    replies.register(connection, select.POLLIN)
    if replies.poll(PATIENCE_SECONDS * 1000):
        return timeout
    left = None if timeout is None else timeout - PATIENCE_SECONDS
    notice.tell(service, left)
    return left
