"""How everything that `aliquot` prints looks, for people and for programs."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import TYPE_CHECKING, TextIO

from aliquot.model import format_bytes
from aliquot.model.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 160  # where no terminal says how wide it is


@cache
def console() -> Console:
    """The one console, on standard output."""
    from rich.console import Console  # noqa: PLC0415 - imported when needed

    width = None if _output().isatty() else _WIDE
    return Console(highlight=False, width=width, emoji=False, markup=False)


def print_json(answer: object) -> None:
    """An answer for programs."""
    _output().write(json.dumps(answer, indent=2) + "\n")


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


def _output() -> TextIO:
    if sys.stdout is None:  # so Python has it where it was closed
        raise OutputError("standard output is closed")
    return sys.stdout
