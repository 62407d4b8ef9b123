"""When gangs start: what is promised, and what runs meanwhile."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Placement, Running, sliced, whole
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.gangs import timeline
from aliquot.placement.gangs.backfill import OVERRAN, StartPlan, plan_starts
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.gangs.timeline import Timeline
from placement.builders import cluster, demands, gang, node_specs, only_cpu


@pytest.mark.parametrize("order", [("four", "two"), ("two", "four")])
def test_with_two_free_gpus_the_small_job_runs_while_the_big_one_waits(
    order: tuple[str, str],
) -> None:
    allocations = cluster(2, 2)
    busy = Running(gang("busy", whole(2), seconds=600), (placed_on(allocations, 0),), 0, 600)
    jobs = {
        "four": gang("four", *[whole()] * 4, seconds=1000, submitted=1),
        "two": gang("two", *[whole()] * 2, seconds=500, submitted=2),
    }
    plan = plan_starts(allocations, [busy], (), [jobs[name] for name in order], now=10)
    assert [one.gang.name for one in plan.starts] == ["two"]
    assert [(one.gang.name, one.start) for one in plan.reservations] == [("four", 600)]


def test_work_that_would_delay_a_planned_start_waits() -> None:
    allocations = cluster(2, 2)
    busy = Running(gang("busy", whole(2), seconds=600), (placed_on(allocations, 0),), 0, 600)
    four = gang("four", *[whole()] * 4, seconds=1000)
    two = gang("two", *[whole()] * 2, seconds=5000)
    plan = plan_starts(allocations, [busy], (), [four, two], now=10)
    assert plan.starts == ()
    assert {one.gang.name: one.start for one in plan.reservations} == {"four": 600, "two": 1600}
    assert "600" in plan.reasons["four"]


def test_two_gangs_that_need_most_of_the_cluster_run_one_after_the_other() -> None:
    allocations = cluster(2, 2)
    first = gang("first", *[whole()] * 3, seconds=100)
    second = gang("second", *[whole()] * 3, seconds=100)
    plan = plan_starts(allocations, [], (), [first, second], now=0)
    assert [one.gang.name for one in plan.starts] == ["first"]
    assert [(one.gang.name, one.start) for one in plan.reservations] == [("second", 100)]


def test_the_reason_says_that_a_gang_can_never_run() -> None:
    plan = plan_starts(cluster(2), [], (), [gang("big", whole(3))], now=0)
    assert plan.reasons == {"big": "it asks for 3 GPUs, and there are 2"}


def test_the_reason_of_a_large_gang_says_that_not_all_ways_were_tried() -> None:
    large = gang("large", *[only_cpu(60)] * 600, *[only_cpu(61)] * 600)
    small = gang("small", only_cpu(40_000), only_cpu(41_000))
    plan = plan_starts(cluster(1), [], (), [large, small], now=0)
    assert plan.starts == ()
    assert plan.reasons["large"].startswith("no way was found")
    assert plan.reasons["small"].startswith("not all its members fit")


def test_what_starts_now_takes_nobodys_reservation() -> None:
    allocations = cluster(2, 2)
    busy = Running(gang("busy", whole(2), seconds=600), (placed_on(allocations, 0),), 0, 600)
    four, other = (gang(name, *[whole()] * 4, seconds=1000) for name in ("four", "other"))
    small = [gang(f"s{i}", sliced(10), seconds=10) for i in range(70)]
    plan = plan_starts(allocations, [busy], (), [four, *small, other], now=10)
    assert len(plan.starts) == 70
    assert {one.gang.name: one.start for one in plan.reservations} == {"four": 600, "other": 1600}


def test_the_reason_counts_planned_starts_when_all_are_used() -> None:
    waiting = [gang(f"g{i}", whole(), seconds=10) for i in range(66)]
    plan = plan_starts(cluster(1), [], (), waiting, now=0)
    assert len(plan.reservations) == 64
    assert plan.reasons["g65"] == "64 gangs have a planned start before it"


def eight(name: str, seconds: float = 1000, **more: object) -> Gang:
    return gang(name, whole(8), seconds=seconds, **more)


def busy_until(end: float) -> tuple[Allocations, Running]:
    """A node of 8 GPUs that is full until then."""
    allocations = cluster(8)
    one = Running(eight("busy", end), (Placement(0, tuple(range(8))),), 0, end)
    allocations.take_gang(one)
    return allocations, one


def starts_of(plan: StartPlan) -> dict[str, float]:
    return {one.gang.name: one.start for one in (*plan.starts, *plan.reservations)}


@pytest.mark.parametrize("queues", ["qqqq", "qrst"])
def test_a_gang_that_loses_its_start_stays_before_later_gangs(queues: str) -> None:
    """The work before them runs for a second longer than it said."""
    allocations, busy = busy_until(100)
    waiting = [eight(name, queue=queue) for name, queue in zip("ABCD", queues, strict=True)]
    promised = plan_starts(allocations, [busy], (), waiting, now=1).reservations
    broken = plan_starts(allocations, [busy], promised, waiting, now=100)
    assert starts_of(broken) == {"A": 110, "B": 1110, "C": 2110, "D": 3110}
    assert all(OVERRAN in reason for reason in broken.reasons.values())
    allocations.give_gang(busy)
    ended = plan_starts(allocations, [], broken.reservations, waiting, now=101)
    assert starts_of(ended) == {"A": 101, "B": 1101, "C": 2101, "D": 3101}


def test_the_caller_can_name_what_broke_a_planned_start() -> None:
    allocations, busy = busy_until(100)
    waiting = [eight("A")]
    promised = plan_starts(allocations, [busy], (), waiting, now=1).reservations
    longer = replace(busy, end=500)
    plan = plan_starts(allocations, [longer], promised, waiting, now=2, blame="another came")
    assert starts_of(plan) == {"A": 500}
    assert plan.delays == {"A": "another came"}


@pytest.mark.parametrize("late", [0.2, 30.0])
def test_deciding_late_moves_all_later_starts_and_blames_nobody(late: float) -> None:
    allocations, busy = busy_until(100)
    waiting = [eight(name) for name in "ABCD"]
    promised = plan_starts(allocations, [busy], (), waiting, now=1).reservations
    allocations.give_gang(busy)
    plan = plan_starts(allocations, [], promised, waiting, now=100 + late)
    assert starts_of(plan) == pytest.approx(
        {name: 100 + late + 1000 * turn for turn, name in enumerate("ABCD")}
    )
    assert plan.delays == {}
    assert not any(OVERRAN in reason for reason in plan.reasons.values())


def test_a_late_question_moves_nothing_that_is_elsewhere() -> None:
    allocations = cluster(8, 8)
    running = [
        Running(eight(f"r{i}", end), (Placement(i, tuple(range(8))),), 0, end)
        for i, end in enumerate((100.0, 500.0))
    ]
    for one in running:
        allocations.take_gang(one)
    waiting = [eight("A"), eight("B")]
    promised = plan_starts(allocations, running, (), waiting, now=1).reservations
    allocations.give_gang(running[0])
    plan = plan_starts(allocations, running[1:], promised, waiting, now=130)
    assert starts_of(plan) == {"A": 130, "B": 500}


def test_the_first_64_gangs_always_have_a_planned_start() -> None:
    """Also one of a high priority that comes when 64 have theirs."""
    allocations, busy = busy_until(100)
    waiting = [eight(f"g{i}", 10) for i in range(70)]
    promised = plan_starts(allocations, [busy], (), waiting, now=1).reservations
    urgent = eight("urgent", 10, priority=1)
    plan = plan_starts(allocations, [busy], promised, [urgent, *waiting], now=2)
    starts = starts_of(plan)
    assert starts["urgent"] == 100
    assert [starts[f"g{i}"] for i in range(63)] == [110 + 10 * i for i in range(63)]
    full = "64 gangs have a planned start before it"
    assert plan.reasons["g64"] == full
    assert plan.reasons["g63"] == f"urgent came before it; {full}"
    assert plan.delays["g0"] == "urgent came before it"
    assert plan.reasons["g0"].startswith("urgent came before it; ")


def test_a_higher_priority_displaces_only_what_is_in_its_way() -> None:
    allocations = cluster(8, 4)
    full = Running(eight("r", 100), (Placement(0, tuple(range(8))),), 0, 100)
    half = Running(gang("h", whole(4), seconds=50), (Placement(1, (0, 1, 2, 3)),), 0, 50)
    for one in (full, half):
        allocations.take_gang(one)
    four, low = gang("four", whole(4)), eight("low")
    promised = plan_starts(allocations, [full, half], (), [four, low], now=1).reservations
    urgent = eight("urgent", priority=9)
    plan = plan_starts(allocations, [full, half], promised, [urgent, four, low], now=2)
    assert starts_of(plan) == {"urgent": 100, "four": 50, "low": 1100}
    assert plan.delays == {"low": "urgent came before it"}


def test_another_queue_displaces_all_but_the_first_of_each_queue() -> None:
    allocations, busy = busy_until(100)
    mine = [eight(f"a{i}", queue="a") for i in range(3)]
    promised = plan_starts(allocations, [busy], (), mine, now=1).reservations
    other = eight("b", queue="b")
    plan = plan_starts(allocations, [busy], promised, [other, *mine], now=2)
    assert starts_of(plan) == {"a0": 100, "b": 1100, "a1": 2100, "a2": 3100}
    assert plan.delays == {"a1": "b came before it", "a2": "b came before it"}


def test_a_borrowers_planned_start_does_not_delay_a_gang_within_quota() -> None:
    allocations, busy = busy_until(100)
    borrows, owns = eight("borrows", queue="a"), eight("owns", queue="b")
    promised = plan_starts(allocations, [busy], (), [borrows], now=1).reservations
    for own, first in (({"owns"}, "owns"), ((), "borrows"), ({"owns", "borrows"}, "borrows")):
        plan = plan_starts(allocations, [busy], promised, [owns, borrows], now=2, own=own)
        assert min(starts_of(plan), key=starts_of(plan).__getitem__) == first


gangs_ = st.builds(
    lambda members, seconds: (tuple(members), seconds),
    st.lists(demands(), min_size=1, max_size=2),
    st.sampled_from([10.0, 25.0, 60.0]),
)


@pytest.mark.parametrize(("exact", "most"), [(16, 192), (1, 3)], ids=["exact", "coarse"])
@pytest.mark.parametrize("by", [None, "fragmentation", "random"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=node_specs(),
    arriving=st.lists(st.tuples(gangs_, st.sampled_from([0.3, 0.8, 1.0])), max_size=7),
)
def test_a_planned_start_is_possible_and_never_delayed_by_backfill(
    nodes: list[NodeHardware],
    arriving: list[tuple[tuple[tuple[Demand, ...], float], float]],
    by: str | None,
    exact: int,
    most: int,
) -> None:
    """Work ends when it said or earlier; a gang comes every 5 s; promises only move forward."""
    allocations = Allocations(empty(nodes))
    running: list[Running] = []
    ends: dict[str, float] = {}
    waiting: list[Gang] = []
    promised: tuple[Running, ...] = ()
    for tick in range(len(arriving) * 2 + 1):
        now = 5.0 * tick
        for one in [each for each in running if ends[each.gang.name] <= now]:
            running.remove(one)
            allocations.give_gang(one)
        if tick < len(arriving):
            (members, seconds), part = arriving[tick]
            waiting.append(Gang(f"g{tick}", members, seconds, submitted=now))
            ends[f"g{tick}"] = part * seconds
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(timeline, "EXACT_ENDS", exact)
            patched.setattr(timeline, "MOST_MOMENTS", most)
            chosen = None if by is None else strategy(by, allocations.hardware)
            plan = plan_starts(allocations, running, promised, waiting, now, by=chosen, seed=tick)
        was = {one.gang.name: one.start for one in promised}
        for one in (*plan.starts, *plan.reservations):
            assert one.start <= max(now, was.get(one.gang.name, one.start))
        for name in was:
            assert name in {one.gang.name for one in (*plan.starts, *plan.reservations)}
        let_it_happen(allocations, running, (*plan.starts, *plan.reservations))
        for one in plan.starts:
            allocations.take_gang(one)
            ends[one.gang.name] += now
            running.append(one)
            waiting.remove(one.gang)
        promised = plan.reservations


class Stream:
    """Gangs come, wait and run; some longer than they said, and we ask at odd times."""

    def __init__(self, nodes: list[NodeHardware]) -> None:
        self.allocations = Allocations(empty(nodes))
        self.running: list[Running] = []
        self.ends: dict[str, float] = {}
        self.ran: dict[str, float] = {}
        self.waiting: list[Gang] = []
        self.promised: tuple[Running, ...] = ()

    def comes(self, one: Gang, ran: float) -> None:
        self.ran[one.name] = ran
        self.waiting = sorted([*self.waiting, one], key=lambda each: -each.priority)

    def asks(self, now: float) -> StartPlan:
        for one in [each for each in self.running if self.ends[each.gang.name] <= now]:
            self.running.remove(one)
            self.allocations.give_gang(one)
        return plan_starts(self.allocations, self.running, self.promised, self.waiting, now)

    def carries_out(self, plan: StartPlan, now: float) -> None:
        for one in plan.starts:
            self.allocations.take_gang(one)
            self.ends[one.gang.name] = now + self.ran[one.gang.name]
            self.running.append(one)
            self.waiting.remove(one.gang)
        self.promised = plan.reservations


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=node_specs(),
    arriving=st.lists(
        st.tuples(
            gangs_,
            st.sampled_from([0.3, 1.0, 1.05, 1.7]),
            st.sampled_from([0, 0, 0, 1]),
            st.sampled_from([0.2, 3.7, 5.0, 12.4]),
        ),
        max_size=9,
    ),
)
def test_a_start_is_moved_back_only_for_those_before_it_and_for_a_reason(
    nodes: list[NodeHardware],
    arriving: list[tuple[tuple[tuple[Demand, ...], float], float, int, float]],
) -> None:
    stream, now = Stream(nodes), 0.0
    for number, ((members, seconds), part, priority, pause) in enumerate([*arriving, *arriving]):
        now += pause
        if number < len(arriving):
            new_one = Gang(f"g{number}", members, seconds, submitted=now, priority=priority)
            stream.comes(new_one, part * seconds)
        plan = stream.asks(now)
        was = {one.gang.name: one.start for one in stream.promised}
        late = max((now - start for start in was.values()), default=0.0)
        overran = any(one.end <= now for one in stream.running)
        order = {one.name: turn for turn, one in enumerate(stream.waiting)}
        planned = sorted((*plan.starts, *plan.reservations), key=lambda one: order[one.gang.name])
        assert was.keys() <= {one.gang.name for one in planned}
        for turn, one in enumerate(planned):
            name = one.gang.name
            if one.start <= was.get(name, math.inf) + max(0.0, late) + 1e-6:
                continue
            before = planned[:turn]
            new = [each.gang.name for each in before if each.gang.name not in was]
            assert overran or any(other in plan.delays.get(name, "") for other in new)
            after_those = stream.allocations.copy()
            for each in before:
                if each.start <= now:
                    after_those.take_gang(each)
            begun = [each for each in before if each.start <= now]
            later = [each for each in before if each.start > now]
            line = Timeline(after_those, [*stream.running, *begun], later, now)
            assert line.earliest(one.gang, one.start) is None
        let_it_happen(stream.allocations, as_expected(stream.running, now), tuple(planned))
        stream.carries_out(plan, now)


def as_expected(running: list[Running], now: float) -> list[Running]:
    return [replace(one, end=timeline.expected_end(one, now)) for one in running]


def let_it_happen(
    allocations: Allocations, running: list[Running], planned: tuple[Running, ...]
) -> None:
    """All begin and end when they said; a take of what is not there raises."""
    trial = allocations.copy()
    ends = [(one.end, 0, number, one) for number, one in enumerate((*running, *planned))]
    begins = [(one.start, 1, number, one) for number, one in enumerate(planned)]
    for _, is_begin, _, one in sorted(ends + begins, key=lambda event: event[:3]):
        if is_begin:
            trial.take_gang(one)
        else:
            trial.give_gang(one)


def many(count: int) -> tuple[Allocations, list[Running]]:
    """A GPU each, with as many different ends."""
    allocations = cluster(*[8] * (count // 8))
    running = []
    for number in range(count):
        place = Placement(number // 8, (number % 8,))
        one = gang(f"r{number}", whole(), seconds=100.0 + number)
        running.append(Running(one, (place,), 0, one.seconds))
        allocations.take_gang(running[-1])
    return allocations, running


def test_thousands_of_running_gangs_need_little_memory_and_give_a_start_near_the_best() -> None:
    allocations, running = many(4000)
    waiting = [gang("big", *[whole(8)] * 64), gang("small", whole(8), seconds=5)]
    tracemalloc.start()
    plan = plan_starts(allocations, running, (), waiting, now=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    starts = {one.gang.name: one.start for one in plan.reservations}
    assert (
        peak < 30e6
    )  # a copy of these allocations is 1 MB: with one for each end it would be 4 GB
    assert 100 + 64 * 8 - 1 <= starts["big"] <= 100 + 1.3 * 64 * 8
    assert 107 <= starts["small"] <= 115


def test_a_far_planned_start_moves_forward_as_it_comes_near() -> None:
    allocations, running = many(400)
    waiting = [gang("big", *[whole(8)] * 20)]
    first = plan_starts(allocations, running, (), waiting, now=10).reservations
    best = 100.0 + 159
    assert best < first[0].start < 1.3 * best
    for one in running[:150]:
        allocations.give_gang(one)
    later = plan_starts(allocations, running[150:], first, waiting, now=249.5).reservations
    assert later[0].start == best


def placed_on(allocations: Allocations, where: int) -> Placement:
    placement = plan_gang(allocations, gang("busy", whole(2)))
    assert placement is not None
    assert placement[0].node == where
    allocations.take(placement[0], whole(2))
    return placement[0]


@pytest.mark.parametrize("seconds", [0.5, 1.0, 7.3, 10.0, 3600.0])
def test_the_expected_end_of_work_that_overran_moves_in_steps(seconds: float) -> None:
    """A planned start behind it would else be another one at every look."""
    one = Running(Gang("late", (whole(1),), seconds), (), 100.0, 100.0 + seconds)
    looks = [100.0 + seconds * (1 + part / 100) for part in range(401)]
    ends = [timeline.expected_end(one, now) for now in looks]
    assert ends == sorted(ends)
    for now, end in zip(looks, ends, strict=True):
        assert now < end <= now + max(10.0, 0.1 * (now - one.start)) + 1e-6
    assert len(set(ends)) <= 18  # 1.1 ** 17 is more than 5
    far = 100.0 + 1e6 * seconds
    assert far < timeline.expected_end(one, far) <= 1.1 * far + 10.0
