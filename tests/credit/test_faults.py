"""What goes wrong in one tenant stays there; the others go on within the documented bound."""

from __future__ import annotations

import os
import signal
import time

import pytest

import support
from credit.card import Card, Tenant

pytestmark = pytest.mark.shares

BOUND = 1.0  # docs/compute.md: nobody keeps the others out for longer
SLACK = 1.0  # of a busy machine


def goes_on(tenant: Tenant, bursts: int = 5) -> float:
    """How long it took it to do some bursts more."""
    start, done = time.monotonic(), tenant.count()
    support.wait_until(lambda: tenant.count() >= done + bursts)
    return time.monotonic() - start


@pytest.fixture
def neighbour(card: Card) -> Tenant:
    return card.share("neighbour", 50, burst=10)


def test_an_illegal_access_breaks_only_its_own_program(card: Card, neighbour: Tenant) -> None:
    broken = card.share("broken", 50, "fault")
    assert broken.listen().split()[-1] == "700"
    assert goes_on(neighbour) < BOUND + SLACK
    support.wait_until(lambda: card.compute(neighbour)["state"] == "alone")


def test_a_stopped_process_does_not_block_others(card: Card, neighbour: Tenant) -> None:
    stopped = card.share("stopped", 50)
    card.shares(stopped, neighbour, gpu_seconds=0.3)
    stopped.process.send_signal(signal.SIGSTOP)
    assert goes_on(neighbour) < BOUND + SLACK
    stopped.process.send_signal(signal.SIGCONT)
    shares = card.shares(stopped, neighbour, gpu_seconds=1)
    assert shares.arbiter == pytest.approx([50, 50], abs=2), shares


def test_an_endless_kernel_is_reported_and_does_not_block_others(
    card: Card, neighbour: Tenant
) -> None:
    stuck = card.share("stuck", 50, "never", after=3)
    support.wait_until(lambda: card.compute(stuck)["state"] == "overdue")
    assert goes_on(neighbour, 20) < 10
    assert card.compute(stuck)["fallbacks"] == 1
    stuck.kill()
    support.wait_until(lambda: card.compute(neighbour)["state"] == "alone")
    assert card.compute(neighbour)["fallbacks"] == 0


def test_a_process_killed_in_its_window_frees_it(card: Card, neighbour: Tenant) -> None:
    killed = card.share("killed", 50)
    card.shares(killed, neighbour, gpu_seconds=0.3)
    killed.kill()
    assert goes_on(neighbour) < BOUND + SLACK
    support.wait_until(lambda: card.compute(neighbour)["state"] == "alone")


def test_the_arbiters_death_opens_all_gates_and_a_restart_resumes_turns(
    card: Card, neighbour: Tenant
) -> None:
    other = card.share("other", 20)
    card.shares(neighbour, other, gpu_seconds=0.3)
    for _ in range(3):
        os.kill(card.machine.status()["serving_pid"], signal.SIGKILL)
        assert goes_on(neighbour) < BOUND + SLACK
    shares = card.shares(neighbour, other, gpu_seconds=1)
    assert shares.arbiter == pytest.approx([100 * 50 / 70, 100 * 20 / 70], abs=2), shares


def test_kernels_that_wait_for_each_other_on_two_gpus_finish(two_cards: Card) -> None:
    grant = two_cards.grant("both", 50, gpus=2)
    pair = two_cards.tenant(grant, "pair").go()
    single = two_cards.share("single", 50)
    assert goes_on(pair, 10) < 20
    shares = two_cards.shares(pair, single)
    assert shares.arbiter == pytest.approx([50, 50], abs=4), shares
    assert two_cards.compute(pair)["state"] != "exempt"


def test_without_working_gates_only_memory_is_limited(card: Card) -> None:
    grant = card.grant("elastic", 50)
    environment = {"ALIQUOT_SIMULATE_WITHOUT": "stream-memory-operations"}
    tenant = Tenant(grant, card.machine.inside(grant, **environment), "spin")
    card.tenants.append(tenant)
    assert goes_on(tenant.go()) < 10
    assert card.compute(tenant)["gates"] == "fail"
