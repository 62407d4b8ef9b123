"""Shares while grants become idle, wake up or are resized."""

from __future__ import annotations

import pytest

import support
from credit.gpu import LoadedGpu

pytestmark = pytest.mark.shares


def test_the_share_of_an_idle_grant_is_divided_in_proportion(gpu: LoadedGpu) -> None:
    away, one, other = gpu.share("away", 50), gpu.share("one", 30), gpu.share("other", 20)
    gpu.spend(away, one, other, gpu_seconds=0.8)
    away.tell("pause")
    gpu.assert_shares([60, 40], one, other, within=1.5, gpu_seconds=3)
    away.go()
    gpu.assert_shares([50, 30, 20], away, one, other, within=1.5, gpu_seconds=1.5)


def test_a_resize_takes_effect_while_the_program_runs(gpu: LoadedGpu) -> None:
    one, other = gpu.share("one", 50), gpu.share("other", 50)
    gpu.spend(one, other, gpu_seconds=0.8)
    gpu.resize(one, compute=20)
    gpu.resize(other, compute=80)
    gpu.assert_shares([20, 80], one, other, within=1.5, gpu_seconds=1.5)
    gpu.resize(one, policy="hard")
    other.tell("pause")
    gpu.spend(one, gpu_seconds=0.4)
    limited = {"holds", "drains", "out"}  # though it is alone
    support.wait_until(lambda: gpu.compute(one)["state"] in limited)


def test_the_arbiter_does_not_poll_a_grant_that_is_alone(gpu: LoadedGpu) -> None:
    only = gpu.share("only", 30)
    gpu.spend(only, gpu_seconds=0.5)
    before = gpu.machine.status()["credit_cpu_ns"]
    gpu.spend(only, gpu_seconds=1)
    assert gpu.compute(only)["state"] == "alone"
    assert gpu.machine.status()["credit_cpu_ns"] - before < 20_000_000


def test_an_idle_grant_that_wakes_up_gets_its_share(gpu: LoadedGpu) -> None:
    asleep, busy = gpu.share("asleep", 50), gpu.share("busy", 50)
    asleep.tell("pause")
    support.wait_until(lambda: gpu.compute(asleep)["state"] == "idle")
    support.wait_until(lambda: gpu.compute(busy)["state"] == "alone")
    asleep.go()
    gpu.assert_shares([50, 50], asleep, busy, within=1.5, gpu_seconds=3)
