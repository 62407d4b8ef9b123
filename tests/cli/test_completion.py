"""Shell completion, in real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from aliquot.cli import names
from aliquot.pool import directory
from aliquot.pool.client import PoolClient
from conftest import Cli
from slices.played import Played, grant_words, slice_words, status_words

Complete = Callable[[str], list[str]]

# Each prints what can follow the line in $1 after the script in $2 is loaded.
SHELLS = {
    "bash": r"""
        source "$2"; line=$1; COMP_LINE=$line; COMP_POINT=${#line}
        COMP_WORDS=($line); COMP_CWORD=${#COMP_WORDS[@]}
        _aliquot; printf '%s\n' "${COMPREPLY[@]}" """,
    "zsh": r"""
        compdef() { :; }; compadd() { shift; print -l -- "$@" }; _files() { :; }
        source "$2"; line=$1; words=(${(s: :)line}); [[ $line == *" " ]] && words+=("")
        CURRENT=$#words; _aliquot""",
    "fish": r"""source $argv[2]; complete -C $argv[1]""",
}


@pytest.fixture(params=SHELLS)
def complete(
    request: pytest.FixtureRequest, cli: Cli, cli_env: dict[str, str], tmp_path: Path
) -> Complete:
    """What a shell offers for a line; nothing may be written to its standard error."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / shell
    script.write_text(cli("completion", shell).stdout)
    path = f"{Path(sys.executable).parent}:{cli_env['PATH']}"
    before = [shell, "-c", SHELLS[shell], *([] if shell == "fish" else [shell])]

    def ask(line: str) -> list[str]:
        done = subprocess.run(
            [*before, line, str(script)],
            env={**cli_env, "PATH": path, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        # Only zsh and fish leave it to the shell which words begin like the last one.
        words = [word for word in done.stdout.splitlines() if word]
        return sorted(word for word in words if word.startswith(line.rpartition(" ")[2]))

    return ask


@pytest.fixture
def grants(aliquot_state: Path) -> Iterator[None]:
    aliquot_state.mkdir(mode=0o700)
    words = [grant_words(name, slice_words()) for name in ("train", "trial", "serve")]
    played = Played(aliquot_state, lambda _: status_words(*words))
    yield
    played.end()


def test_commands_options_and_values(complete: Complete) -> None:
    assert {"run", "ps", "top", "kill", "completion"} <= set(complete("aliquot "))
    assert complete("aliquot li") == ["limits"]
    assert complete("aliquot ps --no") == ["--no-trunc"]
    assert complete("aliquot run --memory 8GiB --policy ") == ["elastic", "hard"]
    assert complete("aliquot simulate ") == ["compare", "overcommit", "ways"]
    assert complete("aliquot run --memory ") == []


def test_names_of_grants(complete: Complete, grants: None) -> None:
    assert complete("aliquot kill tr") == ["train", "trial"]
    assert complete("aliquot resize --compute 30 ") == ["serve", "train", "trial"]


def test_no_error_where_nothing_runs(complete: Complete) -> None:
    assert complete("aliquot kill ") == []
    assert complete("aliquot cancel ") == []


def test_names_of_jobs(cli: Cli, complete: Complete) -> None:
    one = ("--simulate", "h100:1")
    assert cli("up", "-d", *one).returncode == 0
    try:
        assert cli("submit", *one, "--name", "done", "--", "true").returncode == 0
        assert (
            cli("submit", *one, "--name", "sweep", "--array", "1-2", "--", "true").returncode == 0
        )
        assert complete("aliquot describe do") == ["done"]
        assert complete("aliquot wait s") == ["sweep", "sweep-1", "sweep-2"]
        assert complete("aliquot submit --after do") == ["done"]
        assert complete("aliquot resubmit do") == ["done"]
    finally:
        cli("down", *one)


def test_names_need_neither_the_application_nor_the_scheduler() -> None:
    check = (
        "import sys; from aliquot.cli import names; names.print_names('jobs');"
        "names.print_names('grants'); unwanted = {'typer', 'rich', 'numpy'} & sys.modules.keys();"
        "assert not unwanted, unwanted"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_jobs_and_commands_of_others_have_no_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "mine", "array": None}, {"name": None, "array": None}]
    listing = SimpleNamespace(runs=[{"name": "wait"}, {"name": None}], jobs=rows)
    monkeypatch.setattr(PoolClient, "listing", lambda *_, **__: listing)
    monkeypatch.setattr(directory, "with_socket", lambda: [None])
    names.print_names("jobs")
    assert capsys.readouterr().out.split() == ["mine", "wait"]


def test_names_are_never_an_error(cli: Cli, aliquot_state: Path) -> None:
    aliquot_state.write_text("not a folder")
    for kind in ("grants", "jobs", "nonsense"):
        answer = cli("__names", kind)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    aliquot_state.unlink()
