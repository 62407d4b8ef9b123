"""Shares while things change: one goes and comes back, one is resized, nobody is there."""

from __future__ import annotations

import pytest

import support
from credit.card import Card

pytestmark = pytest.mark.shares


def test_the_share_of_an_idle_grant_is_divided_in_proportion(card: Card) -> None:
    away, one, other = card.share("away", 50), card.share("one", 30), card.share("other", 20)
    card.shares(away, one, other, gpu_seconds=0.5)
    away.tell("pause")
    shares = card.shares(one, other, gpu_seconds=1)
    assert shares.arbiter == pytest.approx([60, 40], abs=1.5), shares
    away.go()
    shares = card.shares(away, one, other, gpu_seconds=1.5)
    assert shares.arbiter == pytest.approx([50, 30, 20], abs=1.5), shares


def test_a_resize_takes_effect_while_the_program_runs(card: Card) -> None:
    one, other = card.share("one", 50), card.share("other", 50)
    card.shares(one, other, gpu_seconds=0.5)
    card.resize(one, compute=20)
    card.resize(other, compute=80)
    shares = card.shares(one, other, gpu_seconds=1.5)
    assert shares.arbiter == pytest.approx([20, 80], abs=1.5), shares
    card.resize(one, policy="hard")
    other.tell("pause")
    card.shares(one, gpu_seconds=0.1)
    assert card.compute(one)["state"] in {"holds", "drains", "out"}  # alone, and yet not free


def test_the_arbiter_does_not_poll_a_grant_that_is_alone(card: Card) -> None:
    only = card.share("only", 30)
    card.shares(only, gpu_seconds=0.3, settled=0.2)
    before = card.machine.status()["credit_cpu_ns"]
    card.shares(only, gpu_seconds=1, settled=0)
    assert card.compute(only)["state"] == "alone"
    assert card.machine.status()["credit_cpu_ns"] - before < 20_000_000


def test_an_idle_grant_that_wakes_up_gets_its_share(card: Card) -> None:
    asleep, busy = card.share("asleep", 50), card.share("busy", 50)
    asleep.tell("pause")
    support.wait_until(lambda: card.compute(asleep)["state"] == "idle")
    support.wait_until(lambda: card.compute(busy)["state"] == "alone")
    asleep.go()
    shares = card.shares(asleep, busy, gpu_seconds=1)
    assert shares.arbiter == pytest.approx([50, 50], abs=1.5), shares
