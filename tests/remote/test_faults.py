"""Whatever ends, the slice is given back, and whoever is left says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from remote.conftest import LONG, Remote


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG / 2
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def ready(program: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line == "ready\n", program.communicate()[1]
    return program


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123
        return [int(one) for one in file.read().split()]


def test_the_slice_of_a_killed_program_is_given_back(remote: Remote) -> None:
    program = ready(remote.start("wait.py"))
    assert [one["slices"][0]["memory_bytes"] for one in remote.grants()] == [8 << 30]
    program.kill()
    program.communicate(timeout=LONG)
    until(lambda: not remote.grants())


def test_a_program_whose_executor_was_killed_says_that_its_tensors_are_gone(remote: Remote) -> None:
    program = ready(remote.start("wait.py"))
    (session,) = (one["owner_pid"] for one in remote.grants())
    for executor in children_of(session):
        os.kill(executor, signal.SIGKILL)
    _, error = program.communicate("go\n", timeout=LONG)
    assert program.returncode == 1
    assert "The connection to the remote GPU is lost" in error
    assert "Its tensors are gone" in error
    until(lambda: not remote.grants())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_takes_its_slices_along(remote: Remote, number: int) -> None:
    program = ready(remote.start("wait.py"))
    remote.server.send_signal(number)
    remote.server.communicate(timeout=LONG)
    until(lambda: not remote.grants())
    _, error = program.communicate("go\n", timeout=LONG)
    assert program.returncode == 1
    assert "The connection to the remote GPU is lost" in error
