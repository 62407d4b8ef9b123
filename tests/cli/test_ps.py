"""`aliquot ps` and `aliquot top`: whose a slice is and what it does, at several widths."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli import ps, top
from aliquot.cli.tables import NOTHING
from aliquot.devices import Sensors, find_driver, simulated_driver
from aliquot.devices import Shape as Simulated
from aliquot.model import (
    ComputeUse,
    Grant,
    GrantState,
    Life,
    Moved,
    Parking,
    ParkingStep,
    Process,
    Residence,
)
from aliquot.model.errors import AliquotError
from aliquot.slices import LocalMachine, StateDirectory, Survey, grant_facts
from aliquot.slices.arbiter_status import Status
from cli.conftest import Tenants, grants_of
from cli.terminal import Terminal, on_terminal
from conftest import Cli, aliquot_command
from slices.played import Played, compute_words, grant_words, slice_words, status_words
from support import GIB, make_grant, make_shared, wait_until

ONE = ("--simulate", "h100:1")
ME = pwd.getpwuid(os.geteuid()).pw_name


def machine(*grants: Grant) -> LocalMachine:
    status = Status(pid=1, gpus=(make_shared(),), grants=grants, answer={})
    return LocalMachine(StateDirectory(Path("/nowhere")), status)


def row_of(grant: Grant) -> dict[str, str]:
    (row,) = ps.grant_rows((machine(grant),))
    return row


def lines_of(*grants: Grant, width: int | None = 160) -> list[str]:
    return ps.lines(Survey((machine(*grants),)), Sensors(), width)


def test_a_row_says_whom_to_ask() -> None:
    row = row_of(replace(make_grant("mine", gpu0=GIB), owner_uid=4_000_000))
    assert (row["name"], row["user"], row["uid"]) == ("mine", "4000000", "4000000")


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "unused"),
        ({"processes": (Process(7, "python", "live"),)}, "running"),
        ({"processes": (Process(7, "python", "live", stopped=True),)}, "stopped"),
        ({"owner_alive": False}, "ended"),
        ({"owner_alive": False, "processes": (Process(7, "a", "live"),)}, "ending"),
        ({"owner_pid": None, "owner_alive": False, "life": Life.KEPT}, "unused"),
        ({"state": GrantState.SWITCHING}, "switching"),
        ({"state": GrantState.PARKED}, "parked"),
        ({"broken": "a file is gone"}, "broken"),
    ],
)
def test_the_state_of_a_grant(changes: dict[str, Any], state: str) -> None:
    grant = replace(make_grant("mine", gpu0=GIB), **changes)
    assert row_of(grant)["state"] == state
    (row,) = top.MachineView(machine(grant), None).rows(make_shared().gpu.uuid)
    turns = {"unused": "idle", "running": "idle", "ending": "idle"}
    assert row.state == turns.get(state, state)


def test_a_slice_without_work_is_shown_as_idle_after_a_minute() -> None:
    grant = make_grant("mine", gpu0=GIB, gpu1=GIB)
    used = (ComputeUse(idle_seconds=59.0), ComputeUse(idle_seconds=1900.0))
    grant = replace(grant, compute=used)
    assert [row["idle"] for row in ps.grant_rows((machine(grant),))] == [NOTHING, "31m"]
    (header,) = (line for line in lines_of(grant) if "Grant" in line)
    assert "Idle" in header
    unseen = replace(grant, compute=(ComputeUse(), ComputeUse()))
    for one in (replace(grant, state=GrantState.PARKED), unseen):
        assert {row["idle"] for row in ps.grant_rows((machine(one),))} == {NOTHING}
        assert not any("Idle" in line for line in lines_of(one))


def test_a_swappable_grant_is_shown_with_what_is_away_and_what_is_left() -> None:
    moved = Moved(Residence.HOST, settled=True, away_bytes=5 * GIB, fixed_bytes=GIB)
    process = Process(7, "python", "live", moved=moved)
    grant = replace(
        make_grant("mine", gpu0=8 * GIB), residence=Residence.HOST, processes=(process,)
    )
    assert (row_of(grant)["away"], row_of(grant)["fixed"]) == ("5 GiB", "1 GiB")
    assert "Away" in lines_of(grant)[-1 - 1]
    (row,) = top.MachineView(machine(grant), None).rows(make_shared().gpu.uuid)
    assert row.cells(0.0)["away"] == "5 GiB"
    parked = replace(grant, state=GrantState.PARKED, staying_bytes=2 * GIB)
    shown = "\n".join(lines_of(parked))
    assert (
        "is parked: 5 GiB of its memory are on the host now, and 2 GiB are left on its GPU" in shown
    )
    failed = replace(process, moved=replace(moved, failed="host-full"))
    shown = "\n".join(lines_of(replace(grant, processes=(failed,))))
    assert "process 7 did not move its memory: the host has too little free memory" in shown


def test_an_idle_grant_is_shown_with_how_long_and_how_often_it_was_parked() -> None:
    grant = replace(make_grant("mine", gpu0=8 * GIB), residence=Residence.GPU)
    assert row_of(grant)["parked"] == NOTHING
    parking = Parking(600.0, ParkingStep.AWAY, times=2, seconds=4000.0, for_seconds=400.0)
    idle = replace(grant, state=GrantState.PARKED, staying_bytes=GIB, parking=parking)
    assert (row_of(idle)["state"], row_of(idle)["parked"]) == ("parked", "1 h 6 min, 2 times")
    shown = "\n".join(lines_of(idle))
    assert "is parked because it is idle, for 6 min 40 s (2 times so far): " in shown
    waits = replace(parking, waits=True, why="GPU 0 has 1 MiB free")
    shown = "\n".join(lines_of(replace(idle, parking=waits)))
    assert "grant mine waits to return to its GPU: GPU 0 has 1 MiB free" in shown
    stays = Parking(600.0, why="process 7: unswappable")
    shown = "\n".join(lines_of(replace(grant, parking=stays)))
    assert "grant mine is idle and was not parked: process 7: it has used unified memory" in shown


def test_a_grant_with_memory_on_the_host_is_shown_with_how_much() -> None:
    grant = replace(make_grant("mine", gpu0=8 * GIB), spill_bytes=4 * GIB, on_host_bytes=3 * GIB)
    assert row_of(grant)["on_host"] == "3/4 GiB"
    assert "On host" in lines_of(grant)[-1 - 1]
    (row,) = top.MachineView(machine(grant), None).rows(make_shared().gpu.uuid)
    assert row.cells(0.0)["on_host"] == "3/4 GiB"


def test_where_no_memory_can_leave_nothing_says_so() -> None:
    shown = "\n".join(lines_of(make_grant("mine", gpu0=GIB)))
    assert "Away" not in shown
    assert "On host" not in shown


def test_a_parked_grant_is_shown_with_what_it_holds() -> None:
    parked = replace(make_grant("mine", gpu0=GIB), state=GrantState.PARKED)
    use = tuple(replace(one, counted_bytes=GIB) for one in parked.use)
    shown = "\n".join(lines_of(replace(parked, use=use)))
    assert "grant mine is parked: it holds 1 GiB of host memory, and none of its GPUs" in shown


def test_a_hidden_grant_shows_user_size_state_and_age_alone() -> None:
    hidden = replace(make_grant("4001:-", gpu0=GIB), owner_uid=4001, owner_pid=None, directory="")
    row = row_of(hidden)
    assert [row[key] for key in ("name", "pid", "command")] == ["–"] * 3  # noqa: RUF001
    assert (row["user"], row["limit"], row["state"]) == ("4001", "1 GiB", "unused")
    used = tuple(replace(one, counted_bytes=GIB) for one in hidden.use)
    assert row_of(replace(hidden, use=used))["state"] == "running"
    assert row["age"] != ""


def test_a_program_is_named_without_its_folder_where_space_is_short() -> None:
    assert ps.short_command("/usr/bin/python3 train.py /data") == "python3 train.py /data"
    assert ps.short_command("train") == "train"


def test_several_processes_are_counted_where_space_is_short() -> None:
    grant = replace(
        make_grant("mine", gpu0=GIB),
        owner_pid=5,
        processes=tuple(Process(pid, "python", "live") for pid in range(5, 40)),
    )
    assert row_of(grant)["pid"] == ",".join(map(str, range(5, 40)))
    assert any("  5 +34  " in line for line in lines_of(grant, width=100))


@pytest.mark.parametrize("width", range(30, 200, 7))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    grant = replace(make_grant("a-grant-with-a-long-name", gpu0=GIB), broken="it is " + "bad " * 50)
    assert max(map(len, lines_of(grant, width=width))) <= width
    view = top.MachineView(machine(grant), None)
    shown = top.body_lines(top.Refresh([view]), top.Choice(), width)
    assert max(map(len, shown)) <= width


def test_ps_at_80_and_200_columns_and_in_a_pipe(
    cli: Cli, cli_env: dict[str, str], tenants: Tenants
) -> None:
    tenant = tenants.start(*ONE, "--memory", "8GiB", "--compute", "30", "--name", "mine")
    tenant.hear("stays")
    for columns in (80, 200):
        lines = on_terminal([aliquot_command(), "ps"], cli_env, columns)
        assert max(map(len, lines)) <= columns
        row = next(line.split() for line in lines if line.startswith("mine"))
        assert row[:2] == ["mine", ME]
        assert {str(tenant.process.pid), "running"} <= set(row)
        assert all(word in " ".join(lines) for word in ("% busy ·", " W ·", " °C ·", " MHz"))
    assert any(line.endswith("demo/tenant.py 0") for line in lines)
    header, row_in_pipe = cli("ps").stdout.splitlines()
    assert header.startswith("Grant  User")
    assert row_in_pipe.endswith("demo/tenant.py 0")
    shown = cli("ps", "--format", "{{.Name}} {user} {pid} {share} {limit}").stdout
    assert shown == f"mine {ME} {tenant.process.pid} 30% 8 GiB\n"


def test_ps_json_has_user_command_and_telemetry(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "8GiB", "--name", "mine").hear("stays")
    answer = json.loads(cli("ps", "--json").stdout)
    assert answer["grants"][0]["user"] == ME
    assert answer["grants"][0]["command"].endswith("tenant.py 0")
    found = answer["gpus"][0]["telemetry"]
    assert 30 <= found["celsius"] <= 100
    assert 0 < found["power_watts"] <= found["power_limit_watts"] == 700
    assert found["clock_mhz"] > 0


def test_simulate_chooses_one_machine(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--name", "one").hear("stays")
    tenants.start("--simulate", "t4:2", "--name", "two").hear("stays")
    assert cli("ps", *ONE, "--format", "{name}").stdout == "one\n"
    assert sorted(cli("ps", "--format", "{name}").stdout.split()) == ["one", "two"]
    lines = cli("top", "--once", "-i", "0.1", "--simulate", "t4:2").stdout.splitlines()
    assert ["grant=two" in line for line in lines] == [True]


def test_a_stopped_program_is_shown_as_stopped(cli: Cli, tenants: Tenants) -> None:
    tenant = tenants.start(*ONE, "--memory", "8GiB", "--name", "mine")
    tenant.hear("stays")
    tenant.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: cli("ps", "--format", "{state}").stdout == "stopped\n")
        assert grants_of(cli)["mine"]["processes"][0]["stopped"]
        (line,) = cli("top", "--once", "-i", "0.1").stdout.splitlines()
        assert " state=stopped " in line
    finally:
        tenant.process.send_signal(signal.SIGCONT)


# In a process of its own: a process reads the figures of the first simulated machine that it asks.
READS_TWO_MACHINES = """
import sys
from pathlib import Path
from aliquot.devices import Sensors, Shape, simulated_driver
first, second = (simulated_driver(Shape(model, 2), Path(sys.argv[1])) for model in ("h100", "t4"))
sensors = Sensors()
assert {one.power_limit_watts for one in sensors.read(first).values()} == {700}
assert sensors.read(second) == {}
assert len(sensors.read(first)) == 2
"""


def test_figures_are_never_those_of_another_simulated_machine(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", READS_TWO_MACHINES, str(tmp_path)], check=True)


def test_a_missing_driver_has_no_figures(tmp_path: Path) -> None:
    driver = simulated_driver(Simulated("h100", 1), tmp_path)
    assert Sensors().read(replace(driver, nvml=tmp_path / "missing.so")) == {}


@pytest.fixture
def silent(aliquot_state: Path) -> Iterator[Path]:
    """An arbiter of a simulated machine that listens and never answers, beside one that does."""
    import socket  # noqa: PLC0415

    state = aliquot_state / "simulated" / "t4-1"
    for folder in (aliquot_state, state.parent, state):
        folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(state / "control"))
        server.listen()
        played = Played(aliquot_state, lambda _: status_words(grant_words("a", slice_words())))
        yield state
        played.end()


def test_an_arbiter_that_does_not_answer_is_named(silent: Path, cli: Cli) -> None:
    words = f"the arbiter in {silent} runs and did not answer"
    answer = cli("top", "--once", "-i", "0.1")
    assert words in answer.stdout
    assert " grant=a " in answer.stdout
    answer = cli("ps", "--json")
    assert answer.returncode == 1
    found = json.loads(answer.stdout)
    assert [one["name"] for one in found["grants"]] == ["a"]
    assert [one["state"] for one in found["silent"]] == [str(silent)]
    assert words in answer.stderr
    assert "waiting for" not in answer.stderr, "a program is told only once it is over"


def test_a_person_is_told_that_a_command_waits_for_an_arbiter_and_until_when(
    silent: Path, cli_env: dict[str, str]
) -> None:
    terminal = Terminal([aliquot_command(), "ps"], cli_env, columns=200)
    try:
        terminal.wait_for(f"waiting for the arbiter in {silent}, which does not answer;")
        terminal.wait_for("\n")
        assert re.search(r"; at most until \d\d:\d\d:\d\d\n", terminal.shown)
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()


Play = Callable[[Callable[[str], Any]], Played]


@pytest.fixture
def many(aliquot_state: Path) -> Iterator[None]:
    """A fake arbiter with 40 grants on one GPU."""
    grants = [
        grant_words(
            f"grant-{number:02}",
            slice_words(
                counted_bytes=number * GIB // 8,
                compute=compute_words(recent_used_ns=(39 - number) * 10_000_000),
            ),
            pids=(1000 + number,),
        )
        for number in range(40)
    ]
    aliquot_state.mkdir(mode=0o700)
    played = Played(aliquot_state, lambda _: status_words(*grants))
    yield
    played.end()


def names(terminal: Terminal) -> list[str]:
    """The grants on the screen now, in order."""
    last = terminal.shown.rpartition("aliquot top ")[2]
    return [line.split()[0] for line in last.splitlines() if line.startswith("grant-")]


@pytest.mark.parametrize("columns", [80, 200])
def test_keys_of_top(many: None, cli_env: dict[str, str], columns: int) -> None:
    terminal = Terminal([aliquot_command(), "top", "-i", "60"], cli_env, columns, 24)
    try:
        terminal.wait_for("q quit")
        assert "lines below" in terminal.shown
        assert names(terminal)[0] == "grant-00"
        for key, first in (("m", "grant-39"), ("c", "grant-00"), ("u", "grant-00")):
            terminal.press(key)
            terminal.wait_for(f"by {top.SORTS[key][0]}")
            wait_for_names(terminal, first)
        terminal.press("G")  # no such key: nothing happens
        terminal.press("\x1b[F")
        terminal.wait_for("above")
        wait_for_last(terminal, "grant-39")
        terminal.press("\x1b[H")
        wait_for_names(terminal, "grant-00")
        terminal.press("/grant-17\r")
        terminal.wait_for("filter: grant-17")
        wait_until(lambda: terminal.read() and names(terminal) == ["grant-17"])
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()
    screens = terminal.shown.split("aliquot top ")
    assert all(len(line) <= columns for screen in screens for line in screen.splitlines())


def wait_for_names(terminal: Terminal, first: str) -> None:
    wait_until(lambda: terminal.read() and names(terminal)[:1] == [first])


def wait_for_last(terminal: Terminal, last: str) -> None:
    wait_until(lambda: terminal.read() and names(terminal)[-1:] == [last])


def test_a_filter_takes_keys_that_end_top_elsewhere(many: None, cli_env: dict[str, str]) -> None:
    terminal = Terminal([aliquot_command(), "top", "-i", "60"], cli_env, 100, 24)
    try:
        terminal.wait_for("q quit")
        terminal.press("/q")
        terminal.wait_for("command: q_")
        terminal.press("\x1b")
        terminal.wait_for("q quit")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


@pytest.mark.parametrize("command", [["top"], ["ps", "--watch"], ["top", "-n", "5"]])
def test_ctrl_c_leaves_the_screen_without_a_traceback(
    many: None, cli_env: dict[str, str], command: list[str]
) -> None:
    terminal = Terminal([aliquot_command(), *command], cli_env, 80, 24)
    try:
        terminal.wait_for("grant-00")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    finally:
        terminal.close()
    assert "Traceback" not in terminal.shown
    if command != ["top", "-n", "5"]:
        assert terminal.raw.endswith("\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize("command", ["ps", "top --once -i 0.1", "gpus --simulate h100:8"])
def test_a_closed_pipe_prints_nothing(many: None, cli_env: dict[str, str], command: str) -> None:
    path = f"{Path(sys.executable).parent}:{cli_env['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"aliquot {command} | head -1"],
        env={**cli_env, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_figures_are_there_only_if_there_is_a_driver() -> None:
    try:
        find_driver()
    except AliquotError:
        assert grant_facts.telemetry(machine(), Sensors()) == {}
