"""How output for people and for programs looks."""

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

NOTHING = "–"  # noqa: RUF001 - a dash for "no value"

_WIDE = 160  # without a terminal


@cache
def console() -> Console:
    """The one console, on standard output."""
    from rich.console import Console  # noqa: PLC0415 - imported when needed

    width = None if _output().isatty() else _WIDE
    return Console(highlight=False, width=width, emoji=False, markup=False)


def print_json(answer: object) -> None:
    """Print JSON for programs."""
    print_text(json.dumps(answer, indent=2) + "\n")


def print_text(text: str) -> None:
    """Print text unchanged."""
    _output().write(text)


def new_table(*columns: str, title: str | None = None, tight: bool = False) -> Table:
    """A table in the common style; `tight` for many columns."""
    from rich import box  # noqa: PLC0415 - imported when needed
    from rich.table import Table  # noqa: PLC0415

    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0) if tight else (0, 1),
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def memory(used: int, total: int) -> str:
    """A part of a whole, with its percentage."""
    if used == 0 or total == 0:
        return NOTHING
    return f"{format_bytes(used)} ({used * 100 // total}%)"


def percent(ratio: float | None) -> str:
    """A ratio as a percentage with one decimal."""
    return NOTHING if ratio is None else f"{ratio * 100:.1f}%"


def rate(by_second: float | None) -> str:
    """A rate per second."""
    return NOTHING if by_second is None else f"{by_second:.1f}"


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds, to three digits."""
    return NOTHING if seconds is None else f"{seconds * 1000:.3g}"


def used_of(used: int, limit: int) -> str:
    """Use and limit in short form: `1.5/8 GiB`."""
    used_text, limit_text = format_bytes(used), format_bytes(limit)
    unit = limit_text.rpartition(" ")[2]
    return f"{used_text.removesuffix(f' {unit}')}/{limit_text}"


def _output() -> TextIO:
    if sys.stdout is None:  # Python sets it to None if it was closed
        raise OutputError("standard output is closed")
    return sys.stdout
