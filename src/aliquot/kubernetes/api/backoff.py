"""How long to wait before the next try: twice as long each time, with chance, up to a bound.

With chance, since thousands of agents lose the API server in the same instant.
"""

from __future__ import annotations

import random


class Backoff:
    """Waits between tries that fail."""

    def __init__(self, first: float = 0.1, most: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def reset(self) -> None:
        """It worked."""
        self._next = self._first

    def wait(self) -> float:
        """Seconds to wait now."""
        now = self._next * random.uniform(0.5, 1.5)  # noqa: S311 - chance, not secrets
        self._next = min(2 * self._next, self._most)
        return now
