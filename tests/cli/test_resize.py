"""`aliquot resize`: first against a fake arbiter, then on a simulated machine."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Tenants, grants_of, kill_arbiter
from cli.terminal import Terminal
from conftest import Cli, aliquot_command
from slices.played import Played, gpu_words, grant_words, slice_words, status_words
from support import GIB, uuid_of, wait_until

ONE = ("--simulate", "h100:1")


class Arbiter:
    """Lowers a grant of two slices by a GiB with every request, or does not."""

    def __init__(self, directory: Path, *, frees: bool) -> None:
        self.limit = 8 * GIB
        self._frees = frees
        self.played = Played(directory, self._answer)

    def _answer(self, question: str) -> Any:
        if question.startswith("resize"):
            goal = int(question.partition("memory=")[2].split(",")[0].split()[0])
            if self._frees:
                self.limit = max(self.limit - GIB, goal)
            parts = [
                {
                    "gpu": uuid_of(gpu),
                    "memory_bytes": self.limit,
                    "reached": self.limit == goal,
                }
                for gpu in range(2)
            ]
            return {"name": "a", "slices": parts}
        slices = [slice_words(gpu, memory_bytes=self.limit) for gpu in range(2)]
        return status_words(grant_words("a", *slices), gpus=[gpu_words(0), gpu_words(1)])


@pytest.fixture
def arbiter(aliquot_state: Path) -> Iterator[Callable[..., Arbiter]]:
    started: list[Arbiter] = []

    def start(*, frees: bool = True) -> Arbiter:
        aliquot_state.mkdir(mode=0o700)
        started.append(Arbiter(aliquot_state, frees=frees))
        return started[-1]

    yield start
    for one in started:
        one.played.end()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["a"], "--compute equal"),
        (["a", "--compute", "0"], "'0'"),
        (["a", "--memory", "8X"], "'8X'"),
        (["a", "--policy", "soft"], "--policy"),
        (["a/b", "--compute", "30"], "'a/b'"),
        (["a", "--compute", "30", "--wait"], "--memory"),
        (["--compute", "30"], "NAME"),
    ],
)
def test_invalid_use_names_the_argument(cli: Cli, arguments: list[str], named: str) -> None:
    answer = cli("resize", *arguments)
    assert answer.returncode == 2
    assert named in answer.stderr


def test_an_unknown_grant_is_an_error(cli: Cli, arbiter: Callable[..., Arbiter]) -> None:
    arbiter()
    answer = cli("resize", "b", "--compute", "30")
    assert answer.returncode == 1
    assert answer.stderr == "aliquot: there is no grant named b\n  Existing grants: a.\n"


def test_waiting_ends_when_the_limit_is_reached(cli: Cli, arbiter: Callable[..., Arbiter]) -> None:
    arbiter()
    answer = cli("resize", "a", "--memory", "5GiB", "--wait")
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "aliquot: grant a: waiting, 4 GiB to go\n"
    assert answer.stdout.splitlines() == [
        "grant a, GPU 0: memory 8 GiB → 5 GiB",
        "grant a, GPU 1: memory 8 GiB → 5 GiB",
    ]


def test_progress_is_shown_and_ctrl_c_keeps_the_limit(
    arbiter: Callable[..., Arbiter], cli_env: dict[str, str]
) -> None:
    arbiter(frees=False)
    command = [aliquot_command(), "resize", "a", "--memory", "5GiB", "--wait"]
    terminal = Terminal(command, cli_env)
    try:
        terminal.wait_for("grant a: 6 GiB to go")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
    finally:
        terminal.close()
    assert "keeps its present limit, 8 GiB of GPU 0, 8 GiB of GPU 1" in terminal.shown
    assert "To undo: aliquot resize a --memory 8GiB" in terminal.shown
    assert "Traceback" not in terminal.shown


def slice_of(cli: Cli, name: str) -> dict[str, Any]:
    (part,) = grants_of(cli)[name]["slices"]
    return dict(part)


def test_a_running_grant_is_changed(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "4GiB", "--name", "mine", wants=str(GIB)).hear("stays")
    options = ("--memory", "25%", "--compute", "40", "--policy", "hard", "--priority", "latency")
    answer = cli("resize", "mine", *options)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == (
        "grant mine, simulated GPU 0: memory 4 GiB → 19.7 GiB; compute equal → 40%;"
        " policy elastic → hard; priority normal → latency\n"
    )
    part = slice_of(cli, "mine")
    assert (part["compute_percent"], part["policy"], part["priority"]) == (40, "hard", "latency")
    answer = cli("resize", "mine", "--compute", "equal")
    assert answer.returncode == 2
    assert "Add --policy elastic" in answer.stderr
    assert cli("resize", "mine", "--compute", "equal", "--policy", "elastic").returncode == 0
    part = slice_of(cli, "mine")
    assert (part["compute_percent"], part["policy"]) == (None, "elastic")


@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_a_limit_that_cannot_hold_a_context_is_refused(
    cli: Cli, arbiter: Callable[..., Arbiter], wait: tuple[str, ...]
) -> None:
    asked = arbiter()
    answer = cli("resize", "a", "--memory", "500MiB", *wait)
    assert answer.returncode == 1
    too_small = "500 MiB cannot hold a CUDA context: one usually takes 518 MiB of GPU 0"
    assert answer.stderr.splitlines() == [
        f"aliquot: {too_small} (H100 80GB HBM3)",
        "  Give more with --memory.",
    ]
    assert not any(question.startswith("resize") for question in asked.played.questions)


def test_more_memory_is_usable_at_once(cli: Cli, tenants: Tenants) -> None:
    tenant = tenants.start(*ONE, "--memory", "2GiB", "--name", "mine", wants=str(3 * GIB))
    assert tenant.hear("stopped")["bytes"] < 2 * GIB
    tenant.hear("stays")
    assert cli("resize", "mine", "--memory", "8GiB").returncode == 0
    tenant.tell("take", 3 * GIB)
    assert tenant.hear("stays")["bytes"] == 3 * GIB


def test_a_limit_below_what_is_in_use_is_refused_with_the_figure(
    cli: Cli, tenants: Tenants
) -> None:
    tenants.start(*ONE, "--memory", "8GiB", "--name", "mine", wants=str(4 * GIB)).hear("stays")
    answer = cli("resize", "mine", "--memory", "2GiB")
    assert answer.returncode == 1
    assert "grant mine uses 4.5 GiB of GPU 0" in answer.stderr  # with its context
    assert "--wait" in answer.stderr
    assert slice_of(cli, "mine")["memory_bytes"] == 8 * GIB


def test_wait_lowers_the_limit_as_the_program_frees(
    cli: Cli, cli_env: dict[str, str], aliquot_state: Path, tenants: Tenants
) -> None:
    tenant = tenants.start(*ONE, "--memory", "8GiB", "--name", "mine", wants=str(4 * GIB))
    tenant.hear("stays")
    command = [aliquot_command(), "resize", "mine", "--memory", "2GiB", "--wait"]
    with subprocess.Popen(command, env=cli_env, stdout=subprocess.PIPE, text=True) as waiting:
        wait_until(lambda: slice_of(cli, "mine")["memory_bytes"] < 5 * GIB)
        kill_arbiter(aliquot_state / "simulated" / "h100-1")  # the next step starts it again
        tenant.tell("free", 3 * GIB)
        output, _ = waiting.communicate(timeout=60)
        assert waiting.returncode == 0
    assert output == "grant mine, simulated GPU 0: memory 8 GiB → 2 GiB\n"
    assert slice_of(cli, "mine")["memory_bytes"] == 2 * GIB


def test_more_than_is_free_is_refused(cli: Cli, tenants: Tenants) -> None:
    share = ("--memory", "8GiB", "--compute", "60")
    tenants.start(*ONE, *share, "--name", "large").hear("stays")
    tenants.start(*ONE, "--memory", "8GiB", "--name", "small").hear("stays")
    for option in (("--memory", "79GiB"), ("--compute", "50")):
        answer = cli("resize", "small", *option)
        assert answer.returncode == 1
        assert "(grants: large 8 GiB" in answer.stderr
        assert "aliquot ps" in answer.stderr
    assert slice_of(cli, "small")["compute_percent"] is None


def test_the_grant_is_searched_on_every_machine(cli: Cli, tenants: Tenants) -> None:
    for machine in ("h100:1", "t4:2"):
        tenants.start("--simulate", machine, "--memory", "1GiB", "--name", "mine").hear("stays")
    answer = cli("resize", "mine", "--compute", "30")
    assert answer.returncode == 1
    assert "simulated h100:1" in answer.stderr
    assert "simulated t4:2" in answer.stderr
    answer = cli("resize", "mine", "--compute", "30", "--simulate", "t4:2")
    assert answer.returncode == 0, answer.stderr
    assert "simulated GPU 0: compute equal → 30%" in answer.stdout
