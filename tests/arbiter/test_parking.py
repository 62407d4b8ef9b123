"""`make park-after=...`: a grant that is parked when it is idle (tests/standin has programs)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from arbiter.test_move import MAKE, make
from support import GIB, wait_until

if TYPE_CHECKING:
    from arbiter import wire
    from arbiter.rig import Arbiter, Machine

LINE = MAKE.replace("swap=1", "swap=1 park-after=300")


@pytest.mark.parametrize(
    "words",
    [
        "park-after=1000",
        "swap=1 park-after=0",
        "swap=1 park-after=1s",
        "swap=1 park-if=wanted",
        "swap=1 park-after=1000 park-if=asked",
    ],
)
def test_parking_needs_swap_and_a_time(arbiter: Arbiter, words: str) -> None:
    request = MAKE.replace("swap=1", words)
    assert arbiter.ask(request)["code"] == "malformed"


def step(arbiter: Arbiter) -> str:
    grant = arbiter.grant("a")
    assert grant
    return str(grant["parking"])


def park(arbiter: Arbiter, holding: wire.Holding) -> int:
    """Have it parked; the word that says so."""
    wait_until(lambda: step(arbiter) == "leaving")
    word = holding.limits.slice().residence
    holding.works[0].set("residence", word)
    wait_until(lambda: step(arbiter) == "away")
    return word


def test_a_program_that_does_not_count_its_calls_stays(arbiter: Arbiter) -> None:
    holding = make(arbiter, LINE)
    wait_until(lambda: arbiter.compute("a")["idle_ns"] > 1_500_000_000)
    assert step(arbiter) == "none"
    holding.works[0].set("calls", 1)
    park(arbiter, holding)


def test_a_call_that_waited_for_an_earlier_return_brings_nothing_back(arbiter: Arbiter) -> None:
    holding = make(arbiter, LINE)
    work = holding.works[0]
    work.set("calls", 1)
    first = park(arbiter, holding)
    work.set("wanted", first)
    wait_until(lambda: step(arbiter) == "returning")
    work.set("residence", holding.limits.slice().residence)
    second = park(arbiter, holding)
    assert second != first
    begun = arbiter.status()["now_ns"]
    wait_until(lambda: arbiter.status()["now_ns"] > begun + 1_200_000_000)
    assert step(arbiter) == "away"
    work.set("wanted", second)
    wait_until(lambda: step(arbiter) == "returning")


def test_a_program_that_says_it_has_left_and_has_not_counts_for_what_nvml_says(
    arbiter: Arbiter, machine: Machine
) -> None:
    holding = make(arbiter, LINE)
    machine.list_process(os.getpid(), 3 * GIB)
    holding.works[0].set("calls", 1)
    park(arbiter, holding)
    grant = arbiter.grant("a")
    assert grant
    assert grant["staying_bytes"] == 3 * GIB
    assert arbiter.granted()[0] >= 3 * GIB


def test_nothing_is_parked_if_nothing_is_gained(arbiter: Arbiter, machine: Machine) -> None:
    holding = make(arbiter, LINE)
    machine.list_process(os.getpid(), 8 * GIB)
    holding.works[0].set("calls", 1)
    wait_until(lambda: step(arbiter) == "leaving")
    holding.works[0].set("residence", holding.limits.slice().residence)
    wait_until(lambda: step(arbiter) == "returning")
    grant = arbiter.grant("a")
    assert grant
    assert grant["parking_why"] == "NVML does not say that its memory has left the GPU"
    assert (grant["state"], grant["parked_times"]) == ("active", 0)


def test_the_next_arbiter_goes_on_with_memory_that_leaves(
    arbiter: Arbiter, machine: Machine
) -> None:
    holding = make(arbiter, LINE)
    machine.list_process(os.getpid(), GIB)
    holding.works[0].set("calls", 1)
    wait_until(lambda: step(arbiter) == "leaving")
    word = holding.limits.slice().residence
    arbiter.kill()
    arbiter.start()
    begun = arbiter.status()["now_ns"]
    wait_until(lambda: arbiter.status()["now_ns"] > begun + 1_200_000_000)
    assert step(arbiter) == "leaving"
    assert holding.limits.slice().residence == word
    holding.works[0].set("residence", word)
    wait_until(lambda: step(arbiter) == "away")
