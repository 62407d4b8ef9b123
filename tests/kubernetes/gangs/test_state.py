"""The values that a gang's state consists of: requests to elastic jobs, pauses, places."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.cluster.membership import GangKey
from aliquot.kubernetes.gangs.lifecycle import (
    Deadlines,
    Observation,
    advance,
    ask_elastic,
    give_up,
    reserve,
)
from aliquot.kubernetes.gangs.state import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    GangState,
    MemberPlace,
    Reservation,
    Retry,
)

NOW = 1000.0
GANG = GangState(GangKey("ns", "g"))
PLACE, OTHER = MemberPlace("n0", ()), MemberPlace("n1", ())


def test_the_first_request_to_elastic_jobs_sets_the_deadline() -> None:
    gang = ask_elastic(GANG, {"ns/a": 10.0}, NOW)
    gang = ask_elastic(gang, {"ns/b": 300.0}, NOW + 9)
    assert not gang.elastic.has_expired(NOW + 9)
    assert gang.elastic.has_expired(NOW + 10)
    gang = replace(gang, retry=gang.retry.expire(NOW + 1e6))
    assert gang.elastic.has_expired(NOW + 1e6)
    gang = reserve(gang, {}, NOW + 1e6, reason="", topology="").gang
    assert not gang.elastic.has_expired(NOW + 1e6)


def test_pauses_grow_until_the_gang_has_started() -> None:
    gang, pauses = GANG, []
    for _ in range(3):
        gang = give_up(gang, "nobody came", NOW).gang
        pauses.append(gang.retry.not_before - NOW)
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    seen = frozenset({"uid-0"})
    bound = Observation(bound=seen, active=seen, wanted=1)
    gang = advance(gang, bound, Deadlines(), NOW).gang
    assert gang.phase is Phase.BOUND
    gang = give_up(gang, "nobody came", NOW).gang
    assert gang.retry.not_before - NOW == FIRST_PAUSE


@given(tries=st.integers(0, 5000))
def test_pauses_are_bounded_after_any_number_of_tries(tries: int) -> None:
    before, after = Retry(tries=tries).back_off(NOW), Retry(tries=tries + 1).back_off(NOW)
    assert FIRST_PAUSE <= before.not_before - NOW <= after.not_before - NOW <= LONGEST_PAUSE


@pytest.mark.parametrize(
    ("reservation", "is_open"),
    [
        (Reservation({"a": PLACE}, {"a": PLACE}), True),
        (Reservation({"a": PLACE}), False),
        (Reservation({"a": PLACE}, {"a": OTHER}), False),
        (Reservation({"a": PLACE}, {"a": PLACE}, victims=frozenset({"v"})), False),
        (Reservation({}, {"a": PLACE}), False),
    ],
    ids=["written", "not written", "another place written", "waits for a victim", "no place"],
)
def test_a_place_opens_when_it_is_written_and_free(
    reservation: Reservation, *, is_open: bool
) -> None:
    assert reservation.is_open("a") is is_open
