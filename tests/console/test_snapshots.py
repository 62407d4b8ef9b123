"""What the console reads again and again, and what it has of the last minutes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aliquot.console import snapshots
from aliquot.console.snapshots import HISTORY_SECONDS, ConsoleSnapshot, History, LiveSnapshots

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


def test_a_reading_that_fails_is_said_and_ends_no_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "ALONE_SECONDS", 0.001)

    class Machine:
        """A machine whose disk is full at its second reading."""

        count = 0

        def read(self) -> ConsoleSnapshot:
            self.count += 1
            if self.count == 2:
                raise OSError("No space left on device")
            return ConsoleSnapshot(self.count, {"notes": ["old"]}, {"items": []})

    async def example() -> list[list[str]]:
        machine: Any = Machine()
        live, notes = LiveSnapshots(machine), list[list[str]]()
        reading = asyncio.create_task(live.run())
        async with asyncio.timeout(60):
            while len(notes) < 3:
                await live.next()
                notes.append(live.newest.machine["notes"])
        reading.cancel()
        return notes

    first, second, third = asyncio.run(example())
    assert first == third == ["old"]
    assert second == ["old", "the console cannot read the machine now: No space left on device"]
