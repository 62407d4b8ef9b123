"""Shares of compute time hold, whatever the programs do: counted in simulated GPU time."""

from __future__ import annotations

import contextlib

import pytest

from aliquot.model import Policy, Priority
from credit.card import Card, Shares, Tenant

pytestmark = pytest.mark.shares

BY_ARBITER = 1.5
# The simulated engine stands still while this machine has no time for it, and the arbiter's clock
# does not: then a program uses less than it holds. More it must never have.
BY_GPU = 4.0
MORE = 1.05


CHANCES = 3  # a machine that is busy with something else is measured again


def assert_near(shares: Shares, asked: list[float]) -> None:
    assert shares.arbiter == pytest.approx(asked, abs=BY_ARBITER), shares
    for busy, used in zip(shares.busy_ns, shares.used_ns, strict=True):
        assert busy <= MORE * used, shares
    if shares.kept_busy:
        assert shares.gpu == pytest.approx(asked, abs=BY_GPU), shares


def fallbacks(card: Card, *tenants: Tenant) -> int:
    return sum(card.compute(one)["fallbacks"] for one in tenants)


def measure(card: Card, asked: list[float], *tenants: Tenant, gpu_seconds: float) -> None:
    before = fallbacks(card, *tenants)
    assert_near(card.shares(*tenants, gpu_seconds=gpu_seconds), asked)
    assert fallbacks(card, *tenants) == before


def assert_held(card: Card, asked: list[float], *tenants: Tenant, gpu_seconds: float = 2.0) -> None:
    """What was asked for holds, and nobody fell back, once it is learned what their work takes."""
    card.shares(*tenants, gpu_seconds=0.3)
    for _ in range(CHANCES - 1):
        with contextlib.suppress(AssertionError):
            measure(card, asked, *tenants, gpu_seconds=gpu_seconds)
            return
    measure(card, asked, *tenants, gpu_seconds=gpu_seconds)


@pytest.mark.parametrize("asked", [[50, 50], [30, 70], [10, 90], [50, 30, 20]])
def test_each_grant_gets_the_share_it_asked_for(card: Card, asked: list[float]) -> None:
    tenants = [card.share(f"t{number}", int(part)) for number, part in enumerate(asked)]
    assert_held(card, asked, *tenants)


def test_eight_grants_without_a_share_get_equal_parts(card: Card) -> None:
    tenants = [card.share(f"t{number}") for number in range(8)]
    assert_held(card, [12.5] * 8, *tenants, gpu_seconds=4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("spin", {"streams": 4}),
        ("spin", {"streams": 40, "burst": 400, "ns": 50_000}),
        ("spin", {"streams": 40, "burst": 400, "ns": 50_000, "connections": 1}),
        ("spin", {"ns": 20_000, "burst": 1000}),
        ("spin", {"ns": 3_000_000, "burst": 8}),
        ("graph", {"burst": 20}),
        ("graph", {"nodes": 40, "burst": 4}),
        ("memset", {}),
    ],
    ids=str,
)
def test_every_kind_of_load_is_held_to_its_share(
    card: Card, kind: str, options: dict[str, int]
) -> None:
    one = card.share("one", 30, kind, **options)
    other = card.share("other", 70)
    assert_held(card, [30, 70], one, other)


def test_processes_of_a_grant_divide_its_share(card: Card) -> None:
    both = card.grant("both", 40)
    first, second = card.tenant(both).go(), card.tenant(both).go()
    other = card.share("other", 60)
    shares = card.shares(first, second, other)
    held, _, rest = shares.used_ns
    assert 100 * held / (held + rest) == pytest.approx(40, abs=BY_ARBITER), shares
    assert sum(shares.busy_ns[:2]) <= MORE * held, shares
    assert min(shares.busy_ns) > 0.1 * max(shares.busy_ns), shares


def test_a_hard_slice_is_held_to_its_share_alone_and_with_others(card: Card) -> None:
    capped = card.tenant(card.grant("capped", 30, Policy.HARD)).go()
    card.shares(capped, gpu_seconds=0.2, settled=0.1)
    before = card.compute(capped)["used_ns"], card.machine.status()["now_ns"]
    card.shares(capped, gpu_seconds=1, settled=0)
    after = card.compute(capped)["used_ns"], card.machine.status()["now_ns"]
    ratio = 100 * (after[0] - before[0]) / (after[1] - before[1])
    assert ratio == pytest.approx(30, abs=BY_ARBITER)
    beside = card.share("beside", 10)
    assert_held(card, [30, 70], capped, beside)


def test_background_gets_only_what_others_leave(card: Card) -> None:
    behind = card.tenant(card.grant("behind", priority=Priority.BACKGROUND)).go()
    ahead = card.share("ahead", 10)
    shares = card.shares(behind, ahead)
    assert shares.gpu[0] < 3, shares
    ahead.tell("pause")
    assert card.shares(behind, ahead, gpu_seconds=0.5).gpu[0] > 97


def test_latency_priority_is_served_at_once_before_background(card: Card) -> None:
    card.tenant(card.grant("behind", priority=Priority.BACKGROUND)).go()
    served = card.tenant(card.grant("served", priority=Priority.LATENCY), "request").go()
    card.shares(served, gpu_seconds=0.2, settled=0.05)
    figures = card.compute(served)
    # Behind the other's 20 ms window it would wait ten times as long.
    assert figures["wait_p50_ns"] <= 2_000_000, figures
