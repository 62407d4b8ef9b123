"""Gangs report sooner here than to people."""

from __future__ import annotations

import pytest

from aliquot.kubernetes.cluster import cluster
from aliquot.kubernetes.gangs import store
from kubernetes.gangs.held_decisions import held

__all__ = ["held"]


@pytest.fixture(autouse=True)
def reasons_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "REASON_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def without_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent names pods here, so nobody waits for one to let go of what has ended."""
    monkeypatch.setattr(cluster, "UNREPORTED_SECONDS", 0.0)
