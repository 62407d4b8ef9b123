"""Grants whose kernels wait for each other, with and without a group, beside a busy neighbour."""

from __future__ import annotations

from pathlib import Path

import pytest

import support
from credit.gpu import LoadedGpu, Tenant

pytestmark = pytest.mark.shares

ROUNDS = 40


def fallbacks(gpu: LoadedGpu, *tenants: Tenant) -> int:
    return sum(int(gpu.compute(one)["fallbacks"]) for one in tenants)


def meet_often(pair: tuple[Tenant, Tenant]) -> None:
    before = [one.count() for one in pair]
    support.wait_until(
        lambda: all(one.count() >= n + ROUNDS for one, n in zip(pair, before, strict=True))
    )


def test_grants_that_run_together_meet_without_fallbacks(gpu: LoadedGpu, tmp_path: Path) -> None:
    neighbour = gpu.share("neighbour", 50)
    pair = gpu.pair_that_meets(tmp_path, "ranks")
    meet_often(pair)
    before = fallbacks(gpu, *pair)
    meet_often(pair)
    assert fallbacks(gpu, *pair) == before
    shares = gpu.shares(*pair, neighbour, gpu_seconds=6)
    assert shares.arbiter[2] == pytest.approx(50, abs=3), shares
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
    meet_often(pair)
    before = fallbacks(two_gpus, *pair)
    meet_often(pair)
    assert fallbacks(two_gpus, *pair) == before
