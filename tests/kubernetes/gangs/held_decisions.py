"""Decisions that tests hold back, for what happens before they are applied."""

from __future__ import annotations

import threading

import pytest

from aliquot.kubernetes.gangs import planning
from aliquot.placement.decide import Decision, DecisionInput, decide
from kubernetes.fake_api import until


class HeldDecision:
    """Holds the next decision back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._hold = False
        self._decided = threading.Event()
        self._go_on = threading.Event()
        patch.setattr(planning, "decide", self._decide)

    def hold(self) -> None:
        """Hold the next decision back that would change something."""
        self._decided.clear()
        self._go_on.clear()
        self._hold = True

    async def decided(self) -> None:
        """Until there is one."""
        await until(self._decided.is_set)

    def go_on(self) -> None:
        self._go_on.set()

    def _decide(self, question: DecisionInput) -> Decision:
        decision = decide(question)
        if self._hold and (decision.starts or decision.preemptions):
            self._hold = False
            self._decided.set()
            assert self._go_on.wait(60)
        return decision


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldDecision:
    return HeldDecision(monkeypatch)
