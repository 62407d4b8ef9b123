"""The files of the repository, as the checks in this folder read them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = {
    ".c",
    ".cmake",
    ".conf",
    ".h",
    ".json",
    ".md",
    ".proto",
    ".py",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
    ".S",
    ".inc",
}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that Git tracks or would add, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for line in listed.splitlines() if (ROOT / (path := Path(line))).is_file())


def texts() -> tuple[Path, ...]:
    """The tracked files that people read and write."""
    return tuple(path for path in tracked() if path.suffix in TEXT or path.name == "Makefile")


def read(path: Path) -> str:
    """The text of one of them."""
    return (ROOT / path).read_text(encoding="utf-8")


def packages() -> tuple[Path, ...]:
    """The folders below src/aliquot that are Python packages."""
    found = {path.parent for path in tracked() if path.name == "__init__.py"}
    return tuple(sorted(path for path in found if path.is_relative_to("src/aliquot")))
