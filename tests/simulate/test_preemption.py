"""Preemption over time: quotas and priorities act at once, beside promises and at limits."""

from __future__ import annotations

from aliquot.placement.core.demand import Gang, whole
from aliquot.placement.core.snapshot import NodeHardware
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.simulate.engine import simulate
from aliquot.simulate.trace import Arrival
from aliquot.simulate.world import Fate

FOUR_GPUS = [NodeHardware("n", 4)]
DAY = 86_400.0


def job(name: str, gpus: int, came: float, seconds: float, **more: object) -> Arrival:
    one = Gang(name, (whole(gpus),), seconds, submitted=came, **more)  # type: ignore[arg-type]
    return Arrival(one, seconds)


def fates(arrivals: list[Arrival], *queues: Queue) -> dict[str, Fate]:
    run = simulate(FOUR_GPUS, arrivals, queues={one.name: one for one in queues})
    return {fate.gang.name: fate for fate in run.fates}


def test_a_borrowers_planned_start_does_not_delay_a_reclaim() -> None:
    """The guest's share is the smaller one, and its turn comes first; the quota still counts."""
    found = fates(
        [
            job("o1", 2, 0, DAY, queue="own"),
            job("g", 4, 1, 1000, queue="guest"),
            job("o2", 2, 2, 2 * DAY, queue="own"),
        ],
        Queue("own", quota=Bound(4000)),
        Queue("guest"),
    )
    assert (found["o2"].start, found["g"].start) == (2, 2 * DAY + 2)
    assert found["o2"].messages == ((2, "starts before g"),)
    [(_, told)] = found["g"].messages
    assert told.startswith("its planned start was withdrawn for o2: queue guest borrows from")


def test_nothing_starts_and_is_evicted_at_the_same_moment() -> None:
    found = fates(
        [job("g", 4, 0, 1000, queue="guest"), job("o", 2, 0, 10, queue="own")],
        Queue("own", quota=Bound(2000)),
        Queue("guest"),
    )
    assert (found["o"].start, found["g"].start) == (0, 10)
    assert (found["g"].evictions, found["g"].messages) == (0, ())


def test_a_borrower_is_not_started_where_another_has_to_give_back() -> None:
    """One GPU is free when both come: the owner gets it, and one more from who borrows."""
    found = fates(
        [
            *(job(f"g{i}", 1, i, DAY, queue="guest") for i in range(3)),
            job("new", 1, 100, 10, queue="guest"),
            job("o", 2, 100, 1000, queue="own"),
        ],
        Queue("own", quota=Bound(2000)),
        Queue("guest"),
    )
    assert found["o"].start == 100
    assert [found[name].evictions for name in ("g0", "g1", "g2", "new")] == [0, 0, 1, 0]


def test_at_a_limit_priority_still_acts() -> None:
    found = fates(
        [
            job("low", 4, 0, 10_000, queue="q"),
            job("urgent", 4, 1, 10, queue="q", priority=9),
        ],
        Queue("q", limit=Bound(4000)),
    )
    assert (found["urgent"].start, found["low"].start) == (1, 11)


def test_without_queues_a_higher_priority_goes_before_lower_ones() -> None:
    found = fates([job("low", 4, 0, 10_000), job("urgent", 4, 1, 10, priority=9)])
    assert (found["urgent"].start, found["low"].start) == (1, 11)
    assert found["low"].messages == ((1, "preempted for urgent, whose priority 9 is above 0"),)
