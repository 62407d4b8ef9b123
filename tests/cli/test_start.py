"""How a command starts: what it imports, and how values become what the command gets."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from aliquot.cli.start import start_command

ONE = ("--simulate", "h100:1")


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


def application(got: list[Any]) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.callback()(lambda: None)

    @app.command()
    def one(  # noqa: PLR0917 - one of each kind
        words: Annotated[list[str] | None, typer.Argument()] = None,
        text: Annotated[str, typer.Option(envvar="ONE_TEXT")] = "some",
        whole: Annotated[int, typer.Option(min=1, max=16)] = 1,
        free: int | None = None,
        seconds: Annotated[float, typer.Option(min=0.1)] = 1.0,
        size: Size = Size.SMALL,
        file: Path | None = None,
        several: Annotated[list[str] | None, typer.Option()] = None,
        checked: Annotated[str, typer.Option(callback=lambda value: value.upper())] = "x",
        *,
        flag: bool = False,
    ) -> None:
        got.append((words, text, whole, free, seconds, size, file, several, checked, flag))

    @app.command()
    def two(name: Annotated[str, typer.Argument()]) -> None:
        got.append(name)

    return app


LINES = [
    ["one"],
    ["one", "a", "b", "--text", "", "--flag", "--several", "a", "--several", "b"],
    *(["one", "--whole", value] for value in ("1", "16", "17", "0", "07", "+1", " 1", "1.0")),
    *(["one", "--free", value] for value in ("-3", "12345678901234567890", "٣", "", "1e2", "0")),
    *(["one", "--seconds", value] for value in ("2", "0.5", ".5", "5.", "1e3", "0.05", "inf", "x")),
    *(["one", "--size", value] for value in ("large", "LARGE", "Size.LARGE", "")),
    ["one", "--file", "/dev/null"],
    ["one", "--checked", "abc"],
    ["one", "--nothing"],
    ["two", "name"],
    ["two"],
    ["three"],
    [],
]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_values_and_refusals_are_those_of_typer(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *words])
    monkeypatch.setenv("ONE_TEXT", "of the environment")
    outcomes = []
    for fast in (False, True):
        got: list[Any] = []
        app = application(got)
        with pytest.raises(SystemExit) as end:
            (start_command(app, words) if fast else app)()
        outcomes.append((got, [type(one) for one in got], end.value.code, capsys.readouterr()))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["ps"], "asyncio http.client numpy pydantic rich ssl aliquot.pool aliquot.placement"),
        (["jobs", *ONE], "asyncio numpy pydantic rich aliquot.placement"),
        (
            ["run", *ONE, "--gpus", "1", "--memory", "1GiB", "true"],
            "asyncio http numpy pydantic rich ssl",
        ),
        (["__names", "grants"], "asyncio http.client numpy pydantic rich ssl typer"),
        (["__names", "jobs"], "asyncio numpy pydantic rich typer"),
    ],
    ids=lambda one: " ".join(one[:2]) if isinstance(one, list) else "",
)
def test_a_command_imports_only_what_it_needs(
    words: list[str], unwanted: str, cli_env: dict[str, str]
) -> None:
    line = [sys.executable, "-X", "importtime", "-m", "aliquot", *words]
    answer = subprocess.run(line, env=cli_env, capture_output=True, text=True, check=False)
    imported = {one.rpartition("|")[2].strip() for one in answer.stderr.splitlines()}
    assert "aliquot.cli" in imported
    assert not imported & set(unwanted.split())
