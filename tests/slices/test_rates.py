from __future__ import annotations

from dataclasses import replace

from aliquot.model import ComputeUse, Grant
from aliquot.slices.arbiter_status import Status
from aliquot.slices.rates import Rates, credit_cpu_ratio, slice_rates
from support import GIB, make_grant, make_shared


def look(now: float, *grants: Grant, cpu: float = 0.0) -> Status:
    return Status(1, (make_shared(),), grants, {}, now=now, credit_cpu_seconds=cpu)


def using(used: float, handovers: int = 0, **more: float) -> Grant:
    compute = ComputeUse(used_seconds=used, handovers=handovers, **more)  # type: ignore[arg-type]
    return replace(make_grant("a", gpu0=GIB), compute=(compute,))


def only(rates: dict[tuple[str, float, str], Rates]) -> Rates:
    (one,) = rates.values()
    return one


def test_rates_are_differences_of_two_statuses() -> None:
    rates = slice_rates(look(10.0, using(3.0, 100)), look(12.0, using(3.5, 160)))
    assert only(rates) == Rates(got_ratio=0.25, handovers_per_second=30.0)


def test_the_first_status_gives_the_recent_share() -> None:
    lately = using(9.0, recent_used_seconds=0.3, recent_seconds=1.0)
    assert only(slice_rates(None, look(10.0, lately))) == Rates(got_ratio=0.3)
    assert only(slice_rates(look(9.0), look(10.0, lately))) == Rates(got_ratio=0.3)


def test_a_later_grant_of_the_same_name_starts_over() -> None:
    earlier = replace(using(5.0), created=1.0)
    later = replace(using(6.0), created=2.0)
    assert only(slice_rates(look(10.0, earlier), look(11.0, later))) == Rates()


def test_a_restarted_arbiter_gives_no_negative_rates() -> None:
    before, after = look(10.0, using(5.0, 9), cpu=3.0), look(11.0, using(0.1, 1), cpu=0.1)
    assert only(slice_rates(before, after)) == Rates()
    assert credit_cpu_ratio(before, after) is None


def test_the_cost_of_the_credit_thread() -> None:
    assert credit_cpu_ratio(look(10.0, cpu=1.0), look(12.0, cpu=1.1)) == (1.1 - 1.0) / 2
    assert credit_cpu_ratio(None, look(10.0, cpu=1.0)) is None
    assert credit_cpu_ratio(look(10.0), look(10.0)) is None
