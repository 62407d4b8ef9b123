"""Several users of root's arbiter, as root sees them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.slices import control
from arbiter.rig import Owner
from cli.terminal import Terminal
from conftest import aliquot_command
from support import GIB, wait_until
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Cli

    Make = Callable[..., Owner]

pytestmark = needs_root

ALICE, BOB = 4001, 4002


@pytest.fixture
def users(short_tmp: Path) -> Path:
    path = short_tmp / "users"
    path.write_text(f"user {ALICE} memory 10GiB compute 50 grants 2\n")
    return path


@pytest.fixture
def make(
    cli_env: dict[str, str], aliquot_state: Path, short_tmp: Path, users: Path
) -> Iterator[Make]:
    """Makes grants of users in the arbiter of a simulated GPU."""
    short_tmp.chmod(0o755)
    command = [aliquot_command(), "arbiter", "--simulate", "h100:1", "--users", str(users)]
    state = aliquot_state / "simulated" / "h100-1"
    started: list[Owner] = []

    def start(uid: int | None, name: str, gib: int = 1, more: str = "") -> Owner:
        gpu = control.status(state).gpus[0].gpu.uuid
        request = f"make name={name} slice={gpu},memory={gib * GIB}{more}"
        started.append(Owner(state, request, uid))
        return started[-1]

    with subprocess.Popen(command, env=cli_env) as arbiter:
        try:
            wait_until(lambda: control.answers(state))
            yield start
        finally:
            for one in started:
                one.close()
            arbiter.terminate()


def test_ps_says_whose_a_grant_is(make: Make, cli: Cli) -> None:
    make(ALICE, "train", 4, ",compute=30")
    make(BOB, "train")
    shown = cli("ps").stdout
    assert "User" in shown
    assert [line.split()[:2] for line in shown.splitlines() if "train" in line] == [
        ["train", str(ALICE)],
        ["train", str(BOB)],
    ]
    grants = json.loads(cli("ps", "--json").stdout)["grants"]
    assert {(one["owner_uid"], one["name"]) for one in grants} == {(ALICE, "train"), (BOB, "train")}
    assert {line.count(f'grant="{ALICE}:train"') for line in cli_metrics(cli)} == {0, 1}


def cli_metrics(cli: Cli) -> list[str]:
    answer = cli("metrics", "--simulate", "h100:1")
    lines = [line for line in answer.stdout.splitlines() if not line.startswith("#")]
    names = [line.rpartition(" ")[0] for line in lines]
    assert len(names) == len(set(names)), "a series appears twice"
    return lines


def test_root_resizes_a_grant_by_user_and_name(make: Make, cli: Cli) -> None:
    make(ALICE, "train", 4, ",compute=30")
    make(BOB, "train")
    answer = cli("resize", "train", "--compute", "20")
    assert answer.returncode == 1
    assert f"Choose one of {ALICE}:train, {BOB}:train." in answer.stderr
    answer = cli("resize", f"{ALICE}:train", "--compute", "20")
    assert (answer.returncode, "compute 30% → 20%" in answer.stdout) == (0, True), answer.stderr
    refused = cli("resize", f"{ALICE}:train", "--memory", "11GiB")
    assert refused.returncode == 1
    assert f"user {ALICE} may have 10240 MiB of GPU memory" in refused.stderr
    assert "and has 4096 MiB: 7168 MiB more requested" in refused.stderr
    assert "let root raise the limit and run: aliquot limits --reload" in refused.stderr


def test_top_says_whose_a_grant_is(make: Make, cli_env: dict[str, str]) -> None:
    make(ALICE, "train", 1, ",compute=30")
    make(None, "mine")
    terminal = Terminal([aliquot_command(), "top", "--once"], cli_env)
    try:
        terminal.wait_for("mine")
        assert terminal.end() == 0
        names = [line.split()[:2] for line in terminal.shown.splitlines() if "/1 GiB " in line]
        assert names == [["train", str(ALICE)], ["mine", "root"]]
    finally:
        terminal.close()


def test_limits_shows_limits_and_use(make: Make, cli: Cli, users: Path) -> None:
    make(ALICE, "train", 4, ",compute=30")
    shown = cli("limits", "--simulate", "h100:1")
    assert shown.returncode == 0, shown.stderr
    (row,) = [line for line in shown.stdout.splitlines() if line.split()[:1] == [str(ALICE)]]
    assert row.split() == [
        str(ALICE),
        *["4", "GiB", "of", "10", "GiB", "30%", "of", "50%", "1", "of", "2"],
    ]
    assert shown.stderr == f"aliquot: Root sets the limits in {users}.\n"
    users.write_text("users\n")
    wrong = cli("limits", "--simulate", "h100:1", "--reload")
    assert wrong.returncode == 1
    assert f"{users}, line 1" in wrong.stderr
    assert "aliquot limits --reload" in wrong.stderr
    users.write_text("user * grants 7\n")
    answer = json.loads(cli("limits", "--simulate", "h100:1", "--reload", "--json").stdout)
    assert [(one["uid"], one["grants"]) for one in answer["users"]] == [(ALICE, 7)]


def test_limits_without_an_arbiter(cli: Cli) -> None:
    answer = cli("limits", "--simulate", "h100:1")
    assert (answer.returncode, answer.stdout) == (
        0,
        "No arbiter runs here; `aliquot run` starts one.\n",
    )


def test_an_invalid_name_of_a_group_is_refused(cli: Cli) -> None:
    answer = cli("run", "--simulate", "h100:1", "--together", "a b", "--", "true")
    assert answer.returncode == 2
    assert "--together 'a b' is not a valid name" in answer.stderr


def test_a_missing_file_of_limits_is_refused(cli: Cli, short_tmp: Path) -> None:
    missing = short_tmp / "mistyped"
    done = cli("arbiter", "--simulate", "h100:1", "--users", str(missing))
    assert done.returncode == 1
    assert f"there is no file {missing} with limits of users" in done.stderr


def test_a_user_knows_its_own_slices_in_a_user_namespace(
    make: Make, cli_env: dict[str, str]
) -> None:
    """There it has another number than the arbiter sees."""
    make(None, "train")
    inside = ["unshare", "--user", "--map-user=1234"]
    if subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("needs user namespaces")

    def ask(*args: str) -> subprocess.CompletedProcess[str]:
        command = [*inside, aliquot_command(), args[0], "--simulate", "h100:1", *args[1:]]
        return subprocess.run(command, env=cli_env, capture_output=True, text=True, check=False)

    answer = ask("run", "--memory", "1GiB", "--apart-from", "train", "--dry-run", "--", "true")
    assert answer.returncode == 1
    assert "GPU 0 has the slice train, which" in answer.stderr
    (grant,) = json.loads(ask("ps", "--json").stdout)["grants"]
    assert grant["name"] == "train"
