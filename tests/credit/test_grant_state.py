"""Compute shares of a grant that is not active: none apply until it is active again."""

from __future__ import annotations

import os
import signal

import pytest

import support
from aliquot.model import GrantState, Policy
from aliquot.slices import control
from credit.card import Card, Tenant

pytestmark = pytest.mark.shares

SPENT = 0.5


def set_state(card: Card, tenant: Tenant, state: GrantState) -> None:
    control.set_state(card.machine.state, tenant.grant.name, state)


def seconds_for(card: Card, tenant: Tenant, gpu_seconds: float) -> float:
    """How long it takes, by the arbiter's clock, to have so much GPU time."""
    begun = card.machine.status()["now_ns"]
    had = card.busy_ns(tenant)
    support.wait_until(lambda: card.busy_ns(tenant) - had >= gpu_seconds * 1e9, seconds=60)
    return float(card.machine.status()["now_ns"] - begun) / 1e9


def stands_still(card: Card, tenant: Tenant) -> bool:
    """Whether the GPU has nothing of it, for some windows in a row."""
    had, begun = card.busy_ns(tenant), card.machine.status()["now_ns"]
    support.wait_until(lambda: card.machine.status()["now_ns"] > begun + 100_000_000)
    return card.busy_ns(tenant) == had


def kill_arbiter(card: Card) -> None:
    serving = card.machine.status()["serving_pid"]

    def is_back() -> bool:
        try:
            return bool(card.machine.status()["serving_pid"] != serving)
        except control.NoArbiterError:
            return False

    os.kill(serving, signal.SIGKILL)
    support.wait_until(is_back)


@pytest.mark.parametrize("how", [GrantState.SWITCHING, GrantState.PARKED])
def test_a_hard_slice_finishes_at_once_and_then_waits_until_it_is_active(
    card: Card, how: GrantState
) -> None:
    """At its share, a hundredth, that takes seconds."""
    grant = card.grant("one", 1, Policy.HARD)
    tenant = card.tenant(grant).go()
    seconds_for(card, tenant, 0.02)  # what it may begin with
    assert seconds_for(card, tenant, 0.02) > 1  # of a hundredth
    set_state(card, tenant, how)
    support.wait_until(lambda: stands_still(card, tenant), 2)
    kill_arbiter(card)
    card.resize(tenant, compute=2)
    assert stands_still(card, tenant)
    set_state(card, tenant, GrantState.ACTIVE)
    seconds_for(card, tenant, 0.01)  # what it had in hand
    assert seconds_for(card, tenant, 0.04) > 1


def test_others_share_its_time_until_it_is_active_again(card: Card) -> None:
    away, one, other = card.share("away", 50), card.share("one", 30), card.share("other", 20)
    card.shares(away, one, other, gpu_seconds=0.5)
    set_state(card, away, GrantState.SWITCHING)
    away.tell("pause")  # as the driver stops it
    set_state(card, away, GrantState.PARKED)
    shares = card.shares(one, other, gpu_seconds=1)
    assert shares.arbiter == pytest.approx([60, 40], abs=1.5), shares
    set_state(card, away, GrantState.SWITCHING)
    away.go()
    set_state(card, away, GrantState.ACTIVE)
    shares = card.shares(away, one, other, gpu_seconds=1.5)
    assert shares.arbiter == pytest.approx([50, 30, 20], abs=1.5), shares
