"""Tables on terminals of several widths, and in a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.cli.tables import Column, Output, age, cut, formatted, laid_out, print_text, short_uuid
from aliquot.model.errors import InvalidValueError
from cli.terminal import Terminal, on_terminal
from conftest import Cli, aliquot_command

COLUMNS = (
    Column("name", "Name"),
    Column("policy", "Policy", drop=1),
    Column("priority", "Priority", drop=2),
    Column("uuid", "UUID", short=short_uuid),
    Column("command", "Command", least=10),
    Column("uid", "UID", only_named=True),
)
UUID = "GPU-ed353dea-0192-4227-ad04-7eb049e7c3fc"
ROWS = [
    {
        "name": "train", "policy": "elastic", "priority": "normal", "uuid": UUID,
        "command": "python train.py --data /data/images", "uid": "7",
    },
    {"name": "serve", "policy": "hard", "priority": "latency", "uuid": UUID, "command": "x"},
]  # fmt: skip
FOUR = ("gpus", "--simulate", "h100:4")


def test_a_table_that_fits_has_everything() -> None:
    header, first, second = laid_out(COLUMNS, ROWS, None)
    assert header.split() == ["Name", "Policy", "Priority", "UUID", "Command"]
    assert first.endswith(f"{UUID}  python train.py --data /data/images")
    assert second == f"serve  hard     latency   {UUID}  x"


def test_uuids_are_shortened_before_columns_are_left_out() -> None:
    header, first, _ = laid_out(COLUMNS, ROWS, 70)
    assert header.split() == ["Name", "Policy", "Priority", "UUID", "Command"]
    assert "GPU-ed353dea  python train.py --data" in first
    assert first.endswith("…")


def test_columns_are_left_out_by_priority() -> None:
    assert laid_out(COLUMNS, ROWS, 46)[0].split() == ["Name", "Policy", "UUID", "Command"]
    assert laid_out(COLUMNS, ROWS, 35)[0].split() == ["Name", "UUID", "Command"]


@pytest.mark.parametrize("width", range(9, 140))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, laid_out(COLUMNS, ROWS, width))) <= width


def test_a_reason_that_is_too_long_goes_on_below_itself() -> None:
    columns = (Column("gpu", "GPU"), Column("why", "Why", least=10, wraps=True))
    rows = [{"gpu": "0", "why": "no memory of the host is left"}, {"gpu": "1", "why": "it fits"}]
    assert laid_out(columns, rows, 20) == [
        "GPU  Why",
        "0    no memory of",
        "     the host is",
        "     left",
        "1    it fits",
    ]
    assert laid_out(columns, rows, None)[1] == "0    no memory of the host is left"


def test_wide_characters_are_counted() -> None:
    rows = [{"name": "学習", "policy": "a"}, {"name": "abcd", "policy": "b"}]
    _, first, second = laid_out(COLUMNS[:2], rows, None)
    assert (first, second) == ("学習  a", "abcd  b")
    assert cut("学習学習", 5) == "学習…"


def test_a_cell_has_one_line() -> None:
    (_, line) = laid_out(COLUMNS[:1], [{"name": "a\nb\x1b[31mc"}], None)
    assert line == "a b [31mc"


def test_what_is_no_text_is_still_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("file \udcff\n")
    assert capsys.readouterr().out == "file ?\n"


def test_templates_as_of_python_and_of_docker() -> None:
    assert formatted(COLUMNS, ROWS, "{name}:{uid}") == ["train:7", "serve:"]
    assert formatted(COLUMNS, ROWS, r"{{.Name}}\t{{ .Policy }}") == [
        "train\telastic",
        "serve\thard",
    ]
    with pytest.raises(InvalidValueError, match="no field") as error:
        formatted(COLUMNS, [], "{nme}")
    assert "{name}" in (error.value.hint or "")


def test_json_and_a_template_cannot_be_combined(cli: Cli) -> None:
    with pytest.raises(InvalidValueError):
        Output(json=True, template="{name}")
    assert cli(*FOUR, "--json", "--format", "{gpu}").returncode == 2


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0s"), (59, "59s"), (60, "1m"), (7300, "2h"), (90000, "1d")]
)
def test_an_age_is_one_number_and_one_unit(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_gpus_on_a_terminal(cli_env: dict[str, str], columns: int) -> None:
    lines = on_terminal([aliquot_command(), *FOUR], cli_env, columns)
    assert lines[0].startswith("simulated h100:4")
    assert max(map(len, lines)) <= columns
    rows = [line for line in lines if "79.1" in line]
    assert len(rows) == 4
    if columns == 200:
        assert all(len(row.split()[-1]) == len(UUID) for row in rows)
    if columns == 80:
        assert all(
            row.split()[-1].startswith("GPU-") and len(row.split()[-1]) == 12 for row in rows
        )
    assert any(line.split() == ["GPU", "0", "·", "NV18", "NV18", "NV18"] for line in lines)


def test_gpus_in_a_pipe_has_one_line_for_each_row(cli: Cli) -> None:
    header, *rows = cli(*FOUR).stdout.splitlines()
    uuids = [gpu["uuid"] for gpu in json.loads(cli(*FOUR, "--json").stdout)["gpus"]]
    assert header.split() == [
        *["GPU", "Model", "Strength", "Memory", "Used", "Granted", "PCI", "bus", "id", "UUID"]
    ]
    assert [row.split()[-1] for row in rows] == uuids
    assert all(line == line.rstrip() and "─" not in line for line in (header, *rows))
    assert cli(*FOUR, "--format", "{strength}").stdout.splitlines() == ["286.3"] * 4
    assert cli(*FOUR, "--format", "{gpu} {uuid}").stdout.splitlines() == [
        f"{number} {uuid}" for number, uuid in enumerate(uuids)
    ]


def test_no_trunc_shows_everything_on_a_narrow_terminal(cli_env: dict[str, str]) -> None:
    lines = on_terminal([aliquot_command(), *FOUR, "--no-trunc"], cli_env, 60)
    assert sum(len(line.split()[-1]) == len(UUID) for line in lines if line) == 4


def test_no_color_and_a_dumb_terminal_have_no_colours(cli_env: dict[str, str]) -> None:
    for unwanted in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {}):
        terminal = Terminal([aliquot_command(), *FOUR], {**cli_env, **unwanted})
        try:
            assert terminal.end() == 0
            assert ("\x1b" in terminal.raw) == (not unwanted)
        finally:
            terminal.close()


@pytest.mark.parametrize("locale", ["C", "POSIX", "", "en_US.ISO-8859-1"])
def test_an_ascii_terminal_gets_ascii(cli_env: dict[str, str], locale: str) -> None:
    env = {key: value for key, value in cli_env.items() if not key.startswith(("LC_", "LANG"))}
    lines = on_terminal([aliquot_command(), *FOUR], {**env, "LANG": locale}, 80)
    assert all(line.isascii() for line in lines), lines
    assert any("NV18" in line for line in lines)


def test_a_closed_pipe_ends_a_table_silently(cli_env: dict[str, str]) -> None:
    path = f"{Path(sys.executable).parent}:{cli_env['PATH']}"
    line = "aliquot gpus --simulate h100:8 | head -1"
    done = subprocess.run(
        ["bash", "-c", line], env={**cli_env, "PATH": path}, capture_output=True, check=True
    )
    assert done.stdout.startswith(b"GPU")
    assert done.stderr == b""
