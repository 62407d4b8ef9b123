"""Jobs that are resized, over time: what a resize costs, what is kept, and how often it happens."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Sizes, parse_sizes
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Placement, Running, sliced, whole
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.feasibility import ClusterCapacity, Feasibility, JobWorkers
from aliquot.placement.elastic.resize import Rules
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.simulate.elastic import Costs, simulate_elastic
from aliquot.simulate.trace import Arrival
from aliquot.simulate.world import Fate, Run
from placement.builders import node_specs

HOUR = 3600.0
FOUR_GPUS = [NodeHardware("a", 2), NodeHardware("b", 2)]
EIGHT_GPUS = [NodeHardware("a", 8)]
LINEAR = Costs(checkpoint_seconds=0.0, efficiency=1.0)
FREE = Costs(0.0, 0.0, 0.0, 1.0)


def job(
    name: str, workers: int, came: float, ran: float, sizes: str = "", **more: object
) -> Arrival:
    members = (more.pop("member", whole()),) * workers
    gang = Gang(name, members, ran, submitted=came, **more)  # type: ignore[arg-type]
    return Arrival(gang, ran, parse_sizes(sizes) if sizes else None)


def fates(run: Run) -> dict[str, Fate]:
    return {fate.gang.name: fate for fate in run.fates}


def shrink_and_grow(costs: Costs) -> dict[str, Fate]:
    """An elastic job fills four GPUs, a gang of two comes for ten minutes, and goes."""
    arrivals = [job("big", 4, 0, 10_000, "1..4"), job("gang", 2, 1000, 600)]
    return fates(simulate_elastic(FOUR_GPUS, arrivals, costs=costs))


def test_a_job_is_as_large_as_fits_and_as_fast_as_that() -> None:
    one = fates(simulate_elastic(FOUR_GPUS, [job("a", 1, 5, 1000, "1..8")]))["a"]
    assert one.start == 5
    assert one.end == pytest.approx(5 + 1000 / 4**0.9)
    assert one.resizes == 0


def test_a_job_shrinks_after_its_notice_and_grows_back_later() -> None:
    found = shrink_and_grow(LINEAR)
    big, gang = found["big"], found["gang"]
    assert (gang.start, gang.end) == (1030, 1630)
    assert [words for _, words in big.messages] == [
        "4 to 2 workers: for a job that waits",
        "2 to 4 workers: GPUs are free",
    ]
    assert [time for time, _ in big.messages] == pytest.approx([1000, 1930], abs=0.01)
    # 1030 s with 4 workers, 870 s with 2, a minute for each restart, the rest with 4
    assert big.end == pytest.approx(2020 + (40_000 - 4 * 1030 - 2 * 870) / 4, abs=0.01)
    assert big.resizes == 2
    assert big.lost == pytest.approx(60 * 2 + 60 * 4 + 30 * 2)


def test_what_was_done_since_the_last_checkpoint_is_done_again() -> None:
    saved, lost = shrink_and_grow(LINEAR), shrink_and_grow(replace(LINEAR, checkpoint_seconds=600))
    again = 4 * (1030 - 600) + 2 * (870 - 600)
    assert lost["big"].lost == pytest.approx(saved["big"].lost + again, abs=0.1)
    assert lost["big"].end == pytest.approx((saved["big"].end or 0) + again / 4, abs=0.1)


def test_a_job_that_ends_before_it_is_stopped_was_not_resized() -> None:
    arrivals = [job("big", 4, 0, 1010, "1..4"), job("gang", 2, 1000, 600)]
    found = fates(simulate_elastic(FOUR_GPUS, arrivals, costs=LINEAR))
    assert (found["big"].end, found["big"].resizes) == (1010, 0)
    assert found["gang"].start == 1010


def test_a_job_that_shrinks_keeps_its_remaining_workers_in_place() -> None:
    """A slice fits only on the GPU of the last worker, and has it when that has gone."""
    half = sliced(500)
    arrivals = [job("big", 4, 0, 10_000, "2..4"), job("half", 1, 1000, 100, member=half)]
    found = fates(simulate_elastic(FOUR_GPUS, arrivals, costs=LINEAR))
    assert found["half"].start == 1030
    assert found["big"].messages[0][1] == "4 to 3 workers: for a job that waits"


def test_workers_of_several_gpus_are_resized_too() -> None:
    arrivals = [
        job("big", 2, 0, 10_000, "1..2", member=whole(2)),
        job("gang", 1, 1000, 600, member=whole(2)),
    ]
    found = fates(simulate_elastic(FOUR_GPUS, arrivals, costs=LINEAR))
    assert found["gang"].start == 1030
    assert found["big"].resizes == 2


def test_a_job_that_can_never_run_has_a_reason_and_blocks_nobody() -> None:
    arrivals = [job("five", 5, 0, 100), job("six", 6, 0, 100, "3..6"), job("four", 4, 700, 100)]
    found = fates(simulate_elastic(FOUR_GPUS, arrivals))
    assert found["five"].start is None
    assert "even where nothing runs" in found["five"].reason
    assert found["six"].start == 0
    assert found["four"].end is not None


def test_members_that_differ_are_refused() -> None:
    gang = Gang("mixed", (whole(1), whole(2)))
    with pytest.raises(InvalidValueError, match="'mixed' has members that differ"):
        simulate_elastic(FOUR_GPUS, [Arrival(gang, 10)])
    with pytest.raises(InvalidValueError, match="'mixed' cannot be resized"):
        Arrival(gang, 10, Sizes((1, 2)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"notice_seconds": -1.0},
        {"restart_seconds": float("inf")},
        {"checkpoint_seconds": -600.0},
        {"efficiency": 0.0},
        {"efficiency": 1.1},
    ],
)
def test_costs_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidValueError):
        Costs(**wrong)


@st.composite
def traces(draw: st.DrawFn) -> list[Arrival]:
    arrivals = []
    for number in range(draw(st.integers(1, 8))):
        asked = draw(st.integers(1, 4))
        part = draw(st.booleans())
        least, most = draw(st.integers(1, asked)), draw(st.integers(asked, 6))
        sizes = draw(st.sampled_from(["", f"{least}..{most}"]))
        arrivals.append(
            job(
                f"job-{number}",
                asked,
                draw(st.sampled_from([0.0, 0.0, 100.0, 700.0, 2000.0])),
                draw(st.sampled_from([10.0, 500.0, 5000.0])),
                sizes,
                member=sliced(draw(st.sampled_from([300, 500]))) if part else whole(),
                queue=draw(st.sampled_from(["own", "guest"])),
            )
        )
    return arrivals


QUEUES = {"own": Queue("own", quota=Bound(2000)), "guest": Queue("guest", limit=Bound(3000))}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nodes=node_specs(), arrivals=traces(), queues=st.sampled_from([{}, QUEUES]))
def test_in_any_trace_every_gang_runs_or_has_a_reason(
    nodes: list[NodeHardware], arrivals: list[Arrival], queues: dict[str, Queue]
) -> None:
    """Taking what is not there would raise; all that was taken is given back."""
    run = simulate_elastic(nodes, arrivals, queues=queues)
    rules, costs = Rules(), Costs()
    for arrival in arrivals:
        fate = fates(run)[arrival.gang.name]
        if fate.start is None or fate.end is None:
            assert (fate.start, fate.end) == (None, None)
            assert fate.reason
            continue
        asked = len(arrival.gang.members)
        most = asked if arrival.sizes is None else arrival.sizes.most
        fastest = arrival.ran * costs.speed(asked) / costs.speed(most)
        assert fate.end - fate.start >= fastest * (1 - 1e-9)
        between = rules.resize_seconds + costs.notice_seconds
        assert fate.resizes <= (fate.end - fate.start) / between
        assert fate.resizes == 0 or arrival.sizes is not None
    assert all(0 <= one.held <= one.allocated <= 1 for one in run.samples)
    assert run.samples[-1].allocated == 0
    assert simulate_elastic(nodes, arrivals, queues=queues).fates == run.fates


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_where_resizes_cost_nothing_the_gpu_time_is_what_was_asked_for(
    arrivals: list[Arrival],
) -> None:
    run = simulate_elastic(EIGHT_GPUS, arrivals, costs=FREE)
    spans = zip(run.samples, run.samples[1:], strict=False)
    used = sum(one.allocated * (then.time - one.time) for one, then in spans)
    asked = sum(one.gang.milli * one.ran for one in arrivals)
    assert used * run.capacity_milli == pytest.approx(asked)
    assert sum(fate.lost for fate in run.fates) == pytest.approx(0)


@settings(max_examples=60, deadline=None)
@given(
    gpus=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    held=st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)),
    wanted=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 6)),
)
def test_counting_gpus_and_placing_workers_come_to_the_same(
    gpus: list[int], held: dict[str, int], wanted: dict[str, int]
) -> None:
    """A worker that also asks for a little CPU, of which there is enough, is placed."""
    nodes = [NodeHardware(f"n{i}", count, cpu_milli=1000) for i, count in enumerate(gpus)]
    free = [Placement(i, (gpu,)) for i, count in enumerate(gpus) for gpu in range(count)]
    answers = set()
    for member in (Demand(), Demand(cpu_milli=1)):
        allocations, left = Allocations(empty(nodes)), list(free)
        places: dict[str, list[Placement]] = {}
        for name, count in held.items():
            places[name] = [left.pop(0) for _ in range(min(count, len(left)))]
            for placement in places[name]:
                allocations.take(placement, member)
        sizes = {name: len(places[name]) for name in places} | wanted
        by = strategy("pack", allocations.hardware)
        jobs = {
            name: JobWorkers(
                name,
                (member,),
                tuple(
                    Running(Gang(name, (member,)), (place,), 0.0, 1.0)
                    for place in places.get(name, ())
                ),
                size=len(places.get(name, ())),
                live=True,
            )
            for name in "abcd"
        }
        check = Feasibility(ClusterCapacity(allocations, by), jobs)
        answers.add(check.fits(sizes))
        assert check.fits(sizes) == (sum(sizes.values()) <= len(free))
        assert check.free_milli(sizes) == 1000 * (len(free) - sum(sizes.values()))
    assert len(answers) == 1


def ten_hours(seed: int) -> list[Arrival]:
    """Two elastic jobs on 8 GPUs, and a small job every four minutes that runs for five."""
    chance = random.Random(seed)  # noqa: S311 - the same each time
    arrivals = [job(name, 8, 0, 5 * HOUR, "1..8") for name in ("first", "second")]
    came = 0.0
    while (came := came + chance.expovariate(1 / 240)) < 10 * HOUR:
        arrivals.append(job(f"small-{len(arrivals)}", 1, came, 1 + chance.expovariate(1 / 300)))
    return arrivals


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    rules=st.builds(
        Rules,
        resize_seconds=st.sampled_from([120.0, 300.0, 900.0]),
        settle_seconds=st.sampled_from([0.0, 300.0]),
    ),
    costs=st.builds(Costs, notice_seconds=st.sampled_from([0.0, 30.0])),
)
def test_resizes_in_a_job_hour_stay_below_what_the_least_time_between_them_allows(
    seed: int, rules: Rules, costs: Costs
) -> None:
    """The bound of docs/jobs.md: 3600 / (the least time between resizes + the notice)."""
    found = fates(simulate_elastic(EIGHT_GPUS, ten_hours(seed), rules=rules, costs=costs))
    bound = HOUR / (rules.resize_seconds + costs.notice_seconds)
    for name in ("first", "second"):
        fate = found[name]
        hours = ((fate.end or 0) - (fate.start or 0)) / HOUR
        assert hours > 8
        assert 0 < fate.resizes / hours <= bound
        times = [time for time, _ in fate.messages]
        apart = (then - one for one, then in pairwise(times))
        assert all(one >= rules.resize_seconds + costs.notice_seconds for one in apart)
