"""Shares while grants become idle, wake up or are resized."""

from __future__ import annotations

import pytest

import support
from credit.gpu import LoadedGpu

pytestmark = pytest.mark.shares


def test_the_share_of_an_idle_grant_is_divided_in_proportion(gpu: LoadedGpu) -> None:
    away, one, other = gpu.share("away", 50), gpu.share("one", 30), gpu.share("other", 20)
    gpu.shares(away, one, other, gpu_seconds=0.5)
    away.tell("pause")
    shares = gpu.shares(one, other, gpu_seconds=3)
    assert shares.arbiter == pytest.approx([60, 40], abs=1.5), shares
    away.go()
    shares = gpu.shares(away, one, other, gpu_seconds=1.5)
    assert shares.arbiter == pytest.approx([50, 30, 20], abs=1.5), shares


def test_a_resize_takes_effect_while_the_program_runs(gpu: LoadedGpu) -> None:
    one, other = gpu.share("one", 50), gpu.share("other", 50)
    gpu.shares(one, other, gpu_seconds=0.5)
    gpu.resize(one, compute=20)
    gpu.resize(other, compute=80)
    shares = gpu.shares(one, other, gpu_seconds=1.5)
    assert shares.arbiter == pytest.approx([20, 80], abs=1.5), shares
    gpu.resize(one, policy="hard")
    other.tell("pause")
    gpu.shares(one, gpu_seconds=0.1)
    assert gpu.compute(one)["state"] in {"holds", "drains", "out"}  # alone, and still limited


def test_the_arbiter_does_not_poll_a_grant_that_is_alone(gpu: LoadedGpu) -> None:
    only = gpu.share("only", 30)
    gpu.shares(only, gpu_seconds=0.3, settled=0.2)
    before = gpu.machine.status()["credit_cpu_ns"]
    gpu.shares(only, gpu_seconds=1, settled=0)
    assert gpu.compute(only)["state"] == "alone"
    assert gpu.machine.status()["credit_cpu_ns"] - before < 20_000_000


def test_an_idle_grant_that_wakes_up_gets_its_share(gpu: LoadedGpu) -> None:
    asleep, busy = gpu.share("asleep", 50), gpu.share("busy", 50)
    asleep.tell("pause")
    support.wait_until(lambda: gpu.compute(asleep)["state"] == "idle")
    support.wait_until(lambda: gpu.compute(busy)["state"] == "alone")
    asleep.go()
    shares = gpu.shares(asleep, busy, gpu_seconds=3)
    assert shares.arbiter == pytest.approx([50, 50], abs=1.5), shares
