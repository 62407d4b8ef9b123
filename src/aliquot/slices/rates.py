"""What happened between two statuses of an arbiter: differences of its counters. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aliquot.model import ComputeUse, Grant
    from aliquot.slices.arbiter_status import Status

Key = tuple[str, float, str]


@dataclass(frozen=True, slots=True)
class Rates:
    """What a slice got; None if there is no earlier status."""

    got_ratio: float | None = None
    handovers_per_second: float | None = None


def key(grant: Grant, gpu_uuid: str) -> Key:
    """Identifies a slice, also against a later grant of the same name."""
    return grant.name, grant.created, gpu_uuid


def slice_rates(before: Status | None, after: Status) -> dict[Key, Rates]:
    """What each slice got since the earlier status, or else in about the last second."""
    earlier = {} if before is None else _slices(before)
    seconds = _seconds(before, after)
    return {
        which: _rates(earlier.get(which), now, seconds) for which, now in _slices(after).items()
    }


def credit_cpu_ratio(before: Status | None, after: Status) -> float | None:
    """The share of one processor core that the credit thread used since the earlier status."""
    seconds = _seconds(before, after)
    if before is None or seconds is None:
        return None
    return _grown(before.credit_cpu_seconds, after.credit_cpu_seconds, seconds)


def _slices(status: Status) -> dict[Key, ComputeUse]:
    return {
        key(grant, part.gpu_uuid): compute
        for grant in status.grants
        for part, compute in zip(grant.slices, grant.compute, strict=True)
    }


def _seconds(before: Status | None, after: Status) -> float | None:
    """The time between the two; None if there is no earlier status."""
    return after.now - before.now if before is not None and after.now > before.now else None


def _rates(before: ComputeUse | None, now: ComputeUse, seconds: float | None) -> Rates:
    if before is None or seconds is None:
        return Rates(got_ratio=now.got_ratio)
    return Rates(
        got_ratio=_grown(before.used_seconds, now.used_seconds, seconds),
        handovers_per_second=_grown(before.handovers, now.handovers, seconds),
    )


def _grown(before: float, now: float, seconds: float) -> float | None:
    """Growth per second; None if the counter was reset, because the arbiter restarted."""
    return (now - before) / seconds if now >= before else None
