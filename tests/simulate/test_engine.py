"""Traces over time, and the stories that docs/placement.md tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.model.errors import InvalidValueError
from aliquot.placement.choose.strategies import STRATEGIES
from aliquot.placement.core.demand import Gang, whole
from aliquot.placement.core.snapshot import NodeHardware
from aliquot.placement.decide import Decision, DecisionInput, decide
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.simulate import engine
from aliquot.simulate.engine import Discipline, simulate
from aliquot.simulate.generate import cluster, day
from aliquot.simulate.plot import Line, draw
from aliquot.simulate.trace import Arrival, read_gangs, read_nodes, read_queues
from aliquot.simulate.world import Run
from placement.builders import demands, node_specs


def job(name: str, gpus: int, came: float, seconds: float, **more: object) -> Arrival:
    gang = Gang(name, (whole(),) * gpus, seconds, submitted=came, **more)  # type: ignore[arg-type]
    return Arrival(gang, seconds)


def starts(run: Run) -> dict[str, float | None]:
    return {fate.gang.name: fate.start for fate in run.fates}


FOUR_GPUS = [NodeHardware("a", 2), NodeHardware("b", 2)]


def test_two_free_gpus_a_job_of_four_and_a_job_of_two() -> None:
    """The big one is promised a start, the small one runs meanwhile; one by one, none runs."""
    arrivals = [job("busy", 2, 0, 600), job("four", 4, 10, 900), job("two", 2, 20, 500)]
    ours = simulate(FOUR_GPUS, arrivals)
    assert starts(ours) == {"busy": 0, "four": 600, "two": 20}
    others = simulate(FOUR_GPUS, arrivals, discipline=Discipline.ONE_BY_ONE)
    assert starts(others) == {"busy": 0, "four": None, "two": None}
    assert others.samples[-1].held == 1.0


def test_two_half_started_gangs() -> None:
    """One by one, each holds half and waits for the other's half, for ever; ours take turns."""
    arrivals = [job("first", 3, 0, 100), job("second", 3, 0, 100)]
    stuck = simulate(FOUR_GPUS, arrivals, discipline=Discipline.ONE_BY_ONE)
    assert starts(stuck) == {"first": None, "second": None}
    assert stuck.samples[-1].held == 1.0
    assert starts(simulate(FOUR_GPUS, arrivals)) == {"first": 0, "second": 100}


def test_a_gang_that_can_never_run_has_a_reason_and_blocks_nobody() -> None:
    arrivals = [job("five", 5, 0, 100), job("four", 4, 1, 100)]
    run = simulate(FOUR_GPUS, arrivals)
    assert starts(run) == {"five": None, "four": 1}
    assert run.fates[0].reason == "it asks for 5 GPUs, and there are 4 in the cluster"


def test_a_queue_reclaims_its_quota() -> None:
    queues = {
        "own": Queue("own", quota=Bound(2000)),
        "guest": Queue("guest", quota=Bound(2000)),
    }
    arrivals = [
        job("g1", 2, 0, 1000, queue="guest"),
        job("g2", 2, 1, 1000, queue="guest"),
        job("mine", 2, 100, 50, queue="own"),
    ]
    run = simulate(FOUR_GPUS, arrivals, queues=queues)
    fates = {fate.gang.name: fate for fate in run.fates}
    assert fates["mine"].start == 100
    assert fates["g2"].evictions == 1
    assert fates["g2"].start == 150
    assert fates["g1"].evictions == 0
    assert fates["mine"].messages == (
        (
            100,
            (
                "starts in place of g2, since queue guest borrows from the quota of queue own:"
                " 0.06 GPU hours of work are lost"
            ),
        ),
    )
    assert fates["g2"].messages == (
        (100, "preempted for mine: queue guest borrows from the quota of queue own"),
    )
    assert fates["g1"].messages == ()


@pytest.mark.parametrize(
    ("by", "expected"),
    [("fragmentation", {1.0}), ("pack", {1.0}), ("spread", {10.0}), ("random", {1.0, 10.0})],
)
def test_the_strategy_and_the_seed_reach_gangs_of_several_members(
    by: str, expected: set[float]
) -> None:
    """A pair goes to the small node or to the large one; on the large, the next has to wait."""
    nodes = [NodeHardware("large", 4), NodeHardware("small", 2)]
    large = Arrival(Gang("four", (whole(4),), 5, submitted=1), 5)
    arrivals = [job("pair", 2, 0, 10), large]
    runs = [simulate(nodes, arrivals, by=by, seed=seed) for seed in range(12)]
    assert {starts(run)["four"] for run in runs} == expected
    again = simulate(nodes, arrivals, by=by, seed=5)
    assert starts(again) == starts(runs[5])


def test_a_start_postponed_by_a_preemption_names_who_came_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The simulator makes every decision by `placement.decide`, and blames no overrun."""
    decisions: list[tuple[float, Decision]] = []

    def spy(question: DecisionInput) -> Decision:
        decision = decide(question)
        decisions.append((question.now, decision))
        return decision

    monkeypatch.setattr(engine, "decide", spy)
    queues = {name: Queue(name, quota=Bound(2000)) for name in ("own", "guest")}
    arrivals = [
        job("g1", 2, 0, 150, queue="guest"),
        job("g2", 2, 5, 95, queue="guest"),
        job("next", 2, 10, 1000, queue="guest"),
        job("last", 2, 20, 1000, queue="guest"),
        job("mine", 2, 50, 500, queue="own"),
    ]
    run = simulate(FOUR_GPUS, arrivals, queues=queues)
    at_50 = [decision for now, decision in decisions if now == 50]
    first, second, *_ = ({one.gang.name: one.start for one in each.planned} for each in at_50)
    assert [gang.name for gang, _ in at_50[0].preemptions] == ["mine"]
    assert first == {"next": 150, "last": 600}
    assert second == {"g2": 150, "next": 245, "last": 550}
    assert at_50[0].delays["next"] == "mine came before it"
    assert at_50[1].delays["next"] == "g2 came before it"
    assert starts(run) == {"g1": 0, "g2": 150, "next": 245, "last": 550, "mine": 50}


@pytest.mark.parametrize("by", ["fragmentation", "spread"])
def test_a_day_of_experiments_training_and_inference(by: str) -> None:
    """All of it runs, nobody starts after the promise, and nothing is over the brim."""
    arrivals = day(2, seed=3, load=0.5)
    run = simulate(cluster(2), arrivals, by=by)
    fits = [one for one in arrivals if one.gang.milli <= run.capacity_milli]
    assert run.placed == len(fits)
    for fate in run.fates:
        if fate.planned_start is not None and fate.start is not None:
            assert fate.start <= fate.planned_start
    assert all(0 <= sample.allocated <= 1 for sample in run.samples)
    assert starts(simulate(cluster(2), arrivals, by=by)) == starts(run)


arrivals_ = st.lists(
    st.builds(
        lambda members, came, seconds, part, queue, priority: (
            Gang("", tuple(members), seconds, queue, priority, came),
            part * seconds,
        ),
        members=st.lists(demands(), min_size=1, max_size=3),
        came=st.sampled_from([0.0, 0.0, 7.0, 20.0, 33.0]),
        seconds=st.sampled_from([10.0, 25.0, 60.0]),
        part=st.sampled_from([0.3, 1.0]),
        queue=st.sampled_from(["own", "guest"]),
        priority=st.integers(0, 1),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=node_specs(),
    made=arrivals_,
    by=st.sampled_from(sorted(STRATEGIES)),
    queues=st.sampled_from([{}, {"own": Queue("own", quota=Bound(2000)), "guest": Queue("guest")}]),
)
def test_in_any_trace_every_gang_runs_or_has_a_reason(
    nodes: list[NodeHardware], made: list[tuple[Gang, float]], by: str, queues: dict[str, Queue]
) -> None:
    """Taking what is not there would raise; who is promised a start has it then, or is told."""
    arrivals = [
        Arrival(replace(gang, name=f"g{number}"), ran) for number, (gang, ran) in enumerate(made)
    ]
    run = simulate(nodes, arrivals, by=by, queues=queues)
    ran = {one.gang.name: one.ran for one in arrivals}
    told = [fate for fate in run.fates if fate.messages]
    for fate in run.fates:
        if fate.start is None:
            assert fate.reason
            continue
        assert fate.start >= fate.gang.submitted
        assert fate.end == fate.start + ran[fate.gang.name]
        assert fate.planned_start is None or fate.start <= fate.planned_start or told
    may_preempt = queues or len({one.gang.priority for one in arrivals}) > 1
    assert sum(fate.evictions for fate in run.fates) == 0 or may_preempt
    assert run.samples == () or run.samples[-1].allocated == 0
    again = simulate(nodes, arrivals, by=by, queues=queues)
    assert again.fates == run.fates


def test_a_trace_of_ours_is_read_with_its_gangs_and_links(tmp_path: Path) -> None:
    nodes, gangs = tmp_path / "nodes.csv", tmp_path / "gangs.csv"
    nodes.write_text("name,gpus,model,gpu_memory_mib,links\na,4,H100,81920,nvlink-pairs\nb,2,,,\n")
    gangs.write_text(
        "gang,submitted,seconds,members,gpus,milli,gpu_memory_mib,queue,ran\n"
        "t,5,60,2,1,1000,,train,30\n"
        "t,5,60,1,1,500,1024,train,\n"
        "s,1,10,,,250,,,\n"
    )
    specs = read_nodes(nodes)
    assert specs[0].links[0][1] > specs[0].links[0][2]
    first, second = read_gangs(gangs)
    assert (first.gang.name, first.gang.milli, first.ran) == ("s", 250, 10)
    assert [member.total_milli for member in second.gang.members] == [1000, 1000, 500]
    assert (second.gang.queue, second.ran) == ("train", 30)
    assert simulate(specs, [first, second]).placed == 2


def test_gangs_of_a_trace_choose_gpus_and_neighbours(tmp_path: Path) -> None:
    nodes, gangs = tmp_path / "nodes.csv", tmp_path / "gangs.csv"
    nodes.write_text("name,gpus\na,1\nb,12\n")
    gangs.write_text(
        "gang,submitted,seconds,milli,on,not_on,label,with,apart_from,alone\n"
        "x,0,100,700,a,,x,,,\n"
        "beside,1,10,400,,,,x,,\n"
        "apart,2,10,200,a,,,,x|y,\n"
        "plain,3,10,200,a,,,,,0\n"
        "alone,4,300,300,b/1,,,,,1\n"
        "same,5,10,300,b/1,,,,,\n"
        "other,6,10,,b/10,b/1,,,,\n"
        "never,7,10,300,b/1,b,,,,\n"
    )
    begun = starts(simulate(read_nodes(nodes), read_gangs(gangs)))
    assert begun["x"] == 0
    assert begun["beside"] == begun["apart"] == 100
    assert begun["plain"] == 3
    assert (begun["alone"], begun["same"]) == (4, 304)
    assert begun["other"] == 6
    assert begun["never"] is None


def test_queues_are_read_with_what_is_theirs(tmp_path: Path) -> None:
    path = tmp_path / "queues.csv"
    path.write_text(
        "name,weight,quota_gpus,quota_memory_mib,limit_gpus,limit_memory_mib\n"
        "train,2,1.5,,4,\n"
        "serve,,,1024,,2048\n"
        "try,,,,,\n"
    )
    assert read_queues(path) == {
        "train": Queue("train", 2, Bound(1500, None), Bound(4000, None)),
        "serve": Queue("serve", 1, Bound(None, 1 << 30), Bound(None, 2 << 30)),
        "try": Queue("try", 1, Bound(0, 0), Bound()),
    }


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("a,0,", "line 2, column weight: it cannot be"),
        ("a,-1,", "line 2, column weight: it cannot be"),
        ("a,1,-2", "line 2, column quota_gpus: it cannot be '-2'"),
        ("a,1,many", "column quota_gpus: it cannot be 'many'"),
        ("a,1,\na,2,", "line 3, column name: it cannot be 'a': line 2 has this name already"),
    ],
)
def test_a_wrong_queue_is_refused_with_its_line(tmp_path: Path, line: str, wrong: str) -> None:
    path = tmp_path / "queues.csv"
    path.write_text(f"name,weight,quota_gpus\n{line}\n")
    with pytest.raises(InvalidValueError, match=wrong):
        read_queues(path)


def test_a_trace_with_a_word_for_a_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gangs.csv"
    path.write_text("gang,submitted,seconds\ng,now,60\n")
    with pytest.raises(InvalidValueError, match="'now'"):
        read_gangs(path)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("h,1,,1,", "seconds"),
        ("h,1,0,1,", "seconds"),
        ("h,1,-5,1,", "seconds"),
        ("h,1,nan,1,", "seconds"),
        ("h,1,60,1,0", "ran"),
        ("h,1,60,1,inf", "ran"),
        ("h,1,60,0,", "members"),
    ],
)
def test_a_time_that_is_not_above_zero_is_refused_with_its_line(
    tmp_path: Path, line: str, column: str
) -> None:
    path = tmp_path / "gangs.csv"
    path.write_text(f"gang,submitted,seconds,members,ran\ng,0,60,1,\n\n{line}\n")
    with pytest.raises(InvalidValueError, match=f"gangs.csv, line 4, column {column}: it cannot"):
        read_gangs(path)


def test_a_plot_has_every_line_and_its_name() -> None:
    svg = draw("Title <1>", "hours", "%", [Line("one", [(0, 0), (1, 0.5)], steps=True)])
    assert svg.startswith("<svg")
    assert "Title &lt;1&gt;" in svg
    assert svg.count("<polyline") == 1
