"""Times as Kubernetes objects and people write them. Seconds since the epoch inside."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(time: float) -> str:
    """A time as an object's field holds it."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_at(text: str | None) -> float | None:
    """The time in an object's field; None if the field is empty or invalid."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def clock(time: float, now: float) -> str:
    """A time for people, to the minute: `14:05 UTC`, with the day if it is far away."""
    form = "%H:%M" if abs(time - now) < 20 * 3600 else "%d %b %H:%M"
    return f"{datetime.fromtimestamp(time, UTC).strftime(form)} UTC"
