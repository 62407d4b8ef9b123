"""How long to wait before the next try: twice as long each time, with jitter, up to a bound.

The jitter spreads the load when thousands of agents lose the API server at the same instant.
"""

from __future__ import annotations

import random


class Backoff:
    """The pauses between failing tries."""

    def __init__(self, first: float = 0.1, most: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def reset(self) -> None:
        """A try has succeeded."""
        self._next = self._first

    def wait(self) -> float:
        """Seconds to wait before the next try."""
        now = self._next * random.uniform(0.5, 1.5)  # noqa: S311 - jitter, not a secret
        self._next = min(2 * self._next, self._most)
        return now
