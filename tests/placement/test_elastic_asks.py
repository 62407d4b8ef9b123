"""What the elastic decision asks the room: little, and without missing what it would have said."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.job import Sizes
from aliquot.placement.core.demand import WHOLE_MILLI
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.job import CountsFree, Elastic
from aliquot.placement.elastic.resize import Rules, SizeDecision, decide
from placement.test_elastic import NOW, PARENTS, Gpus, ask, come_to_rest, job, pictures, trees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.placement.queues.quota import Queue

AT_ONCE = Rules(resize_seconds=0.0, settle_seconds=0.0, exchange_gain=0.0, least_gain=0.0)


@dataclass
class CountedGpus(Gpus):
    """The same, and how many are free is known."""

    def free_milli(self, sizes: Mapping[str, int]) -> int:
        taken = sum(size * self.jobs[name].member.gpus for name, size in sizes.items())
        return WHOLE_MILLI * (self.count - taken)


def ask_room(
    room: Gpus, jobs: Sequence[Elastic], queues: Mapping[str, Queue], rules: Rules = AT_ONCE
) -> SizeDecision:
    room.jobs = {one.name: one for one in jobs}
    hardware = empty([NodeHardware("here", gpus=room.count)]).hardware
    return decide(jobs, room, queues, hardware, NOW, rules, {})


@given(pictures(tuple(PARENTS)), trees() | st.just({}))
def test_a_check_that_counts_gets_the_same_decision(
    picture: tuple[int, list[Elastic]], queues: dict[str, Queue]
) -> None:
    gpus, jobs = picture
    plain, counted = Gpus(gpus), CountedGpus(gpus)
    assert isinstance(counted, CountsFree)
    assert not isinstance(plain, CountsFree)
    assert ask_room(plain, jobs, queues) == ask_room(counted, jobs, queues)
    assert counted.asked <= plain.asked


@pytest.mark.parametrize("running", [20, 100])
def test_where_all_have_their_part_and_nothing_is_free_few_questions_are_asked(
    running: int,
) -> None:
    jobs = [job(f"job-{number:03}", "1..8", size=2) for number in range(running)]
    plain, counted = Gpus(2 * running), CountedGpus(2 * running)
    for room in (plain, counted):
        assert ask_room(room, jobs, {}).resizes == {}
    assert counted.asked == 0
    assert plain.asked <= 30


def test_admitting_many_jobs_needs_checks_in_proportion_to_jobs_not_pairs() -> None:
    jobs = [job(f"job-{number:03}", "1..16", size=16) for number in range(100)]
    jobs += [job(f"new-{number:03}", "2..16") for number in range(50)]
    for room in (Gpus(1600), CountedGpus(1600)):
        decision = ask_room(room, jobs, {})
        assert len(decision.starts) == 50
        assert room.asked <= 40 * len(jobs)


def test_what_is_free_is_given_away_by_few_questions() -> None:
    jobs = [job(f"job-{number:03}", "1..16", size=1) for number in range(50)]
    for room in (Gpus(800), CountedGpus(800)):
        decision = ask_room(room, jobs, {})
        assert {size for size, _ in decision.resizes.values()} == {16}
        assert room.asked <= 3 * len(jobs)


def logs(jobs: Sequence[Elastic], sizes: Mapping[str, int]) -> float:
    return sum(math.log(one.speed(sizes[one.name])) for one in jobs if one.name in sizes)


def grown(room: Gpus, sizes: dict[str, int], taker: Elastic) -> dict[str, int]:
    while (size := taker.sizes.above(sizes[taker.name])) is not None:
        if not room.fits({**sizes, taker.name: size}):
            break
        sizes = {**sizes, taker.name: size}
    return sizes


@given(pictures(("one",)), st.sampled_from([Gpus, CountedGpus]))
def test_no_pair_is_left_that_would_gain_by_an_exchange(
    picture: tuple[int, list[Elastic]], kind: type[Gpus]
) -> None:
    """All pairs are tried here, one after the other."""
    gpus, jobs = picture
    jobs = [replace(one, settled=True, resized_at=-math.inf) for one in jobs if one.size]
    room = kind(gpus)
    decision = ask_room(room, jobs, {}, replace(AT_ONCE, settle_seconds=math.inf))
    new = {name: size for name, (size, _) in decision.resizes.items()}
    sizes = {one.name: new.get(one.name, one.size) for one in jobs}
    able = [one for one in jobs if one.sizes.elastic]
    for giver in able:
        less = giver.sizes.below(sizes[giver.name])
        for taker in able if less is not None else ():
            if taker is giver or less is None:
                continue
            # Some are slower when they are larger, and do not grow alone.
            alone = max(logs(jobs, grown(room, sizes, taker)), logs(jobs, sizes))
            with_it = logs(jobs, grown(room, {**sizes, giver.name: less}, taker))
            assert with_it <= alone + 1e-6, (giver.name, taker.name)


def test_one_that_needs_many_steps_of_others_gets_no_more_than_it_needs() -> None:
    """More than are taken one by one: what was taken too much is given back."""
    givers = [job(f"giver-{number:02}", size=4) for number in range(30)]
    decision = ask(120, *givers, Elastic("big", Sizes((40,)), submitted=NOW))
    assert decision.starts == {"big": 40}
    given_back = sum(4 - size for size, _ in decision.resizes.values())
    assert given_back == 40


@dataclass
class Rows(Gpus):
    """Rows of four GPUs; a job's workers are in one row, by the number at the end of its name.

    So it matters who gives: what another row has is of no use.
    """

    def fits(self, sizes: Mapping[str, int]) -> bool:
        self.asked += 1
        rows: dict[int, int] = {}
        for name, size in sizes.items():
            row = int(name[-2:])
            rows[row] = rows.get(row, 0) + size
        return all(size <= 4 for size in rows.values())


def test_the_job_whose_shrinking_helps_shrinks() -> None:
    jobs = [job(f"job-{number:02}", size=4) for number in range(30)]
    room = Rows(120)
    decision = ask_room(room, [*jobs, job("new-17", "1")], {}, Rules())
    assert decision.starts == {"new-17": 1}
    assert decision.resizes == {"job-17": (3, "for a job that waits")}
    assert room.asked <= 200


def test_jobs_that_are_slower_when_larger_do_not_give_to_each_other_for_ever() -> None:
    jobs = [
        job("a", "1,2,3,7", speeds={5: 99.0, 2: 23.0, 4: 4.5}),
        job("b", "3,5,6,8", size=5, speeds={2: 71.0, 6: 53.0, 7: 72.0}),
        job("c", "1,2,4,7", size=1, speeds={1: 0.1}),
    ]
    come_to_rest(10, jobs, ())
