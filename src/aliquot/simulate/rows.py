"""Lines of CSV files, read with care: nothing that a file says is passed over or rounded.

A file is UTF-8, with or without a mark at its start; its first line names its columns, each once
and none that is not known; spaces around names and values do not count, and empty lines neither. A
line may be shorter than the first one, never longer; what it lacks is empty.

Every error names the file. An error about a value also names the line, the column, the value and
what is valid there.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MOST = 10**9
MOST_GPUS = 64  # of one node: wider ones take minutes to weigh
MOST_SECONDS = 10**12


@dataclass(frozen=True, slots=True)
class Columns:
    """The required and the optional columns of a file; `of` says what its lines are."""

    of: str
    needed: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """All columns, the required ones first."""
        return (*self.needed, *self.others)


@dataclass(frozen=True, slots=True)
class CsvRow:
    """A line of a file."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """The text of a column, which may be empty."""
        return self.cells.get(column, "")

    def name(self, column: str) -> str:
        """The text of a column, which must not be empty."""
        if not self.text(column):
            raise self.wrong(column, "a name")
        return self.text(column)

    def word(self, column: str, words: Sequence[str]) -> str:
        """One of these words, or nothing."""
        if self.text(column) not in ("", *words):
            raise self.wrong(column, f"{', '.join(words[:-1])} or {words[-1]}, or leave it empty")
        return self.text(column)

    def whole(
        self, column: str, default: int | None = None, *, least: int = 0, most: int = MOST
    ) -> int:
        """A whole number; the default, if there is one, for an empty column."""
        found = self._number(column, default)
        if found is None or not (found.is_integer() and least <= found <= most):
            raise self.wrong(column, f"a whole number from {least} to {most}", default)
        return int(found)

    def number(
        self, column: str, default: float | None = None, *, least: float = 0, most: float = MOST
    ) -> float:
        """A number; the default, if there is one, for an empty column."""
        found = self._number(column, default)
        if found is None or not least <= found <= most:
            raise self.wrong(column, f"a number from {least:.0f} to {most:.0f}", default)
        return found

    def above_zero(
        self, column: str, default: float | None = None, *, most: float = MOST_SECONDS
    ) -> float:
        """A number above 0; the default, if there is one, for an empty column."""
        found = self._number(column, default)
        if found is None or not 0 < found <= most:
            raise self.wrong(column, f"a number above 0, up to {most:.0f}", default)
        return found

    def wrong(
        self, column: str, allowed: str, default: float | None = None, *, why: str = ""
    ) -> InvalidValueError:
        """The error for what is written there."""
        text = self.text(column)
        value = repr(text) if text else "empty"
        or_nothing = "" if default is None else f", or leave it empty for {default:.10g}"
        return InvalidValueError(
            f"{self.path}, line {self.line}, column {column}: it cannot be {value}{why}",
            f"Write {allowed}{or_nothing}.",
        )

    def _number(self, column: str, default: float | None) -> float | None:
        text = self.text(column)
        if not text:
            return None if default is None else float(default)
        try:
            found = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            return None
        return found if math.isfinite(found) else None


def read_rows(path: Path, columns: Columns) -> list[CsvRow]:
    """The lines of a file, of which there is one at least."""
    lines = _lines(path)
    if not lines:
        raise InvalidValueError(
            f"{path} is empty", f"Its first line must name: {','.join(columns.needed)}."
        )
    head = lines[0][1]
    _check_head(path, head, columns)
    rows = []
    for line, cells in lines[1:]:
        if len(cells) > len(head):
            raise InvalidValueError(
                f"{path}, line {line}: it has {len(cells)} cells, and there are"
                f" {len(head)} columns: {cells[len(head)]!r} is in none",
                f"Write one cell for each of: {','.join(head)}.",
            )
        rows.append(CsvRow(path, line, dict(zip(head, cells, strict=False))))
    if not rows:
        raise InvalidValueError(
            f"{path} has no {columns.of}: there is nothing below its first line",
            "Write a line for each of them.",
        )
    return rows


def read_head(path: Path) -> set[str]:
    """The names of a file's columns."""
    lines = _lines(path, only_head=True)
    return set(lines[0][1]) if lines else set()


def refuse_again(rows: Sequence[CsvRow], column: str) -> None:
    """Refuse a name that is there twice."""
    lines: dict[str, int] = {}
    for row in rows:
        name = row.name(column)
        if name in lines:
            why = f": line {lines[name]} has this name already"
            raise row.wrong(column, "another name", why=why)
        lines[name] = row.line


def _lines(path: Path, *, only_head: bool = False) -> list[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers."""
    found = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    found.append((reader.line_num, [cell.strip() for cell in cells]))
                    if only_head:
                        break
    except OSError as error:
        raise InvalidValueError(
            f"{path} cannot be read: {error.strerror}", "Give the path of a CSV file."
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidValueError(
            f"{path} cannot be read: it is not UTF-8 (byte {error.start + 1})",
            "Save it as a CSV file in UTF-8.",
        ) from error
    except csv.Error as error:
        raise InvalidValueError(
            f"{path} cannot be read: {error}", "Save it as a CSV file with commas."
        ) from error
    return found


def _check_head(path: Path, head: Sequence[str], columns: Columns) -> None:
    for name in head:
        if name not in columns.known:
            near = get_close_matches(name, columns.known, 1)
            guess = f": did you mean {near[0]}?" if near else ""
            raise InvalidValueError(
                f"{path}: column {name or 'without a name'} is not known{guess}",
                f"There are: {', '.join(columns.known)}.",
            )
        if head.count(name) > 1:
            raise InvalidValueError(
                f"{path}: column {name} is there twice", "Leave one of them out."
            )
    missing = [name for name in columns.needed if name not in head]
    if missing:
        raise InvalidValueError(
            f"{path} has no column {', '.join(missing)}",
            f"Its first line must name at least: {','.join(columns.needed)}.",
        )
