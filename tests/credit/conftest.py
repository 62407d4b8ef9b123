"""The machines of the stand-in's tests, with tenants that load them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from credit.card import Card
from standin.conftest import MakeMachine, library, make_machine, native_dir

__all__ = ["library", "make_machine", "native_dir"]


@pytest.fixture
def card(make_machine: MakeMachine) -> Iterator[Card]:
    """One simulated H100."""
    made = Card(make_machine("h100:1"))
    yield made
    made.close()


@pytest.fixture
def two_cards(make_machine: MakeMachine) -> Iterator[Card]:
    """Two of them."""
    made = Card(make_machine("h100:2"))
    yield made
    made.close()
