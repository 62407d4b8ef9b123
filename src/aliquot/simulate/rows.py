"""Lines of CSV files, with errors that name the file and what is wrong with it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from aliquot.model.errors import BadValueError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Row = dict[str, str]


def read_rows(path: Path, columns: Sequence[str]) -> list[tuple[int, Row]]:
    """The lines of a file that must have these columns, each with its number."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise BadValueError(
                    f"{path} has no column {', '.join(missing)}",
                    f"Its first line must name at least: {','.join(columns)}",
                )
            return [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise BadValueError(f"{path} cannot be read: {error.strerror}") from error


def value(row: Row, column: str, path: Path, default: float = 0.0) -> float:
    """A number in a column; the default where it is empty or not there."""
    text = row.get(column)
    if not text:
        return default
    try:
        return float(text)
    except ValueError as error:
        raise BadValueError(f"{path}: {text!r} is no number for {column}") from error
