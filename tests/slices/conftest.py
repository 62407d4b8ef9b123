"""Fixtures: a simulated machine with a GPU in MIG mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.devices import parse_shape
from aliquot.slices.state_directory import StateDirectory
from sim.program import Program
from slices.mig_machine import SHAPE


@pytest.fixture
def mig(cli_env: dict[str, str], aliquot_state: Path) -> Iterator[Program]:
    """NVML of a machine of two GPUs, the first in MIG mode."""
    shape = parse_shape(SHAPE)
    state = StateDirectory(aliquot_state / "simulated" / "h100-2", shape)
    state.meeting_place.mkdir(parents=True)
    driver = state.driver()
    environment = {
        **cli_env,
        **driver.variables,
        "ALIQUOT_SIMULATE_MIG": "0",
        "LD_LIBRARY_PATH": str(driver.nvml.parent),
    }
    program = Program("nvml", environment)
    assert program("call", "nvmlInit") is None
    yield program
    program.end()
