"""The machines of the stand-in's tests, with tenants that load them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from credit.gpu import LoadedGpu
from standin.conftest import MakeMachine, library, make_machine, native_dir

__all__ = ["library", "make_machine", "native_dir"]


@pytest.fixture
def gpu(make_machine: MakeMachine) -> Iterator[LoadedGpu]:
    """One simulated H100."""
    loaded = LoadedGpu(make_machine("h100:1"))
    yield loaded
    loaded.close()


@pytest.fixture
def two_gpus(make_machine: MakeMachine) -> Iterator[LoadedGpu]:
    """Two simulated H100s."""
    loaded = LoadedGpu(make_machine("h100:2"))
    yield loaded
    loaded.close()
