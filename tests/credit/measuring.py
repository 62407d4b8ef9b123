"""Measuring shares while every program takes its turns.

The arbiter lets the others continue beside a program that is late, and one that was late three
times takes no turns for 10 s (docs/compute.md). A machine that takes its processors away for some
50 ms makes programs late, and charges whoever held the GPU just then. So wrong shares count only
if nobody was late and the machine did not stand still; else they are measured again, for 40 s at
most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import support

PATIENCE_SECONDS = 40.0
KEPT_BUSY = 0.85
STALL_SECONDS = 0.015  # between two looks, which are 5 ms apart


@dataclass(frozen=True)
class Shares:
    """What tenants got, in the order of the call: ns of GPU work, and ns of holding the GPU."""

    busy_ns: list[int]
    used_ns: list[int]
    late: int  # how often the arbiter found one of them late
    in_turn: bool  # all took turns, at the beginning and at the end
    stalled: bool  # this machine did not run the test for a while, so maybe not the programs

    @property
    def undisturbed(self) -> bool:
        """Whether the shares must be right."""
        return self.in_turn and not self.late and not self.stalled and self.kept_busy

    @property
    def gpu(self) -> list[float]:
        """Percent of the GPU work of all of them."""
        return _percent(self.busy_ns)

    @property
    def arbiter(self) -> list[float]:
        """Percent of the time that all of them held the GPU."""
        return _percent(self.used_ns)

    @property
    def kept_busy(self) -> bool:
        """Whether this machine was fast enough for every program to use the time it held."""
        pairs = zip(self.busy_ns, self.used_ns, strict=True)
        return all(busy > KEPT_BUSY * used for busy, used in pairs)

    def is_near(self, asked: Sequence[float], within: float) -> bool:
        """Whether each got what it asked for, by the arbiter's clock, in percent."""
        return all(abs(got - part) <= within for got, part in zip(self.arbiter, asked, strict=True))


@dataclass(frozen=True)
class Figures:
    """What tenants got so far, and whether all of them take turns now."""

    busy_ns: list[int]
    used_ns: list[int]
    late: int
    in_turn: bool


def measure(
    read: Callable[[], Figures], busy: Callable[[], int], gpu_seconds: float, settled: float = 0.0
) -> Shares:
    """The shares of `gpu_seconds`, after `settled` seconds for the turns to settle; `busy` is the
    GPU time in ns of all together."""
    first = read()
    pauses = [spend(busy, settled)]
    begin = read()
    pauses.append(spend(busy, gpu_seconds))
    end = read()
    return Shares(
        busy_ns=[then - now for now, then in zip(begin.busy_ns, end.busy_ns, strict=True)],
        used_ns=[then - now for now, then in zip(begin.used_ns, end.used_ns, strict=True)],
        late=end.late - first.late,
        in_turn=first.in_turn and end.in_turn,
        stalled=max(pauses) > STALL_SECONDS,
    )


def spend(busy: Callable[[], int], gpu_seconds: float) -> float:
    """Wait until `busy` has grown by that much; the longest pause between two looks, in seconds."""
    had = busy()
    return wait(lambda: busy() - had >= gpu_seconds * 1e9)


def wait(predicate: Callable[[], bool]) -> float:
    """Wait until it holds; the longest pause between two looks, in seconds."""
    looks = [time.monotonic()]

    def look() -> bool:
        looks.append(time.monotonic())
        return predicate()

    support.wait_until(look)
    return max(later - earlier for earlier, later in pairwise(looks))


def until_right(
    is_right: Callable[[Shares], bool],
    measure: Callable[[], Shares],
    in_turn: Callable[[], bool],
) -> Shares:
    """The first measurement that is right or that nothing disturbed, and the last one at the end.

    `in_turn`: whether all take turns now.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        while not in_turn() and time.monotonic() < deadline:
            time.sleep(0.05)
        shares = measure()
        if is_right(shares) or shares.undisturbed or time.monotonic() > deadline:
            return shares


def _percent(parts: list[int]) -> list[float]:
    return [100 * part / (sum(parts) or 1) for part in parts]
