"""Grants whose kernels wait for each other, with and without a group, beside a busy neighbour."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import support
from credit import measuring
from credit.gpu import LoadedGpu, Tenant
from credit.measuring import Shares

pytestmark = pytest.mark.shares

ROUNDS = 40
CHANCES = 3


def fallbacks(gpu: LoadedGpu, *tenants: Tenant) -> int:
    return sum(int(gpu.compute(one)["fallbacks"]) for one in tenants)


def meet_often(pair: tuple[Tenant, Tenant]) -> float:
    """The longest pause in which this machine did not run the test, in seconds."""
    before = [one.count() for one in pair]
    return measuring.wait(
        lambda: all(one.count() >= n + ROUNDS for one, n in zip(pair, before, strict=True))
    )


def meet_without_fallbacks(gpu: LoadedGpu, pair: tuple[Tenant, Tenant]) -> None:
    """One of three rounds has no fallback; one in which this machine stood still is not counted."""
    deadline, chances = time.monotonic() + measuring.PATIENCE_SECONDS, CHANCES
    meet_often(pair)
    while True:
        before = fallbacks(gpu, *pair)
        pause = meet_often(pair)
        late = fallbacks(gpu, *pair) - before
        if not late:
            return
        chances -= pause <= measuring.STALL_SECONDS
        assert chances, late
        assert time.monotonic() < deadline, late


def test_grants_that_run_together_meet_without_fallbacks(gpu: LoadedGpu, tmp_path: Path) -> None:
    neighbour = gpu.share("neighbour", 50)
    pair = gpu.pair_that_meets(tmp_path, "ranks")
    meet_without_fallbacks(gpu, pair)

    def is_right(shares: Shares) -> bool:
        return abs(shares.arbiter[2] - 50) <= 3

    shares = gpu.measured(is_right, *pair, neighbour, gpu_seconds=6)
    assert is_right(shares), shares
    assert {gpu.machine.grant_status(one.grant)["together"] for one in pair} == {"ranks"}


def test_grants_that_do_not_run_together_meet_only_by_fallbacks(
    gpu: LoadedGpu, tmp_path: Path
) -> None:
    gpu.share("neighbour", 50)
    pair = gpu.pair_that_meets(tmp_path, None)
    support.wait_until(lambda: fallbacks(gpu, *pair) >= 3)


def test_grants_on_two_gpus_that_run_together_meet_without_fallbacks(
    two_gpus: LoadedGpu, tmp_path: Path
) -> None:
    for index in (0, 1):
        two_gpus.tenant(two_gpus.grant(f"neighbour{index}", 50, first=index)).go()
    pair = two_gpus.pair_that_meets(tmp_path, "ranks")
    meet_without_fallbacks(two_gpus, pair)
