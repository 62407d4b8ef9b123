"""When the memory of an idle program leaves its GPU: `10m`, or `10m,always`."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.errors import InvalidValueError
from aliquot.model.units import format_duration, parse_duration

ALWAYS = "always"
_LONGEST_SECONDS = 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ParkingRule:
    """After so many seconds without GPU work: when somebody wants the memory, or `always`."""

    seconds: float
    always: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= _LONGEST_SECONDS:
            raise InvalidValueError(
                f"--park-after cannot be {self.seconds:g} s",
                "Write a second or more, and at most 365 days: 10m, 2h, 1h30m.",
            )

    def __str__(self) -> str:
        return f"{format_duration(self.seconds)}{f', {ALWAYS}' if self.always else ''}"


def parse_parking_rule(text: str) -> ParkingRule:
    """Read `10m` or `10m,always`."""
    time, comma, word = text.partition(",")
    if comma and word.strip().lower() != ALWAYS:
        raise InvalidValueError(
            f"{text!r} does not say when an idle program is parked",
            f"Write a duration, and {ALWAYS} after a comma if nobody need wait: 10m, 10m,{ALWAYS}.",
        )
    return ParkingRule(parse_duration(time), bool(comma))
