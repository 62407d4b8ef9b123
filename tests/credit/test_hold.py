"""Shares of a grant that is not taken: a program is held to nothing, and again when it is taken."""

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


def hold(card: Card, tenant: Tenant, how: GrantState) -> None:
    control.set_state(card.machine.state, tenant.grant.name, how)


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
def test_what_a_hard_slice_has_begun_ends_at_once_and_it_waits_until_it_is_taken_again(
    card: Card, how: GrantState
) -> None:
    """At its share, a hundredth, that takes seconds."""
    grant = card.grant("one", 1, Policy.HARD)
    tenant = card.tenant(grant).go()
    seconds_for(card, tenant, 0.02)  # what it may begin with
    assert seconds_for(card, tenant, 0.02) > 1  # of a hundredth
    hold(card, tenant, how)
    support.wait_until(lambda: stands_still(card, tenant), 2)
    kill_arbiter(card)
    card.resize(tenant, compute=2)
    assert stands_still(card, tenant)
    hold(card, tenant, GrantState.ACTIVE)
    seconds_for(card, tenant, 0.01)  # what it had in hand
    assert seconds_for(card, tenant, 0.04) > 1


def test_the_others_share_what_it_leaves_and_turns_go_on_when_it_is_back(card: Card) -> None:
    away, one, other = card.share("away", 50), card.share("one", 30), card.share("other", 20)
    card.shares(away, one, other, gpu_seconds=0.5)
    hold(card, away, GrantState.SWITCHING)
    away.tell("pause")  # as the driver stops it
    hold(card, away, GrantState.PARKED)
    shares = card.shares(one, other, gpu_seconds=1)
    assert shares.arbiter == pytest.approx([60, 40], abs=1.5), shares
    hold(card, away, GrantState.SWITCHING)
    away.go()
    hold(card, away, GrantState.ACTIVE)
    shares = card.shares(away, one, other, gpu_seconds=1.5)
    assert shares.arbiter == pytest.approx([50, 30, 20], abs=1.5), shares
