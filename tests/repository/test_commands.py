"""One style of help over all commands."""

from __future__ import annotations

import re
from typing import Any

import pytest

from repository.reference import every_command

COMMANDS = every_command()
# They talk to no machine's arbiter or pool: to files, to systemd, or to a cluster.
ELSEWHERE = {
    "aliquot",
    "aliquot install",
    "aliquot uninstall",
    "aliquot completion",
    "aliquot scheduler",
    "aliquot controller",
    "aliquot simulate",
    "aliquot simulate compare",
    "aliquot simulate overcommit",
    "aliquot simulate ways",
    "aliquot slice",
    "aliquot remote",
}
OF_COLUMNS = 80


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(OF_COLUMNS))


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert (
        COMMANDS["aliquot"].main([*name.split()[1:], "--help"], "aliquot", standalone_mode=False)
        == 0
    )
    return capsys.readouterr().out


def options_of(name: str) -> dict[str, Any]:
    """The options of a command by their first names."""
    found = (one for one in COMMANDS[name].params if one.param_type_name == "option")
    return {one.opts[0]: one for one in found}


@pytest.mark.parametrize(
    "name", [name for name, one in COMMANDS.items() if hasattr(one, "commands")]
)
def test_no_summary_is_cut_off(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = help_of(name, capsys).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    shown = {words[0]: words[1] for line in listed if (words := line.split(maxsplit=1))}
    assert shown == {
        sub: re.split(r"(?<=\.)\s", one.help)[0] for sub, one in COMMANDS[name].commands.items()
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_fits_80_columns(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(name, capsys)
    assert [line for line in text.splitlines() if len(line) > OF_COLUMNS] == []
    shown = text.partition("\n  Examples:\n")[2].partition("\n\n")[0].splitlines()
    called = re.compile(rf"(sudo |eval \S+\(|source <\()?{re.escape(name)}\b")
    assert any(called.search(line.strip()) for line in shown), text
    assert all(line.startswith("    ") for line in shown)


def test_every_option_and_argument_has_help() -> None:
    for name, command in COMMANDS.items():
        for one in command.params:
            if not getattr(one, "hidden", False):
                assert re.search(r"[.…]$", one.help or ""), f"{name} {one.name}: {one.help}"


def test_every_command_that_talks_to_a_machine_accepts_simulate() -> None:
    for name in COMMANDS.keys() - ELSEWHERE:
        option = options_of(name)["--simulate"]
        assert (option.metavar, option.envvar) == ("MODEL:COUNT", "ALIQUOT_SIMULATE"), name


def test_an_option_takes_the_same_kind_of_value_in_every_command() -> None:
    kinds: dict[str, set[Any]] = {}
    for name in COMMANDS:
        for option, one in options_of(name).items():
            kinds.setdefault(option, set()).add(one.metavar or one.is_flag)
    several = {option: kind for option, kind in kinds.items() if len(kind) > 1}
    assert several == {"--wait": {"[=DURATION]", True}}
