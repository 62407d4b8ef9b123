"""The books, kept: a change is in the file before anybody hears of it, or it is no change.

There is no waiting inside a change, so whoever looks at the books sees whole ones.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aliquot.kubernetes.node.books import Books
    from aliquot.kubernetes.node.store import Store


class Record:
    """Books, their file, and who is told of changes."""

    def __init__(self, books: Books, store: Store) -> None:
        self.books = books
        self._store = store
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Tell of every change."""
        self._listeners.append(listener)

    def announce(self) -> None:
        """Tell that the books are not as they were."""
        for listener in self._listeners:
            listener()

    @contextmanager
    def changing(self) -> Iterator[Books]:
        """Change the books; what cannot be kept, or fails halfway, is taken back."""
        mark = self.books.mark()
        try:
            yield self.books
            if self.books.mark() == mark:
                return
            self._store.save(self.books)
        except BaseException:
            self.books.reset(mark)
            raise
        self.announce()
