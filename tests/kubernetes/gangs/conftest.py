"""What is told of gangs is told sooner than to people."""

from __future__ import annotations

import pytest

from aliquot.kubernetes.cluster import cluster
from aliquot.kubernetes.gangs import store
from kubernetes.gangs.thinking import thinking

__all__ = ["thinking"]


@pytest.fixture(autouse=True)
def words_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WORDS", 0.05)


@pytest.fixture(autouse=True)
def without_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent names pods here, so nobody waits for one to let go of what has ended."""
    monkeypatch.setattr(cluster, "UNREPORTED_SECONDS", 0.0)
