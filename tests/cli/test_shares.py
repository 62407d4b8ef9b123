"""What `aliquot ps`, `top`, `metrics` and `doctor` show of compute shares, with a fake arbiter."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.terminal import Terminal
from conftest import Cli, aliquot_command
from slices.played import (
    SECOND,
    Played,
    compute_words,
    gpu_words,
    grant_words,
    slice_words,
    status_words,
)
from support import GIB

Play = Callable[..., Played]


@pytest.fixture
def play(aliquot_state: Path) -> Iterator[Play]:
    """A fake arbiter of this machine that sends this status to every request."""
    playing: list[Played] = []

    def start(answer: Callable[[str], Any]) -> Played:
        aliquot_state.mkdir(mode=0o700)
        playing.append(Played(aliquot_state, answer))
        return playing[-1]

    yield start
    for one in playing:
        one.end()


def shared(*, turns: tuple[str, str] = ("holds", "out")) -> Callable[[str], Any]:
    """Two slices of a GPU, 70 % and an equal part; each status is a second after the last."""
    looks = itertools.count()

    def answer(question: str) -> Any:
        now = next(looks) if question == "status" else 0
        first = slice_words(
            compute_percent=70,
            compute=compute_words(
                state=turns[0],
                weight_percent=70,
                used_ns=now * 7 * SECOND // 10,
                handovers=50 * now,
                recent_used_ns=7 * SECOND // 10,
            ),
        )
        second = slice_words(
            compute=compute_words(
                state=turns[1],
                weight_percent=30,
                used_ns=now * 3 * SECOND // 10,
                handovers=50 * now,
                fallbacks=3,
                backlog=12,
                waits=40,
                waited_ns=SECOND,
                wait_p50_ns=SECOND // 100,
                wait_p99_ns=SECOND // 4,
                recent_used_ns=3 * SECOND // 10,
            )
        )
        grants = (grant_words("a", first), grant_words("b", second, pids=(43,)))
        gpus = [gpu_words(contended=True), gpu_words(1)]
        return status_words(*grants, gpus=gpus, now=now, cpu=0.04 * now)

    return answer


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each row of a table, by grant."""
    split = [[cell for cell in line.strip().split("  ") if cell] for line in text.splitlines()]
    return {cells[0].strip(): [cell.strip() for cell in cells] for cells in split if cells}


def test_ps_shows_requested_and_actual_shares(cli: Cli, play: Play) -> None:
    play(shared())
    found = rows(cli("ps").stdout)
    assert found["a"][2:5] == ["0", "1/8 GiB", "70.0%/70%"]
    assert found["b"][2:5] == ["0", "1/8 GiB", "30.0%/equal"]


def test_ps_names_an_overdue_process(cli: Cli, play: Play) -> None:
    play(shared(turns=("out", "overdue")))
    assert (
        "grant b: process python (43) is overdue on GPU 0: the others run at the same time"
        in cli("ps").stderr
    )


def test_ps_json_has_seconds_and_ratios(cli: Cli, play: Play) -> None:
    play(shared())
    answer = json.loads(cli("ps", "--json").stdout)
    first, second = (grant["slices"][0]["compute"] for grant in answer["grants"])
    assert first["asked_ratio"] == 0.7
    assert first["wait_seconds"] == {"p50": None, "p99": None, "count": 0, "sum": 0.0}
    used = second.pop("used_seconds_total")
    handovers = second.pop("handovers_total")
    assert used == pytest.approx(0.3 * handovers / 50)
    assert second == {
        "asked_ratio": None,
        "weight_ratio": 0.3,
        "got_ratio": 0.3,
        "fallbacks_total": 3,
        "backlog_quanta": 12,
        "wait_seconds": {"p50": 0.01, "p99": 0.25, "count": 40, "sum": 1.0},
        "state": "out",
        "gates": "work",
        "why": None,
        "idle_seconds": None,
    }
    assert answer["gpus"][0]["compute"] == {"contended": True}
    assert "credit_cpu_seconds_total" in answer["machines"][0]


def test_top_in_a_file_prints_a_line_per_slice_and_refresh(cli: Cli, play: Play) -> None:
    play(shared())
    lines = cli("top", "-n", "2", "--interval", "0.1").stdout.splitlines()
    told = [dict(word.split("=") for word in line.split()[1:]) for line in lines]
    assert [words["grant"] for words in told] == ["a", "b"] * 2
    assert [words["got"] for words in told] == ["70.0%", "30.0%"] * 2
    assert (told[0]["wait_p50_seconds"], told[0]["wait_p99_seconds"]) == ("-", "-")
    assert told[1] == {
        "gpu": "0",
        "grant": "b",
        "user": "root",
        "pid": "1,43",
        "asked": "equal",
        "got": "30.0%",
        "memory_used_bytes": str(GIB),
        "memory_limit_bytes": str(8 * GIB),
        "memory_away_bytes": "0",
        "memory_fixed_bytes": "0",
        "memory_on_host_bytes": "0",
        "parked": "-",
        "backlog": "12",
        "handovers_per_second": "50.0",
        "wait_p50_seconds": "0.010000",
        "wait_p99_seconds": "0.250000",
        "fallbacks": "3",
        "policy": "elastic",
        "priority": "normal",
        "state": "out",
        "grant_state": "active",
        "gates": "work",
        "contended": "yes",
        "gpu_busy": "-",
        "gpu_power": "-",
        "gpu_celsius": "-",
        "gpu_mhz": "-",
    }


def test_top_on_a_terminal_runs_until_q(play: Play, cli_env: dict[str, str]) -> None:
    play(shared(turns=("exempt", "out")))
    terminal = Terminal([aliquot_command(), "top", "--interval", "0.1"], cli_env)
    try:
        terminal.wait_for("GPU 0 H100 80GB HBM3 · contended")
        terminal.wait_for("credit 4.0% of a core")
        terminal.wait_for("GPU 1 H100 80GB HBM3 · not contended")
        terminal.wait_for("grant a: process python (42) was overdue too often on GPU 0")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()
    cells = next(line.split() for line in terminal.shown.splitlines() if " 50.0 " in line)
    assert cells[:5] == ["a", "root", "1", "70%", "70.0%"]
    assert "exempt" in cells
    assert "Traceback" not in terminal.shown


def test_top_once_leaves_its_output(play: Play, cli_env: dict[str, str]) -> None:
    play(shared())
    terminal = Terminal([aliquot_command(), "top", "--once", "--interval", "0.1"], cli_env)
    try:
        assert terminal.end() == 0
    finally:
        terminal.close()
    assert "10/250" in terminal.shown


def test_top_ends_at_an_interrupt(play: Play, cli_env: dict[str, str]) -> None:
    play(shared())
    command = [aliquot_command(), "top", "--interval", "0.1"]
    with subprocess.Popen(
        command, env=cli_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        assert "grant=a" in top.stdout.readline()  # as soon as there is one
        top.send_signal(signal.SIGINT)
        _, errors = top.communicate(timeout=60)
    assert (top.returncode, errors) == (0, "")


def test_top_without_an_arbiter(cli: Cli) -> None:
    answer = cli("top", "--once", "--interval", "0.1")
    assert (answer.returncode, answer.stdout) == (0, "")


def test_metrics_can_be_scraped(cli: Cli, play: Play) -> None:
    play(shared())
    families = {one.name: one for one in text_string_to_metric_families(cli("metrics").stdout)}
    shares = families["aliquot_slice_compute_share_ratio"].samples
    assert [(sample.labels["grant"], sample.value) for sample in shares] == [("a", 0.7)]
    assert families["aliquot_arbiter_up"].samples[0].value == 1


def test_metrics_without_an_arbiter(cli: Cli) -> None:
    answer = cli("metrics")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "aliquot_arbiter_up 0\n" in answer.stdout


def test_metrics_with_only_simulated_machines(cli: Cli, aliquot_state: Path) -> None:
    state = aliquot_state / "simulated" / "h100-1"
    for folder in (aliquot_state, state.parent, state):
        folder.mkdir(mode=0o700)
    played = Played(state, lambda _: status_words())
    try:
        answer = cli("metrics")
    finally:
        played.end()
    assert "aliquot_arbiter_up 0\n" in answer.stdout
    assert answer.stderr == "aliquot: only simulated machines run here: add --simulate h100:1\n"


def findings(cli: Cli, subject: str, *arguments: str) -> list[dict[str, Any]]:
    answer = json.loads(cli("doctor", "--json", *arguments).stdout)
    return [one for one in answer["findings"] if one["subject"] == subject]


def test_doctor_asks_the_driver_if_no_program_has_tested_gates(cli: Cli) -> None:
    (found,) = findings(cli, "compute", "--simulate", "h100:2")
    assert found["health"] == "ok"
    assert "not tested yet; the driver supports them" in found["detail"]


@pytest.mark.parametrize(
    ("gates", "health", "words"),
    [
        (("work", "untried"), ["ok"], ["shares work: tested on GPU 0"]),
        (("work", "fail"), ["ok"], ["shares work: tested on GPU 0"]),
        (("fail", "work"), ["ok"], ["shares work: tested on GPU 0"]),
        (
            ("fail", "fail"),
            ["warning"],
            ["shares do not work on GPU 0: CUDA error 801 (not supported)"],
        ),
    ],
)
def test_doctor_reports_what_programs_found(
    cli: Cli,
    aliquot_state: Path,
    gates: tuple[str, str],
    health: list[str],
    words: list[str],
) -> None:
    grants = [
        grant_words(str(number), slice_words(compute=compute_words(gates=word, why=801)))
        for number, word in enumerate(gates)
    ]
    state = aliquot_state / "simulated" / "h100-1"
    for folder in (aliquot_state, state.parent, state):
        folder.mkdir(mode=0o700)
    played = Played(state, lambda _: status_words(*grants))
    try:
        found = findings(cli, "compute", "--simulate", "h100:1")
        problems = findings(cli, "shares", "--simulate", "h100:1")
    finally:
        played.end()
    assert [one["health"] for one in problems] == ["warning"] * gates.count("fail")
    assert [one["health"] for one in found] == health
    assert [one["detail"] for one in found] == words
    assert all(one["fix"] for one in found if one["health"] == "warning")
