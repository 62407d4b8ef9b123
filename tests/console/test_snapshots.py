"""What the console has of the last minutes."""

from __future__ import annotations

from aliquot.console.snapshots import HISTORY_SECONDS, History

DAY = 86400


def test_the_last_minutes_stay_so_long_when_the_clock_is_set_back() -> None:
    now, history = 1_800_000_000.0, History()
    for second in range(100):
        history.add(now + second, 1, None)
    for second in range(2000):
        history.add(now - DAY + second, 2, None)
    times = [at for at, _, _ in history.points]
    assert times == sorted(times)
    assert len(times) == HISTORY_SECONDS + 1
    assert times[-1] == now - DAY + 1999
