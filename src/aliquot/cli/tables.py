"""How output for people and for programs looks.

`show_rows` prints the tables of `ps`, `gpus`, `jobs` and `limits`. On a terminal a table fits the
width: cells that have a shorter form take it, a text at the end is cut or goes on in the next line,
and the least important columns are left out. No word is broken over two lines. In a pipe a table
has all its columns, one line for each row and neither colours nor lines.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO
from unicodedata import combining, east_asian_width

from aliquot.model import format_bytes
from aliquot.model.errors import InvalidValueError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console

    Row = Mapping[str, str]

NOTHING = "–"  # noqa: RUF001 - a dash for "no value"

_WIDE = 160  # of rich's output, without a terminal
_GAP = "  "
_MARK = "…"
_TIGHT = "\N{NO-BREAK SPACE}"
_PLAIN = str.maketrans(
    {"–": "-", "…": "~", "·": "|", "→": "->", "█": "#", "░": ".", "↑": "^", "↓": "v"}  # noqa: RUF001
)
_FIELD = re.compile(r"\{\{\s*\.(?P<go>\w+)\s*\}\}|\{(?P<plain>\w+)\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and what may be done to it where the table is too wide.

    `key` names its cells in a row and in `--format`. Columns with the largest `drop` are left out
    first; with 0 never. A cell may be cut to `least` characters; with 0 it is cut only where no
    column can be left out any more. `short` makes a shorter form of a cell. `wraps`: a
    cell that is too long goes on in the next lines, and is not cut. `only_named`: the column is in
    no table, only in `--format`.
    """

    key: str
    title: str
    drop: int = 0
    least: int = 0
    right: bool = False
    short: Callable[[str], str] | None = None
    wraps: bool = False
    only_named: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """How the user wants the answer: `--json`, `--format TEMPLATE`, `--no-trunc`."""

    json: bool = False
    template: str | None = None
    no_trunc: bool = False

    def __post_init__(self) -> None:
        if self.json and self.template is not None:
            raise InvalidValueError(
                "--json and --format cannot be combined", "Leave one of them out."
            )


def show_rows(columns: Sequence[Column], rows: Sequence[Row], output: Output) -> None:
    """Print rows as a table, or by the template of `--format`."""
    if output.template is not None:
        print_text("".join(f"{line}\n" for line in formatted(columns, rows, output.template)))
        return
    width = None if output.no_trunc else terminal_width()
    header, *lines = laid_out(columns, rows, width)
    print_text("".join(f"{line}\n" for line in (styled(header, "1"), *lines)))


def laid_out(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> list[str]:
    """The header and a line for each row, at most `width` characters wide; None: any.

    A cell that wraps may give its row more lines.
    """
    columns = [column for column in columns if not column.only_named]
    cells = {
        column.key: [clean(column.title), *(clean(row.get(column.key, "")) for row in rows)]
        for column in columns
    }
    widths = _widths(cells)
    if width is not None and _total(widths) > width:
        for column in columns:
            if column.short is not None:
                title, *rest = cells[column.key]
                cells[column.key] = [title, *map(column.short, rest)]
        columns, widths = _fitted(columns, _widths(cells), width)
    return [
        _GAP.join(
            _padded(cut(cell, widths[one.key]), widths[one.key], right=one.right)
            for one, cell in zip(columns, beside, strict=True)
        ).rstrip()
        for number in range(len(rows) + 1)
        for beside in zip_longest(
            *(_cell_lines(one, cells[one.key][number], widths[one.key]) for one in columns),
            fillvalue="",
        )
    ]


def _cell_lines(column: Column, text: str, width: int) -> list[str]:
    return (wrapped(text, width) if column.wraps else None) or [text]


def _fitted(
    columns: list[Column], widths: dict[str, int], width: int
) -> tuple[list[Column], dict[str, int]]:
    """The columns that are shown, and their widths."""
    while _total(_least(columns, widths)) > width and any(one.drop for one in columns):
        last = max(range(len(columns)), key=lambda number: (columns[number].drop, number))
        columns = columns[:last] + columns[last + 1 :]
    shown = {one.key: widths[one.key] for one in columns}
    least = _least(columns, widths)
    for one in reversed(columns):
        over = _total(shown) - width
        if over > 0:
            shown[one.key] = max(least[one.key], shown[one.key] - over)
    while _total(shown) > width and max(shown.values()) > 1:
        shown[max(shown, key=lambda key: shown[key])] -= 1
    return columns, shown


def _least(columns: Sequence[Column], widths: Mapping[str, int]) -> dict[str, int]:
    return {one.key: min(widths[one.key], one.least or widths[one.key]) for one in columns}


def _widths(cells: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {key: max(map(text_width, column)) for key, column in cells.items()}


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + len(_GAP) * max(0, len(widths) - 1)


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - text_width(text))
    return space + text if right else text + space


def clean(text: str) -> str:
    """A cell on one line: a command may contain anything."""
    return _CONTROL.sub(" ", text)


def text_width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def cut(text: str, width: int) -> str:
    """The text, or its beginning with a mark where it is cut."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) > width - 1:
        text = text[:-1]
    return f"{text.rstrip()}{_MARK}"


def short_uuid(uuid: str) -> str:
    """The beginning of a UUID, as `GPU-1a2b3c4d`: CUDA_VISIBLE_DEVICES accepts it."""
    return "-".join(uuid.split("-")[:2])


def formatted(columns: Sequence[Column], rows: Sequence[Row], template: str) -> list[str]:
    """One line for each row: `{name}`, or `{{.Name}}` as with docker, is a cell of the row."""
    known = {column.key for column in columns}
    template = template.replace("\\t", "\t").replace("\\n", "\n")
    for match in _FIELD.finditer(template):
        if _key(match) not in known:
            raise InvalidValueError(
                f"--format has no field {match[0]}",
                f"Fields: {' '.join(f'{{{key}}}' for key in sorted(known))}",
            )
    return [_FIELD.sub(lambda match: clean(row.get(_key(match), "")), template) for row in rows]  # noqa: B023


def _key(match: re.Match[str]) -> str:
    return (match["go"] or match["plain"]).lower()


def figures(parts: Iterable[str], width: int | None) -> list[str]:
    """Short texts beside each other, in lines that break only between them."""
    tight = (part.replace(" ", _TIGHT) for part in parts)
    return [line.replace(_TIGHT, " ") for line in wrapped(f"{_TIGHT}· ".join(tight), width)]


def terminal_width() -> int | None:
    """The width of the terminal on standard output; None if there is none."""
    size = terminal_size()
    return None if size is None else size.columns


def terminal_size() -> os.terminal_size | None:
    """Columns and lines of the terminal on standard output; None if there is none."""
    if not is_terminal():
        return None
    try:
        return os.get_terminal_size(_output().fileno())
    except OSError:
        return os.terminal_size((80, 24))


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return _output().isatty()


def styled(text: str, code: str) -> str:
    """The text with a style of ANSI terminals, unless colours are unwanted or impossible."""
    return f"\x1b[{code}m{text}\x1b[0m" if text and _has_colours() else text


def _has_colours() -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return is_terminal()


@cache
def _is_plain() -> bool:
    """Whether the terminal shows ASCII alone.

    Python itself takes UTF-8 in the locale C, and then names another locale in its environment.
    """
    if _output().encoding.lower().replace("-", "") != "utf8":
        return True
    return is_terminal() and "utf" not in _locale().lower()


def _locale() -> str:
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - what the shell gave us
            entries = file.read().split(b"\0")
    except OSError:
        return "utf-8"
    given = dict(entry.decode("utf-8", "replace").partition("=")[::2] for entry in entries)
    return next((given[one] for one in ("LC_ALL", "LC_CTYPE", "LANG") if given.get(one)), "C")


def print_note(text: str) -> None:
    """Print a sentence about the table: below it, or to standard error if it is piped."""
    if is_terminal():
        print_sentence(text)
    else:
        sys.stderr.write(f"aliquot: {text}\n")


def print_sentence(text: str) -> None:
    """Print a text that on a terminal goes to the next line between two words."""
    print_text("".join(f"{line}\n" for line in wrapped(text, terminal_width())))


def wrapped(text: str, width: int | None, *, whole_words: bool = False) -> list[str]:
    """Lines of at most `width` characters, broken between words; None: one line for each.

    A word that is longer is broken too, or stays whole and makes its line longer.
    """
    parts = text.splitlines()
    if width is None:
        return parts
    return [
        line
        for part in parts
        for line in textwrap.wrap(
            part, width, break_on_hyphens=False, break_long_words=not whole_words
        )
    ]


@cache
def console() -> Console:
    """The one console of rich, on standard output."""
    from rich.console import Console  # noqa: PLC0415 - imported when needed

    width = None if _output().isatty() else _WIDE
    return Console(highlight=False, width=width, emoji=False, markup=False)


def print_json(answer: object) -> None:
    """Print JSON for programs."""
    print_text(json.dumps(answer, indent=2) + "\n")


def print_text(text: str) -> None:
    """Print text, in ASCII where the terminal has no more."""
    output = _output()
    if _is_plain():
        text = text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
    output.write(text.encode("utf-8", "replace").decode("utf-8"))  # names of files may be no text


def flush() -> None:
    """Let everything printed so far appear."""
    _output().flush()


class FigureTable:
    """A table of figures, whose first column is a text.

    Where it is too wide for the terminal, each row becomes a block with a line for each cell.
    """

    def __init__(self, *titles: str) -> None:
        self._titles = titles
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Add a row with a cell for each title."""
        self._rows.append(cells)

    def print(self) -> None:
        """Print the table."""
        keys = [str(number) for number in range(len(self._titles))]
        columns = [
            Column(key, one, right=key != "0") for key, one in zip(keys, self._titles, strict=True)
        ]
        rows = [dict(zip(keys, row, strict=True)) for row in self._rows]
        header, *lines = laid_out(columns, rows, None)
        width = terminal_width()
        if width is None or all(text_width(line) <= width for line in (header, *lines)):
            print_text("".join(f"{line}\n" for line in (styled(header, "1"), *lines)))
            return
        longest = max(map(text_width, self._titles))
        for number, row in enumerate(self._rows):
            pairs = zip(self._titles, row, strict=True)
            block = "".join(f"{one:<{longest}}  {cell}\n" for one, cell in pairs)
            print_text(f"\n{block}" if number else block)


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


def age(seconds: float) -> str:
    """A time that has passed, in one unit: `5s`, `12m`, `3h`, `4d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def used_of(used: int, limit: int) -> str:
    """Use and limit in short form: `1.5/8 GiB`."""
    used_text, limit_text = format_bytes(used), format_bytes(limit)
    unit = limit_text.rpartition(" ")[2]
    return f"{used_text.removesuffix(f' {unit}')}/{limit_text}"


def _output() -> TextIO:
    if sys.stdout is None:  # Python sets it to None if it was closed
        raise OutputError("standard output is closed")
    return sys.stdout
