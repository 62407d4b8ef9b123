"""All rows of some allocations with a strategy's own columns, brought up to date as they change.

A question about a shape that was never asked for looks at all nodes. Most of what it needs does not
depend on the shape: what is left of each GPU, and what the strategy thinks of the node as it is.
Computing that again for a few changed rows is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aliquot.placement.core.fit import all_rows, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.fit import Rows
    from aliquot.placement.core.snapshot import Hardware, Ints

OWN = ("free", "size_left")  # copies; the other columns are the allocations' own arrays


class KeptRows:
    """The rows of allocations; `prepare` computes the columns of a strategy from rows."""

    def __init__(
        self, allocations: Allocations, prepare: Callable[[Rows], tuple[NDArray[Any], ...]]
    ) -> None:
        self._allocations = allocations
        self._prepare = prepare
        self._rows: Rows | None = None
        self._hardware: Hardware = allocations.hardware
        self._version = 0

    def all(self) -> Rows:
        """All rows, for use before the allocations change."""
        return self._current()

    def some(self, index: Ints) -> Rows:
        """These rows, copied."""
        if self._rows is None:
            return self._fresh(rows_of(self._allocations, index))
        return self._current().part(index)

    def _current(self) -> Rows:
        allocations = self._allocations
        changed = allocations.changed_since(self._version)
        kept = self._rows
        if kept is None or changed is None or self._hardware is not allocations.hardware:
            kept = self._rows = self._fresh(all_rows(allocations))
            self._hardware = allocations.hardware
        elif len(changed):
            fresh = self._fresh(rows_of(allocations, changed))
            for name in OWN:
                getattr(kept, name)[changed] = getattr(fresh, name)
            for column, now in zip(kept.prepared, fresh.prepared, strict=True):
                column[changed] = now
        self._version = allocations.version
        return kept

    def _fresh(self, rows: Rows) -> Rows:
        return rows.with_prepared(self._prepare(rows))
