"""Who starts, grows and gives back: promises of the elastic decision."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.job import Sizes, parse_sizes
from aliquot.placement.core.demand import WHOLE_MILLI, whole
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.job import Elastic
from aliquot.placement.elastic.resize import Rules, SizeDecision, decide
from aliquot.placement.elastic.sizes import TRIES
from aliquot.placement.queues.quota import Bound, Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RULES = Rules()
EAGER = Rules(settle_seconds=0.0)
LONG_AGO = -1e6
NOW = 10_000.0


@dataclass
class Gpus:
    """So many GPUs, of which a worker takes some, wherever they are."""

    count: int
    jobs: dict[str, Elastic] = field(default_factory=dict)
    asked: int = 0

    def fits(self, sizes: Mapping[str, int]) -> bool:
        self.asked += 1
        taken = sum(size * self.jobs[name].member.gpus for name, size in sizes.items())
        return taken <= self.count


def ask(
    gpus: int,
    *jobs: Elastic,
    queues: Sequence[Queue] = (),
    rules: Rules = EAGER,
    now: float = NOW,
    could: Mapping[str, tuple[float, int]] | None = None,
) -> SizeDecision:
    hardware = empty([NodeHardware("here", gpus=gpus)]).hardware
    room = Gpus(gpus, {job.name: job for job in jobs})
    by_name = {queue.name: queue for queue in queues}
    return decide(jobs, room, by_name, hardware, now, rules, could or {})


def job(name: str, sizes: str = "1..4", size: int = 0, **more: object) -> Elastic:
    made = Elastic(name=name, sizes=parse_sizes(sizes), size=size, resized_at=LONG_AGO)
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_new_job_starts_as_large_as_fits() -> None:
    assert ask(3, job("a")).starts == {"a": 3}
    assert ask(8, job("a")).starts == {"a": 4}


def test_sizes_that_the_program_cannot_use_are_not_given() -> None:
    assert ask(7, job("a", "1..8:pow2")).starts == {"a": 4}
    assert ask(7, job("a", "2,3,6")).starts == {"a": 6}


def test_a_job_that_waits_is_let_in_at_the_cost_of_what_another_has_above_its_least() -> None:
    decision = ask(4, job("big", size=4), job("gang", "2"))
    assert decision.resizes == {"big": (2, "for a job that waits")}
    assert decision.starts == {"gang": 2}


def test_nothing_is_taken_that_does_not_help() -> None:
    decision = ask(4, job("big", "2..4", size=4), job("gang", "3"))
    assert decision.resizes == {}
    assert decision.waits == {"gang": "it does not fit beside what runs"}


def test_no_more_is_taken_than_is_needed() -> None:
    decision = ask(8, job("a", "1,2,6", size=6), job("b", "1,2", size=2), job("c", "1"))
    assert decision.resizes == {"b": (1, "for a job that waits")}


def test_the_one_gives_that_loses_least() -> None:
    fast = job("fast", size=4, speeds={1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0})
    slow = job("slow", size=4, speeds={1: 10.0, 2: 19.0, 3: 20.0, 4: 20.1})
    decision = ask(8, fast, slow, job("new", "2"))
    assert {name: size for name, (size, _) in decision.resizes.items()} == {"slow": 2}


def test_the_one_grows_that_gains_most() -> None:
    fast = job("fast", size=2, speeds={2: 20.0, 3: 30.0})
    slow = job("slow", size=2, speeds={2: 20.0, 3: 20.5})
    assert ask(5, fast, slow).resizes == {"fast": (3, "GPUs are free")}


def test_what_brings_too_little_is_left_free() -> None:
    flat = job("flat", size=2, speeds={2: 20.0, 3: 20.5, 4: 20.6})
    assert ask(8, flat).resizes == {}


def test_between_two_measured_speeds_one_is_taken_that_is_between() -> None:
    flat = job("flat", size=2, speeds={2: 10.0, 4: 11.0})
    assert 10.0 < flat.speed(3) < 11.0
    assert ask(4, flat).resizes == {"flat": (4, "GPUs are free")}


def test_a_job_that_restarts_cost_much_gives_to_those_that_wait_and_is_else_left_alone() -> None:
    slow = job("slow", "1..8", size=3, resized_at=NOW - 1000, rest_seconds=2000.0)
    assert ask(8, slow).resizes == {}
    assert ask(8, replace(slow, rest_seconds=900.0)).resizes == {"slow": (8, "GPUs are free")}
    large = replace(slow, size=7)
    assert ask(8, large, job("b", "1..8", size=1)).resizes == {}
    assert ask(8, large, job("gang", "2")).resizes == {"slow": (6, "for a job that waits")}


def test_two_equal_jobs_end_with_equal_parts() -> None:
    decision = ask(8, job("old", "1..8", size=8), job("new", "1..8"))
    assert decision.resizes == {"old": (4, "for fair shares")}
    assert decision.starts == {"new": 4}


def test_a_queue_of_twice_the_weight_has_twice_as_much() -> None:
    queues = [Queue("heavy", weight=2.0), Queue("light")]
    decision = ask(
        9, job("h", "1..9", queue="heavy"), job("l", "1..9", queue="light"), queues=queues
    )
    assert decision.starts == {"h": 6, "l": 3}


def test_a_queue_does_not_grow_past_its_limit() -> None:
    queues = [Queue("small", limit=Bound(milli=3 * WHOLE_MILLI))]
    assert ask(8, job("a", queue="small"), queues=queues).starts == {"a": 3}


def test_what_is_within_a_quota_is_not_given_to_other_queues() -> None:
    mine = Queue("mine", quota=Bound(milli=4 * WHOLE_MILLI))
    owner = job("owner", size=4, queue="mine")
    other = ask(4, owner, job("other", "1", queue="yours"), queues=[mine])
    assert (other.resizes, other.starts) == ({}, {})
    same = ask(4, owner, job("same", "1", queue="mine"), queues=[mine])
    assert same.starts == {"same": 1}


def test_a_job_that_was_just_resized_is_left_alone_and_the_other_told_why() -> None:
    fresh = job("fresh", size=4, resized_at=NOW - 10)
    decision = ask(4, fresh, job("gang", "2"))
    assert decision.resizes == {}
    assert decision.waits == {"gang": "fresh cannot be made smaller again so soon"}


def test_nobody_grows_into_what_another_is_about_to_get() -> None:
    fresh = job("fresh", size=3, resized_at=NOW - 10)
    decision = ask(5, fresh, job("old", "1..2", size=1), job("gang", "3"))
    assert decision.resizes == {}


def test_a_running_job_grows_only_where_it_could_for_a_while() -> None:
    small = job("small", size=1)
    first = ask(4, small, rules=RULES)
    assert first.resizes == {}
    assert first.could == {"small": (NOW, 4)}
    between = ask(3, small, rules=RULES, now=NOW + 200, could=first.could)
    assert between.could == {"small": (NOW, 3)}
    after = ask(4, small, rules=RULES, now=NOW + 300, could=between.could)
    assert after.resizes == {"small": (3, "GPUs are free")}


def test_a_job_that_waited_too_long_is_not_overtaken() -> None:
    running = job("running", "3", size=3)
    big = job("big", "4", submitted=NOW - 100)
    assert ask(4, running, big, job("small", "1", submitted=NOW)).starts == {"small": 1}
    big = replace(big, submitted=NOW - RULES.patience_seconds)
    assert ask(4, running, big, job("small", "1", submitted=NOW)).starts == {}


@pytest.mark.parametrize("speeds", [{}, {2: 50.0}, {1: 1.0, 4: 3.0}])
def test_unmeasured_speeds_follow_the_nearest_that_is_known(speeds: dict[int, float]) -> None:
    one = job("a", speeds=speeds)
    assert all(one.speed(size) == speed for size, speed in speeds.items())
    assert one.speed(3) < one.speed(2) * 3 / 2
    assert one.speed(8) < one.speed(4) * 2


@given(
    speeds=st.dictionaries(st.integers(-2, 2000), st.floats(), max_size=6),
    sizes=st.tuples(st.integers(1, 1024), st.integers(1, 1024)),
)
def test_whatever_is_reported_speeds_are_sound_and_no_more_than_linear(
    speeds: dict[int, float], sizes: tuple[int, int]
) -> None:
    one, (less, more) = job("a", speeds=speeds), sorted(sizes)
    assert math.isfinite(math.log(one.speed(less)))
    assert one.speed(more) <= one.speed(less) * more / less * (1 + 1e-9)


def test_a_report_that_cannot_be_stops_no_decision() -> None:
    liar = job("liar", size=1, speeds={4: 5e-324})
    assert ask(4, liar, job("other", "1")).starts == {"other": 1}


@st.composite
def pictures(draw: st.DrawFn, queues: tuple[str, ...] = ("a", "b")) -> tuple[int, list[Elastic]]:
    gpus = draw(st.integers(1, 12))
    left, jobs = gpus, []
    for number in range(draw(st.integers(1, 6))):
        sizes = draw(st.sets(st.integers(1, 8), min_size=1, max_size=4))
        allowed = Sizes(tuple(sorted(sizes)))
        each = draw(st.integers(1, 2))
        fitting = [size for size in allowed.allowed if size * each <= left]
        size = draw(st.sampled_from([0, *fitting]))
        left -= size * each
        jobs.append(
            Elastic(
                name=f"job-{number}",
                sizes=allowed,
                member=whole(each),
                queue=draw(st.sampled_from(queues)),
                submitted=float(number),
                size=size,
                resized_at=draw(st.sampled_from([LONG_AGO, NOW - 10])),
                settled=draw(st.booleans()),
                speeds=draw(st.dictionaries(st.integers(1, 8), st.floats(0.1, 100), max_size=3)),
            )
        )
    return gpus, jobs


@given(pictures())
def test_bounds_are_kept_in_every_snapshot(picture: tuple[int, list[Elastic]]) -> None:
    gpus, jobs = picture
    decision = ask(gpus, *jobs)
    by_name = {one.name: one for one in jobs}
    after = {one.name: one.size for one in jobs if one.size}
    for name, (size, _) in decision.resizes.items():
        assert size in by_name[name].sizes.allowed
        assert size != by_name[name].size
        assert by_name[name].settled
        assert NOW - by_name[name].resized_at >= EAGER.resize_seconds
        after[name] = size
    for name, size in decision.starts.items():
        assert size in by_name[name].sizes.allowed
        after[name] = size
    assert Gpus(gpus, by_name).fits(after)
    waiting = {one.name for one in jobs if not one.size}
    assert waiting == set(decision.starts) | set(decision.waits)


@given(pictures())
def test_what_is_decided_is_not_decided_otherwise_the_next_time(
    picture: tuple[int, list[Elastic]],
) -> None:
    """Without the least time between resizes, too: sizes come to rest, nobody robs in turns."""
    gpus, jobs = picture
    come_to_rest(gpus, jobs, ())


def come_to_rest(gpus: int, jobs: list[Elastic], queues: Sequence[Queue]) -> None:
    rules = replace(EAGER, resize_seconds=0.0)
    jobs = [replace(one, settled=True) for one in jobs]
    for _ in range(40):
        decision = ask(gpus, *jobs, queues=queues, rules=rules)
        if not decision.resizes and not decision.starts:
            return
        new = {name: size for name, (size, _) in decision.resizes.items()} | decision.starts
        jobs = [replace(one, size=new.get(one.name, one.size)) for one in jobs]
    pytest.fail(f"sizes do not come to rest: {jobs}")


def in_gpus(gpus: float | None) -> Bound:
    return Bound() if gpus is None else Bound(milli=int(gpus * WHOLE_MILLI))


PARENTS = {"team": "", "a": "team", "b": "team", "c": ""}


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Queue]:
    """Two queues below a third, and one beside it."""
    most, weight = st.none() | st.integers(1, 12), st.sampled_from([0.5, 1.0, 3.0])
    return {
        name: Queue(
            name,
            weight=draw(weight),
            quota=Bound(milli=draw(st.integers(0, 8)) * WHOLE_MILLI),
            limit=in_gpus(draw(most)),
            parent=parent,
        )
        for name, parent in PARENTS.items()
    }


def inside(queue: str, jobs: Iterable[Elastic]) -> list[Elastic]:
    return [one for one in jobs if queue in {one.queue, PARENTS[one.queue]}]


def milli(jobs: Iterable[Elastic]) -> int:
    return sum(one.size * one.member.gpus * WHOLE_MILLI for one in jobs)


def largest_step(jobs: Iterable[Elastic]) -> int:
    steps = [
        (after - before) * one.member.gpus
        for one in jobs
        for before, after in pairwise((0, *one.sizes.allowed))
    ]
    return max(steps, default=0) * WHOLE_MILLI


@given(pictures(tuple(PARENTS)), trees())
def test_limits_and_quotas_hold_for_a_queue_and_for_all_above_it(
    picture: tuple[int, list[Elastic]], queues: dict[str, Queue]
) -> None:
    gpus, before = picture
    decision = ask(gpus, *before, queues=list(queues.values()))
    new = {name: size for name, (size, _) in decision.resizes.items()} | decision.starts
    after = [replace(one, size=new.get(one.name, one.size)) for one in before]
    for name, queue in queues.items():
        had, has = milli(inside(name, before)), milli(inside(name, after))
        if queue.limit.milli is not None:
            assert has <= max(had, queue.limit.milli), f"{name} has passed its limit"
        grew = any(new.get(one.name, 0) > one.size for one in inside(name, before))
        if has < had and not grew:  # it has given to others, and nothing was for itself
            above = [queues[one] for one in (name, PARENTS[name]) if one]
            assert any(milli(inside(one.name, before)) > (one.quota.milli or 0) for one in above), (
                f"{name} gave of its own"
            )
            if not queue.parent:
                assert has + largest_step(inside(name, before)) > (queue.quota.milli or 0), name


@given(pictures(tuple(PARENTS)), trees())
def test_sizes_come_to_rest_in_every_tree(
    picture: tuple[int, list[Elastic]], queues: dict[str, Queue]
) -> None:
    gpus, jobs = picture
    come_to_rest(gpus, jobs, list(queues.values()))


def test_a_queue_does_not_grow_past_the_limit_of_its_parent() -> None:
    queues = [Queue("team", limit=in_gpus(3)), Queue("a", parent="team"), Queue("b", parent="team")]
    running = job("b", "1", size=1, queue="b")
    assert ask(8, running, job("a", queue="a"), queues=queues).starts == {"a": 2}
    assert ask(8, running, job("a", size=2, queue="a"), queues=queues).resizes == {}


def test_free_quota_of_a_parent_queue_is_for_all_its_children() -> None:
    queues = [Queue("team", quota=in_gpus(4)), Queue("a", parent="team"), Queue("b", parent="team")]
    big = job("big", size=4, queue="a")
    assert ask(4, big, job("other", "1", queue="c"), queues=queues).resizes == {}
    beside = ask(4, big, job("beside", "1", queue="b"), queues=queues)
    assert beside.resizes == {"big": (3, "for a job that waits")}


def test_of_the_queues_below_one_that_has_to_give_those_that_borrow_give_first() -> None:
    queues = [
        Queue("team", quota=in_gpus(4)),
        Queue("a", quota=in_gpus(4), parent="team"),
        Queue("b", quota=in_gpus(0), parent="team"),
    ]
    own = job("own", size=4, queue="a", speeds={1: 1.0, 4: 1.01})
    lent = job("lent", "1..2", size=2, queue="b")
    decision = ask(6, own, lent, job("new", "1", queue="c"), queues=queues)
    assert decision.resizes == {"lent": (1, "for a job that waits")}


def test_no_more_is_taken_than_was_borrowed() -> None:
    queues = [Queue("mine", quota=in_gpus(4))]
    big = job("big", "1..6", size=6, queue="mine")
    assert ask(6, big, job("gang", "3", queue="c"), queues=queues).resizes == {}
    assert ask(6, big, job("gang", "2", queue="c"), queues=queues).starts == {"gang": 2}


def test_what_is_within_a_quota_is_not_exchanged() -> None:
    queues = [Queue("mine", quota=in_gpus(6))]
    jobs = (job("mine", "1..8", size=7, queue="mine"), job("c", "1..8", size=1, queue="c"))
    why = "for fair shares"
    assert ask(8, *jobs).resizes == {"mine": (4, why), "c": (4, why)}
    assert ask(8, *jobs, queues=queues).resizes == {"mine": (6, why), "c": (2, why)}


def test_two_teams_share_equally_however_many_queues_each_has() -> None:
    queues = [Queue("a", parent="team"), Queue("b", parent="team"), Queue("team"), Queue("c")]
    jobs = [job(name, "1..8", queue=name) for name in ("a", "b", "c")]
    assert ask(8, *jobs, queues=queues).starts == {"a": 2, "b": 2, "c": 4}


HOURS = 10
TICK = 10.0
# What docs/jobs.md states: at most one resize in five minutes, and in this stream about a third.
RESIZES_PER_JOB_HOUR = 6.0


def resizes_in_ten_hours(seed: int) -> dict[str, int]:
    """Two elastic jobs on 8 GPUs, and a small job every four minutes that runs for five."""
    chance = random.Random(seed)  # noqa: S311 - the same each time
    jobs = {name: job(name, "1..8", resized_at=0.0) for name in ("first", "second")}
    ends: dict[str, float] = {}
    counts = dict.fromkeys(jobs, 0)
    could: dict[str, tuple[float, int]] = {}
    arrival, number = chance.expovariate(1 / 240), 0
    for tick in range(int(HOURS * 3600 / TICK)):
        now = tick * TICK
        for name in [name for name, end in ends.items() if end <= now]:
            del jobs[name], ends[name]
        while arrival <= now:
            number += 1
            jobs[f"small-{number}"] = job(f"small-{number}", "1", submitted=arrival)
            arrival += chance.expovariate(1 / 240)
        decision = ask(8, *jobs.values(), rules=RULES, now=now, could=could)
        could = decision.could
        for name, (size, _) in decision.resizes.items():
            counts[name] += 1
            jobs[name] = replace(jobs[name], size=size, resized_at=now)
        for name, size in decision.starts.items():
            jobs[name] = replace(jobs[name], size=size, resized_at=now)
            if name.startswith("small"):
                ends[name] = now + chance.expovariate(1 / 300)
    assert number > 100
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_two_elastic_jobs_and_a_stream_of_small_ones_come_to_few_resizes(seed: int) -> None:
    for name, count in resizes_in_ten_hours(seed).items():
        assert 0 < count / HOURS <= RESIZES_PER_JOB_HOUR, name


@dataclass
class Rooms:
    """Several rooms with so many GPUs each: the `terms` of a job name the room that it must be in.

    All jobs have the same demand.
    """

    counts: Mapping[str, int]
    jobs: Mapping[str, Elastic]

    def fits(self, sizes: Mapping[str, int]) -> bool:
        taken = dict.fromkeys(self.counts, 0)
        for name, size in sizes.items():
            taken[str(self.jobs[name].terms)] += size
        return all(taken[room] <= count for room, count in self.counts.items())


def ask_rooms(counts: Mapping[str, int], *jobs: Elastic, rules: Rules = EAGER) -> SizeDecision:
    hardware = empty([NodeHardware("here", gpus=sum(counts.values()))]).hardware
    rooms = Rooms(counts, {one.name: one for one in jobs})
    return decide(jobs, rooms, {}, hardware, NOW, rules, {})


class TestOtherTerms:
    """A refusal says nothing about jobs with the same demand that can be elsewhere."""

    def test_a_waiting_job_starts_after_one_that_is_refused(self) -> None:
        runs = job("runs", "1", size=1, terms="left")
        first = job("first", "1", terms="left", submitted=NOW - 2)
        second = job("second", "1", terms="right", submitted=NOW - 1)
        decision = ask_rooms({"left": 1, "right": 1}, runs, first, second)
        assert decision.starts == {"second": 1}
        assert decision.waits == {"first": "it does not fit beside what runs"}

    def test_a_job_grows_after_others_that_are_refused(self) -> None:
        full = [job(f"z{at}", "1..2", size=1, terms="left") for at in range(TRIES + 1)]
        free = job("a", "1..2", size=1, terms="right")
        decision = ask_rooms({"left": len(full), "right": 2}, *full, free)
        assert decision.resizes == {"a": (2, "GPUs are free")}

    def test_a_job_gives_to_another_after_others_that_cannot_help(self) -> None:
        useless = [
            job(f"a{at}", "1..2", size=2, terms="left", speeds={1: 1.0, 2: 1.05})
            for at in range(TRIES + 1)
        ]
        giver = job("giver", "1..2", size=2, terms="right", speeds={1: 1.0, 2: 1.1})
        taker = job("taker", "1..2", size=1, terms="right", speeds={1: 1.0, 2: 2.0})
        counts = {"left": 2 * len(useless), "right": 3}
        rules = replace(EAGER, exchange_gain=0.0)
        decision = ask_rooms(counts, *useless, giver, taker, rules=rules)
        assert {name: size for name, (size, _) in decision.resizes.items()} == {
            "giver": 1,
            "taker": 2,
        }
