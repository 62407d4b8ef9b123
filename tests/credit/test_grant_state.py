"""Shares of a grant that is not active: its program is stopped, and resumes with its share."""

from __future__ import annotations

import os
import signal

import pytest

import support
from aliquot.model import GrantState, Policy
from aliquot.slices import control
from credit.gpu import LoadedGpu, Tenant

pytestmark = pytest.mark.shares


def set_state(gpu: LoadedGpu, tenant: Tenant, state: GrantState) -> None:
    control.set_state(gpu.machine.state, tenant.grant.name, state)


def seconds_for(gpu: LoadedGpu, tenant: Tenant, gpu_seconds: float) -> float:
    """How long the tenant takes, by the arbiter's clock, to get that much GPU time."""
    begun = gpu.machine.status()["now_ns"]
    had = gpu.busy_ns(tenant)
    support.wait_until(lambda: gpu.busy_ns(tenant) - had >= gpu_seconds * 1e9, seconds=60)
    return float(gpu.machine.status()["now_ns"] - begun) / 1e9


def is_stopped(gpu: LoadedGpu, tenant: Tenant) -> bool:
    """Whether the GPU does no work for the tenant, for several windows in a row."""
    had, begun = gpu.busy_ns(tenant), gpu.machine.status()["now_ns"]
    support.wait_until(lambda: gpu.machine.status()["now_ns"] > begun + 100_000_000)
    return gpu.busy_ns(tenant) == had


def kill_arbiter(gpu: LoadedGpu) -> None:
    serving = gpu.machine.status()["serving_pid"]

    def is_back() -> bool:
        try:
            return bool(gpu.machine.status()["serving_pid"] != serving)
        except control.NoArbiterError:
            return False

    os.kill(serving, signal.SIGKILL)
    support.wait_until(is_back)


@pytest.mark.parametrize("how", [GrantState.SWITCHING, GrantState.PARKED])
def test_a_hard_slice_finishes_at_once_and_waits_until_its_grant_is_active(
    gpu: LoadedGpu, how: GrantState
) -> None:
    """With its share of a hundredth, the work in flight would take seconds."""
    grant = gpu.grant("one", 1, Policy.HARD)
    tenant = gpu.tenant(grant).go()
    seconds_for(gpu, tenant, 0.02)  # its initial credit
    assert seconds_for(gpu, tenant, 0.02) > 1  # at a share of a hundredth
    set_state(gpu, tenant, how)
    support.wait_until(lambda: is_stopped(gpu, tenant), 2)
    kill_arbiter(gpu)
    gpu.resize(tenant, compute=2)
    assert is_stopped(gpu, tenant)
    set_state(gpu, tenant, GrantState.ACTIVE)
    seconds_for(gpu, tenant, 0.01)  # its work in flight
    assert seconds_for(gpu, tenant, 0.04) > 1


def test_the_share_of_a_parked_grant_is_divided_until_it_is_active(gpu: LoadedGpu) -> None:
    away, one, other = gpu.share("away", 50), gpu.share("one", 30), gpu.share("other", 20)
    gpu.spend(away, one, other, gpu_seconds=0.8)
    set_state(gpu, away, GrantState.SWITCHING)
    away.tell("pause")  # as the driver stops it
    set_state(gpu, away, GrantState.PARKED)
    gpu.assert_shares([60, 40], one, other, within=1.5, gpu_seconds=3)
    set_state(gpu, away, GrantState.SWITCHING)
    away.go()
    set_state(gpu, away, GrantState.ACTIVE)
    gpu.assert_shares([50, 30, 20], away, one, other, within=1.5, gpu_seconds=1.5)
