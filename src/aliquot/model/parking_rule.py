"""When the memory of an idle program leaves its GPU: `10m`, `10m,always` or `never`."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.errors import InvalidValueError
from aliquot.model.units import format_duration, parse_duration

ALWAYS = "always"
_NEVER = "never"
_LONGEST_SECONDS = 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ParkingRule:
    """After so many seconds without GPU work: when somebody wants the memory, or `always`.

    No seconds, which is false: never, whatever the queue says.
    """

    seconds: float
    always: bool = False

    def __post_init__(self) -> None:
        if self.seconds != 0 and not 1 <= self.seconds <= _LONGEST_SECONDS:
            raise _invalid(self.seconds)

    def __bool__(self) -> bool:
        return self.seconds > 0

    def __str__(self) -> str:
        if not self:
            return _NEVER
        return f"{format_duration(self.seconds)}{f', {ALWAYS}' if self.always else ''}"


NEVER = ParkingRule(0.0)


def _invalid(seconds: float) -> InvalidValueError:
    return InvalidValueError(
        f"--park-after cannot be {seconds:g} s",
        "Write a second or more, and at most 365 days: 10m, 2h, 1h30m.",
    )


def parse_parking_rule(text: str) -> ParkingRule:
    """Read `10m`, `10m,always` or `never`."""
    if text.strip().lower() == _NEVER:
        return NEVER
    time, comma, word = text.partition(",")
    if comma and word.strip().lower() != ALWAYS:
        raise InvalidValueError(
            f"{text!r} does not say when an idle program is parked",
            f"Write a duration, and {ALWAYS} after a comma if nobody need wait: 10m, 10m,{ALWAYS}.",
        )
    rule = ParkingRule(parse_duration(time), bool(comma))
    if not rule:
        raise _invalid(rule.seconds)
    return rule
