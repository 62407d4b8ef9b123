"""What is told of gangs is told sooner than to people."""

from __future__ import annotations

import pytest

from aliquot.kubernetes.gangs import store


@pytest.fixture(autouse=True)
def words_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WORDS", 0.05)
