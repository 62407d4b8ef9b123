"""Simulated GPUs that become unhealthy and recover, as written to the machine's health file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sim.conftest import Start
from sim.program import Program

TIMEOUT, LOST = "error 10", "error 15"
XID, DOUBLE_BIT = 8, 2
UNCORRECTED, VOLATILE, AGGREGATE = 1, 0, 1

Say = Callable[[str], None]


@pytest.fixture
def nvml(start: Start) -> Program:
    program = start("nvml", shape="h100:2")
    assert program("call", "nvmlInit") is None
    return program


@pytest.fixture
def say(sim_env: dict[str, str]) -> Say:
    def append(text: str) -> None:
        with (Path(sim_env["ALIQUOT_SIMULATE_STATE"]) / "health").open("a") as file:
            file.write(text)

    return append


def errors(nvml: Program, index: int) -> list[int]:
    name = "nvmlDeviceGetTotalEccErrors"
    return [nvml("of", index, name, UNCORRECTED, which) for which in (VOLATILE, AGGREGATE)]


def begin_again(nvml: Program) -> None:
    for call in ("nvmlShutdown", "nvmlInit"):
        assert nvml("call", call) is None


def test_an_event_set_reports_what_happens_after_its_creation(nvml: Program, say: Say) -> None:
    say("0 xid 13\n")
    nvml("watch", 0, 1)
    assert nvml("wait", 1) == TIMEOUT
    nvml.ask("wait", 20_000)
    say("1 xid 79\n0 ecc 2\n1 xid 48\n")
    assert nvml.answer() == [1, XID, 79]
    assert nvml("wait", 20_000) == [0, DOUBLE_BIT, 0]
    assert nvml("wait", 20_000) == [1, XID, 48]
    assert nvml("wait", 1) == TIMEOUT


def test_an_event_set_ignores_gpus_it_is_not_registered_for(nvml: Program, say: Say) -> None:
    nvml("watch", 1)
    say("0 xid 79\n1 xid 31\n")
    assert nvml("wait", 20_000) == [1, XID, 31]


def test_memory_errors_are_counted_until_the_gpu_recovers(nvml: Program, say: Say) -> None:
    assert errors(nvml, 0) == [0, 0]
    say("0 ecc 2\n0 ecc 1\n")
    assert errors(nvml, 0) == [3, 3]
    assert errors(nvml, 1) == [0, 0]
    say("0 recovered\n")
    assert errors(nvml, 0) == [0, 0]


def test_every_query_about_a_lost_gpu_fails(nvml: Program, say: Say) -> None:
    uuids = [nvml("of", index, "nvmlDeviceGetUUID") for index in range(2)]
    nvml("watch", 0, 1)
    say("1 xid 79\n1 lost\n")
    assert nvml("call", "nvmlDeviceGetCount") == 2
    assert nvml("call", "nvmlDeviceGetHandleByIndex", 1) == LOST
    assert nvml("call", "nvmlDeviceGetHandleByUUID", uuids[1]) == LOST
    assert nvml("of", 0, "nvmlDeviceGetUUID") == uuids[0]
    assert nvml("wait", 20_000) == [1, XID, 79]
    assert nvml("wait", 1) == LOST


def test_a_lost_gpu_that_recovers_is_found_by_a_new_session_only(nvml: Program, say: Say) -> None:
    say("1 lost\n1 recovered\n")
    assert nvml("call", "nvmlDeviceGetHandleByIndex", 1) == LOST
    begin_again(nvml)
    assert nvml("of", 1, "nvmlDeviceGetIndex") == 1


def test_queries_wait_for_a_gpu_that_hangs(nvml: Program, say: Say) -> None:
    say("0 hangs\n")
    assert nvml("of", 1, "nvmlDeviceGetIndex") == 1
    nvml.ask("of", 0, "nvmlDeviceGetIndex")
    say("0 recovered\n")
    assert nvml.answer() == 0


def test_a_driver_tells_the_recovery_action_from_the_first_one_on(nvml: Program, say: Say) -> None:
    assert nvml("action", 0) is None
    say("0 action 2\n")
    assert nvml("action", 0) == 2
    say("0 recovered\n")
    assert nvml("action", 0) == 0
    assert nvml("action", 1) is None


@pytest.mark.parametrize(
    "text", ["0 xid", "9999 lost\n", "nonsense\n", "0 unhealthy\n", "\n", "-1 lost\n"]
)
def test_invalid_lines_are_ignored(nvml: Program, say: Say, text: str) -> None:
    nvml("watch", 0)
    say(text)
    assert nvml("wait", 1) == TIMEOUT
    assert nvml("of", 0, "nvmlDeviceGetIndex") == 0


def test_programs_go_on_while_their_gpu_is_lost(start: Start, nvml: Program, say: Say) -> None:
    program = start("driver", shape="h100:2")
    program("begin")
    say("0 xid 79\n0 lost\n")
    assert program("call", "cuMemAlloc", 1 << 20)[0] == 0
    say("0 recovered\n")
    begin_again(nvml)
    assert list(nvml("processes", 0)) == [str(program.pid)]
