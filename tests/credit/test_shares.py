"""Every grant gets its share of compute time, whatever its programs do, in simulated GPU time."""

from __future__ import annotations

import contextlib

import pytest

from aliquot.model import Policy, Priority
from credit.gpu import LoadedGpu, Tenant
from credit.measuring import Shares

pytestmark = pytest.mark.shares

BY_ARBITER = 1.5
# The simulated engine stops while this machine does not run it, and the arbiter's clock does not:
# then a program uses less than it holds. It must never use more.
BY_GPU = 4.0
MORE = 1.05
CHANCES = 3  # if the machine is busy with something else, measure again


def assert_near(shares: Shares, asked: list[float]) -> None:
    assert shares.stalled or not shares.late, shares
    assert shares.arbiter == pytest.approx(asked, abs=BY_ARBITER), shares
    for busy, used in zip(shares.busy_ns, shares.used_ns, strict=True):
        assert busy <= MORE * used, shares
    if shares.kept_busy:
        assert shares.gpu == pytest.approx(asked, abs=BY_GPU), shares


def is_held(shares: Shares, asked: list[float]) -> bool:
    with contextlib.suppress(AssertionError):
        assert_near(shares, asked)
        return True
    return False


def assert_held(
    gpu: LoadedGpu, asked: list[float], *tenants: Tenant, gpu_seconds: float = 2.0
) -> None:
    """Each tenant gets its share, and none falls back, once the cost of their work is learned."""
    gpu.spend(*tenants, gpu_seconds=0.6)

    def decides(shares: Shares) -> bool:
        return is_held(shares, asked) or (shares.late > 0 and not shares.stalled)

    for chances_left in reversed(range(CHANCES)):
        shares = gpu.measured(decides, *tenants, gpu_seconds=gpu_seconds)
        if is_held(shares, asked) or not chances_left:
            assert_near(shares, asked)
            return


@pytest.mark.parametrize("asked", [[50, 50], [30, 70], [10, 90], [50, 30, 20]])
def test_each_grant_gets_the_share_it_asked_for(gpu: LoadedGpu, asked: list[float]) -> None:
    tenants = [gpu.share(f"t{number}", int(part)) for number, part in enumerate(asked)]
    assert_held(gpu, asked, *tenants)


def test_eight_grants_without_a_share_get_equal_parts(gpu: LoadedGpu) -> None:
    tenants = [gpu.share(f"t{number}") for number in range(8)]
    assert_held(gpu, [12.5] * 8, *tenants, gpu_seconds=4)


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
    gpu: LoadedGpu, kind: str, options: dict[str, int]
) -> None:
    one = gpu.share("one", 30, kind, **options)
    other = gpu.share("other", 70)
    assert_held(gpu, [30, 70], one, other)


def test_processes_of_a_grant_divide_its_share(gpu: LoadedGpu) -> None:
    both = gpu.grant("both", 40)
    first, second = gpu.tenant(both).go(), gpu.tenant(both).go()
    other = gpu.share("other", 60)

    def is_right(shares: Shares) -> bool:
        held, _, rest = shares.used_ns
        return abs(100 * held / (held + rest) - 40) <= BY_ARBITER

    shares = gpu.measured(is_right, first, second, other)
    held = shares.used_ns[0]
    assert is_right(shares), shares
    assert sum(shares.busy_ns[:2]) <= MORE * held, shares
    assert min(shares.busy_ns) > 0.1 * max(shares.busy_ns), shares


def test_a_hard_slice_is_held_to_its_share_alone_and_with_others(gpu: LoadedGpu) -> None:
    capped = gpu.tenant(gpu.grant("capped", 30, Policy.HARD)).go()
    gpu.spend(capped, gpu_seconds=0.3)
    before = gpu.compute(capped)["used_ns"], gpu.machine.status()["now_ns"]
    gpu.spend(capped, gpu_seconds=1)
    after = gpu.compute(capped)["used_ns"], gpu.machine.status()["now_ns"]
    ratio = 100 * (after[0] - before[0]) / (after[1] - before[1])
    assert ratio == pytest.approx(30, abs=BY_ARBITER)
    other = gpu.share("other", 10)
    assert_held(gpu, [30, 70], capped, other)


def test_background_gets_only_what_others_leave(gpu: LoadedGpu) -> None:
    behind = gpu.tenant(gpu.grant("behind", priority=Priority.BACKGROUND)).go()
    ahead = gpu.share("ahead", 10)
    shares = gpu.measured(lambda found: found.gpu[0] < 3, behind, ahead)
    assert shares.gpu[0] < 3, shares
    ahead.tell("pause")
    shares = gpu.measured(lambda found: found.gpu[0] > 97, behind, ahead, gpu_seconds=0.5)
    assert shares.gpu[0] > 97, shares


def test_latency_priority_is_served_at_once_before_background(gpu: LoadedGpu) -> None:
    gpu.tenant(gpu.grant("behind", priority=Priority.BACKGROUND)).go()
    served = gpu.tenant(gpu.grant("served", priority=Priority.LATENCY), "request").go()
    gpu.spend(served, gpu_seconds=0.25)
    figures = gpu.compute(served)
    # If it waited for the other's 20 ms window, this would be ten times as long.
    assert figures["wait_p50_ns"] <= 2_000_000, figures
