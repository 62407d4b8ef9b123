"""A fault in one tenant stays there; the others continue within the documented bound."""

from __future__ import annotations

import os
import signal
import time

import pytest

import support
from aliquot.slices import control
from credit.gpu import LoadedGpu, Tenant

pytestmark = pytest.mark.shares

BOUND = 1.0  # docs/compute.md: nobody blocks the others for longer
SLACK = 1.0  # of a busy machine


def seconds_for_bursts(tenant: Tenant, bursts: int = 5) -> float:
    """How long the tenant takes for that many bursts."""
    start, done = time.monotonic(), tenant.count()
    support.wait_until(lambda: tenant.count() >= done + bursts)
    return time.monotonic() - start


def memory_limits(gpu: LoadedGpu) -> dict[str, int]:
    grants = gpu.machine.status()["grants"]
    return {one["name"]: one["slices"][0]["memory_bytes"] for one in grants}


@pytest.fixture
def neighbour(gpu: LoadedGpu) -> Tenant:
    return gpu.share("neighbour", 50, burst=10)


def test_an_illegal_access_breaks_only_its_own_program(gpu: LoadedGpu, neighbour: Tenant) -> None:
    broken = gpu.share("broken", 50, "fault")
    assert broken.listen().split()[-1] == "700"
    assert seconds_for_bursts(neighbour) < BOUND + SLACK
    support.wait_until(lambda: gpu.compute(neighbour)["state"] == "alone")


def test_a_stopped_process_does_not_block_others(gpu: LoadedGpu, neighbour: Tenant) -> None:
    stopped = gpu.share("stopped", 50)
    gpu.spend(stopped, neighbour, gpu_seconds=0.6)
    stopped.process.send_signal(signal.SIGSTOP)
    assert seconds_for_bursts(neighbour) < BOUND + SLACK
    stopped.process.send_signal(signal.SIGCONT)
    gpu.assert_shares([50, 50], stopped, neighbour, within=2, gpu_seconds=3)


def test_a_stopped_process_is_shown_to_use_nothing(gpu: LoadedGpu, neighbour: Tenant) -> None:
    stopped = gpu.share("stopped", 50)
    gpu.spend(stopped, neighbour, gpu_seconds=0.6)
    stopped.process.send_signal(signal.SIGSTOP)

    def got(tenant: Tenant) -> float:
        compute = gpu.compute(tenant)
        return float(compute["recent_used_ns"] / max(1, compute["recent_ns"]))

    support.wait_until(lambda: got(stopped) == 0 and got(neighbour) > 0.9)
    process = gpu.machine.grant_status(stopped.grant)["processes"][0]
    assert (process["state"], process["stopped"]) == ("live", True)
    stopped.process.send_signal(signal.SIGCONT)
    support.wait_until(lambda: got(stopped) > 0.4)
    assert not gpu.machine.grant_status(stopped.grant)["processes"][0]["stopped"]


def test_an_endless_kernel_is_reported_and_does_not_block_others(
    gpu: LoadedGpu, neighbour: Tenant
) -> None:
    stuck = gpu.share("stuck", 50, "never", after=3)
    support.wait_until(lambda: gpu.compute(stuck)["state"] == "overdue")
    assert seconds_for_bursts(neighbour, 20) < 10
    assert gpu.compute(stuck)["fallbacks"] == 1
    stuck.kill()
    support.wait_until(lambda: gpu.compute(neighbour)["state"] == "alone")
    assert gpu.compute(neighbour)["fallbacks"] == 0


def test_a_process_killed_in_its_window_frees_it(gpu: LoadedGpu, neighbour: Tenant) -> None:
    killed = gpu.share("killed", 50)
    gpu.spend(killed, neighbour, gpu_seconds=0.6)
    killed.kill()
    assert seconds_for_bursts(neighbour) < BOUND + SLACK
    support.wait_until(lambda: gpu.compute(neighbour)["state"] == "alone")


def test_the_arbiters_death_opens_all_gates_and_a_restart_resumes_turns(
    gpu: LoadedGpu, neighbour: Tenant
) -> None:
    other = gpu.share("other", 20)
    gpu.spend(neighbour, other, gpu_seconds=0.6)
    for _ in range(3):
        os.kill(gpu.machine.status()["serving_pid"], signal.SIGKILL)
        assert seconds_for_bursts(neighbour) < BOUND + SLACK
        support.wait_until(lambda: control.answers(gpu.machine.state))
    gpu.assert_shares([500 / 7, 200 / 7], neighbour, other, within=2, gpu_seconds=3)


@pytest.mark.parametrize("dead", [("pid", "serving_pid"), ("guard_pid", "pid", "serving_pid")])
def test_a_new_arbiter_restores_shares_after_several_deaths_at_once(
    gpu: LoadedGpu, neighbour: Tenant, dead: tuple[str, ...]
) -> None:
    other = gpu.share("other", 20)
    gpu.spend(neighbour, other, gpu_seconds=0.6)
    before = memory_limits(gpu)
    for _ in range(2):
        gpu.machine.kill_arbiter(*dead)
        if "guard_pid" not in dead:
            assert seconds_for_bursts(neighbour) < BOUND + SLACK
        gpu.machine.start_arbiter()
        assert seconds_for_bursts(neighbour) < BOUND + SLACK
    gpu.assert_shares([500 / 7, 200 / 7], neighbour, other, within=2, gpu_seconds=3)
    assert memory_limits(gpu) == before


def test_kernels_that_wait_for_each_other_on_two_gpus_finish(two_gpus: LoadedGpu) -> None:
    grant = two_gpus.grant("both", 50, gpus=2)
    pair = two_gpus.tenant(grant, "pair").go()
    single = two_gpus.share("single", 50)
    assert seconds_for_bursts(pair, 10) < 20
    two_gpus.assert_shares([50, 50], pair, single, within=4)
    assert two_gpus.compute(pair)["state"] != "exempt"


def test_without_working_gates_only_memory_is_limited(gpu: LoadedGpu) -> None:
    grant = gpu.grant("elastic", 50)
    environment = {"ALIQUOT_SIMULATE_WITHOUT": "stream-memory-operations"}
    tenant = Tenant(grant, gpu.machine.inside(grant, **environment), "spin")
    gpu.tenants.append(tenant)
    assert seconds_for_bursts(tenant.go()) < 10
    assert gpu.compute(tenant)["gates"] == "fail"
