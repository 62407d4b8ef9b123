"""Fixtures: programs directly on the simulated driver and NVML."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from aliquot import devices
from sim.program import Program

Start = Callable[..., Program]


@pytest.fixture(scope="session")
def native_dir() -> Path:
    """The folder of the compiled libraries: ALIQUOT_TEST_NATIVE, or the installed ones."""
    named = os.environ.get("ALIQUOT_TEST_NATIVE")
    return Path(named) if named else devices.native_dir()


@pytest.fixture
def start(sim_env: dict[str, str]) -> Iterator[Start]:
    """Starts a program on the test's own simulated machine: start("driver", shape="h200:1")."""
    started: list[Program] = []

    def start_program(
        kind: str, shape: str | None = None, inside: Sequence[str] = (), **variables: str
    ) -> Program:
        env = {**sim_env, **variables}
        if shape:
            env["ALIQUOT_SIMULATE"] = shape
        program = Program(kind, env, inside)
        started.append(program)
        return program

    yield start_program
    for program in started:
        program.end()


@pytest.fixture
def nvml(start: Start) -> Program:
    """A program that uses NVML on the test's machine."""
    program = start("nvml")
    assert program("call", "nvmlInit") is None
    return program
