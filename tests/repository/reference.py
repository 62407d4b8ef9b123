"""Writes pages from the sources themselves: `make reference`.

- docs/commands.md, from the commands and their options;
- native/README.md, from the comment at the head of each C file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer.main

from aliquot.cli.app import app
from repository.files import ROOT, read, tracked

COMMANDS = Path("docs/commands.md")
NATIVE = Path("native/README.md")
COMMANDS_HEAD = """# Commands

Every command of `aliquot` with its options, as `--help` prints them. `make reference` writes this
page from the code.

```
$ aliquot run --memory 8GiB --compute 30 -- python train.py
$ aliquot run --help
```
"""


NATIVE_HEAD = """# The native part, file by file

What each C file is for, by the first sentence of its header, or of the file itself where it has
none. `make reference` writes this page. docs/architecture.md has the whole.
"""
HEAD_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """A command and all below it; typer brings a click of its own, so by their attributes."""
    yield name, command
    for sub, one in getattr(command, "commands", {}).items():
        yield from commands(one, f"{name} {sub}")


def every_command() -> dict[str, Any]:
    """All commands by their whole names."""
    return dict(commands(typer.main.get_command(app), "aliquot"))


def pages() -> dict[Path, str]:
    """All pages with their content."""
    return {COMMANDS: commands_page(), NATIVE: native_page()}


def commands_page() -> str:
    """Every command with its options."""
    return COMMANDS_HEAD + "".join(_section(name, one) for name, one in every_command().items())


def native_page() -> str:
    """Every subject of the native part: a header with its source, or either alone."""
    files = (
        path for path in tracked() if path.parts[0] == "native" and path.suffix in {".c", ".h"}
    )
    subjects = sorted({path.with_suffix("") for path in files}, key=lambda one: (one.parent, one))
    rows = NATIVE_HEAD
    for folder, inside in groupby(subjects, key=lambda one: one.parent):
        rows += f"\n## `{folder}/`\n\n| file | content |\n|---|---|\n"
        rows += "".join(f"| `{one.name}` | {first_sentence(one)} |\n" for one in inside)
    return rows


def first_sentence(subject: Path) -> str:
    """The first sentence at the head of a header, or of a source without one."""
    for path in (subject.with_suffix(".h"), subject.with_suffix(".c")):
        found = HEAD_COMMENT.match(read(path)) if (ROOT / path).is_file() else None
        if found is not None:
            text = re.sub(r"\s*\n \*\s?", " ", found[1]).strip().replace("|", "\\|")
            return re.split(r"(?<=\.)\s|\s{2,}- ", text)[0]
    return ""


def _section(name: str, command: Any) -> str:
    text = re.sub(r"\s+", " ", (command.help or "").split("\f")[0].split("\b")[0]).strip()
    rows = [_row(one) for one in command.params if one.param_type_name == "option"]
    table = "".join(["\n| option | meaning |\n|---|---|\n", *rows]) if rows else ""
    return f"\n## `{name}`\n\n{text}\n{table}"


def _row(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    names = ", ".join(f"`{one}{value}`" for one in (*option.opts, *option.secondary_opts))
    names = names.replace("|", "\\|")
    text = re.sub(r"\s+", " ", option.help or "").replace("|", "\\|")
    default = "" if option.is_flag else _default(option)
    return f"| {names} | {text}{f' Default: {default}.' if default else ''} |\n"


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    shown = option.default not in (None, False, "", ()) and not callable(option.default)
    return str(option.default) if shown else ""


if __name__ == "__main__":
    for path, text in pages().items():
        (ROOT / path).write_text(text, encoding="utf-8")
