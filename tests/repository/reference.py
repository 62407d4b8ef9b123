"""Writes docs/commands.md from the commands themselves: `make reference`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from aliquot.cli.app import app
from repository.files import ROOT

PAGE = ROOT / "docs" / "commands.md"
HEAD = """# Commands

Every command of `aliquot` with its options, as `--help` prints them. `make reference` writes this
page from the code.

```
$ aliquot run --memory 8GiB --compute 30 -- python train.py
$ aliquot run --help
```
"""


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """A command and all below it; typer brings a click of its own, so by their attributes."""
    yield name, command
    for sub, one in getattr(command, "commands", {}).items():
        yield from commands(one, f"{name} {sub}")


def every_command() -> dict[str, Any]:
    """All commands by their whole names."""
    return dict(commands(typer.main.get_command(app), "aliquot"))


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_section(name, one) for name, one in every_command().items())


def _section(name: str, command: Any) -> str:
    text = re.sub(r"\s+", " ", (command.help or "").split("\f")[0].split("\b")[0]).strip()
    rows = [_row(one) for one in command.params if one.param_type_name == "option"]
    table = "".join(["\n| option | meaning |\n|---|---|\n", *rows]) if rows else ""
    return f"\n## `{name}`\n\n{text}\n{table}"


def _row(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    names = ", ".join(f"`{one}{value}`" for one in (*option.opts, *option.secondary_opts))
    text = re.sub(r"\s+", " ", option.help or "").replace("|", "\\|")
    shown = option.default not in (None, False, "", ()) and not callable(option.default)
    default = f" Default: {option.default}." if shown and not option.is_flag else ""
    return f"| {names} | {text}{default} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
