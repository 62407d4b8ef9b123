"""How everything that `aliquot` prints for people looks."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from aliquot.model import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 160  # where no terminal says how wide it is


@cache
def console() -> Console:
    """The one console, on standard output."""
    from rich.console import Console  # noqa: PLC0415 - imported when needed

    width = None if sys.stdout.isatty() else _WIDE
    return Console(highlight=False, width=width, emoji=False, markup=False)


def new_table(*columns: str, title: str | None = None) -> Table:
    """A table in the one style."""
    from rich import box  # noqa: PLC0415 - imported when needed
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def memory(used: int, total: int) -> str:
    """What is used of a whole, with its part in percent."""
    if used == 0 or total == 0:
        return "–"  # noqa: RUF001 - a dash that stands for nothing
    return f"{format_bytes(used)} ({used * 100 // total}%)"
