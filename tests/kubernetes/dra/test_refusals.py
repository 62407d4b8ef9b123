"""How long pods with claims wait for what failed."""

from __future__ import annotations

from aliquot.kubernetes.dra.refusals import LONGEST_BAR, PodWait


def test_a_pod_that_fails_for_weeks_waits_no_longer_than_the_longest_time() -> None:
    known = PodWait()
    for now in range(2000):
        known = known.fail(now).bar("n1", now)
    assert known.later == known.barred["n1"].until == 1999 + LONGEST_BAR
