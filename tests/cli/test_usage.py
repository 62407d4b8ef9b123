"""What needs no GPU: help, invalid use, lazy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import aliquot
from conftest import Cli
from support import compile_library

OLD_DRIVER = "int cuDriverGetVersion(int *version) { *version = 11040; return 0; }"


def test_version(cli: Cli) -> None:
    answer = cli("--version")
    assert answer.stdout == f"aliquot {aliquot.__version__}\n"
    assert answer.returncode == 0


def test_help_explains_units(cli: Cli) -> None:
    words = " ".join(cli("run", "--help").stdout.split())
    assert "G and M mean GiB and MiB; GB and MB are decimal" in words


def test_invalid_use_exits_2(cli: Cli) -> None:
    answer = cli("--nonsense")
    assert answer.returncode == 2
    assert answer.stderr == "aliquot: aliquot has no option --nonsense\n  See: aliquot --help\n"


def test_a_missing_command_exits_127(cli: Cli) -> None:
    answer = cli("run", "--simulate", "h100:1", "--", "no-such-command")
    assert answer.returncode == 127
    assert "no-such-command" in answer.stderr


def test_a_command_that_is_not_executable_exits_126(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("echo\n")
    answer = cli("run", "--simulate", "h100:1", "--", str(tmp_path / "script"))
    assert answer.returncode == 126
    assert str(tmp_path / "script") in answer.stderr


def test_a_folder_is_not_a_command(cli: Cli, tmp_path: Path) -> None:
    answer = cli("run", "--simulate", "h100:1", "--", str(tmp_path))
    assert answer.returncode == 126
    assert answer.stderr == f"aliquot: {tmp_path} is a folder\n  Name a program in it.\n"


def test_a_command_that_the_kernel_refuses(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("not a program\n")
    script.chmod(0o755)
    answer = cli("run", "--simulate", "h100:1", "--", str(script))
    assert answer.returncode == 126


def test_a_script_whose_interpreter_is_missing(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert cli("run", "--simulate", "h100:1", "--", str(script)).returncode == 127


def test_a_nested_grant_is_refused(cli: Cli) -> None:
    answer = cli("run", "--", "true", env={"ALIQUOT_GRANT": "/run/aliquot/grants/outer"})
    assert answer.returncode == 1
    assert "already inside the grant outer" in answer.stderr


def test_a_driver_that_is_too_old(cli: Cli, tmp_path: Path) -> None:
    compile_library(tmp_path, "libcuda.so.1", OLD_DRIVER)
    compile_library(tmp_path, "libnvidia-ml.so.1", "int any(void) { return 0; }")
    answer = cli("run", "--", "true", env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert answer.returncode == 1
    assert "too old" in answer.stderr
    assert "R515" in answer.stderr


def test_no_gpu_points_to_simulation(cli: Cli) -> None:
    answer = cli("run", "--", "true", env={"ALIQUOT_SIMULATE": ""})
    if answer.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert answer.returncode == 1
    assert "--simulate" in answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [["run", "--simulate", "h100:1", "--", "true"], ["arbiter", "--simulate", "h100:1"], ["ps"]],
)
def test_a_state_directory_that_cannot_be_created(
    cli: Cli, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "file").touch()
    state = str(tmp_path / "file" / "state")
    answer = cli(*arguments, env={"ALIQUOT_STATE": state})
    assert answer.returncode == 1
    assert f"the folder {state} cannot be created" in answer.stderr
    assert f"ALIQUOT_STATE is {state}" in answer.stderr


def test_a_state_directory_that_the_linker_cannot_use(cli: Cli, aliquot_state: Path) -> None:
    state = aliquot_state.with_name("a b")
    answer = cli("run", "--simulate", "h100:1", "--", "true", env={"ALIQUOT_STATE": str(state)})
    assert answer.returncode == 1
    assert "without space, colon or semicolon" in answer.stderr
    assert not list(state.glob("simulated/h100-1/*/*"))  # no arbiter, no grant


def in_shell(cli_env: dict[str, str], line: str) -> subprocess.CompletedProcess[str]:
    """A shell line with our `aliquot` in its path."""
    path = f"{Path(sys.executable).parent}:{cli_env['PATH']}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        env={**cli_env, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_closed_pipe_gives_no_traceback(cli_env: dict[str, str]) -> None:
    assert in_shell(cli_env, "aliquot --help | true").stderr == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("aliquot gpus --simulate h100:1 >/dev/full", "No space left on device"),
        ("aliquot gpus --simulate h100:1 --json >/dev/full", "No space left on device"),
        ("aliquot --help >/dev/full", "No space left on device"),
        ("aliquot ps --json >&-", "standard output is closed"),
        ("aliquot ps >&-", "standard output is closed"),
        ("aliquot metrics >/dev/full", "No space left on device"),
    ],
)
def test_output_that_cannot_be_written(cli_env: dict[str, str], line: str, words: str) -> None:
    answer = in_shell(cli_env, line)
    assert answer.returncode == 1
    assert answer.stderr.startswith("aliquot: standard output ")
    assert answer.stderr.endswith(f"{words}\n")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", ">&-"])
def test_a_command_runs_even_if_stderr_is_closed(cli_env: dict[str, str], where: str) -> None:
    line = f"aliquot run --simulate h100:1 -- sh -c 'exit 7' {where}"
    assert in_shell(cli_env, line).returncode == 7


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import aliquot.cli", "typer"),
        ("import aliquot.slices", "typer rich pynvml"),
        ("import aliquot.cli.app, aliquot.cli.run", "asyncio pydantic pynvml rich"),
        ("import aliquot.cli.ps, aliquot.cli.gpus, aliquot.cli.doctor", "rich pynvml"),
        ("import aliquot.cli.top, aliquot.cli.resize, aliquot.cli.metrics", "rich pynvml"),
    ],
)
def test_libraries_are_imported_when_needed(code: str, unwanted: str) -> None:
    check = f"import sys; {code}; assert not sys.modules.keys() & set({unwanted.split()!r})"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_a_missing_library_is_named() -> None:
    hide = "import sys; sys.modules['typer'] = None; from aliquot.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", hide], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("aliquot: typer is not installed\n")
