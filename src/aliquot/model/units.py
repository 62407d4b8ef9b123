"""Amounts of memory and shares of compute time, as people write and read them.

An amount is a number of bytes, or a percentage of a GPU's memory. `G` means GiB, because GPU memory
is sold and shown in powers of two. Only `GB` is a power of ten.

A duration is a number of seconds, or numbers with units: `90`, `10m`, `1h30m`, `30d`;
or as Slurm writes it: `1:30:00`, `2-12:00:00`.

A share is a whole percentage of a GPU's compute time, or `equal`: an equal part of what the others
leave, which is the number 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from aliquot.model.errors import InvalidValueError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

EQUAL = "equal"
DURATIONS = "90 (seconds), 10m, 2h, 1h30m, 30d or 1:30:00"
EXAMPLES = "8GiB, 8G (the same), 8192MiB, 50%"

_FACTORS = {
    "": 1,
    "b": 1,
    **dict.fromkeys(("k", "ki", "kib"), KIB),
    **dict.fromkeys(("m", "mi", "mib"), MIB),
    **dict.fromkeys(("g", "gi", "gib"), GIB),
    **dict.fromkeys(("t", "ti", "tib"), TIB),
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_FORM = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*|%)", re.ASCII)
_SHARE = re.compile(r"(?P<percent>[0-9]{1,3})\s*%?", re.ASCII)
_DURATION = re.compile(
    r"(?P<seconds>[0-9]+(?:\.[0-9]+)?)"
    r"|(?:[0-9]+(?:\.[0-9]+)?\s*d(?:ays?)?\s*)?"
    r"(?:[0-9]+(?:\.[0-9]+)?\s*h(?:ours?)?\s*)?"
    r"(?:[0-9]+(?:\.[0-9]+)?\s*m(?:in(?:utes?)?)?\s*)?"
    r"(?:[0-9]+(?:\.[0-9]+)?\s*s(?:ec(?:onds?)?)?)?",
    re.ASCII,
)
# `10:00` is refused: minutes and seconds for Slurm, hours and minutes for many people.
_CLOCK = re.compile(r"(?:(?P<d>[0-9]+)-)?(?P<h>[0-9]+):(?P<m>[0-5][0-9]):(?P<s>[0-5][0-9])")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_LONGEST = 32
_SMALLEST = MIB
_LARGEST = 1 << 60


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of memory: bytes, or a percentage of a GPU's memory."""

    bytes: int | None = None
    percent: Fraction | None = None

    def of(self, total: int) -> int:
        """The bytes this amount means on a GPU of `total` bytes."""
        if self.percent is not None:
            return int(total * self.percent / 100)
        assert self.bytes is not None  # noqa: S101 - one of the two, by parse_amount
        return self.bytes

    def __str__(self) -> str:
        if self.percent is not None:
            return f"{float(self.percent):g}%"
        return format_bytes(self.bytes or 0)


def parse_amount(text: str) -> Amount:
    """Read `8GiB`, `8G`, `8192MiB`, `50%` or plain bytes."""
    match = _FORM.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise InvalidValueError(
            f"{text!r} is not an amount of memory", f"Write for example {EXAMPLES}."
        )
    number, unit = Fraction(match["number"]), match["unit"].lower()
    if unit == "%":
        return _percent(text, number)
    if unit not in _FACTORS:
        raise InvalidValueError(
            f"{text!r}: unknown unit {match['unit']!r}", f"Write for example {EXAMPLES}."
        )
    return _bytes(text, int(number * _FACTORS[unit]))


def parse_host_memory(text: str, option: str) -> int:
    """The bytes of an amount of the host's memory, which is no percentage of a GPU's."""
    amount = parse_amount(text).bytes
    if amount is None:
        raise InvalidValueError(
            f"{option} {text} is not an amount of the host's memory", "Give one, for example 64GiB."
        )
    return amount


def _percent(text: str, number: Fraction) -> Amount:
    if not 0 < number <= 100:
        raise InvalidValueError(
            f"{text!r} is not a percentage of a GPU", "Write more than 0% and at most 100%."
        )
    return Amount(percent=number)


def _bytes(text: str, count: int) -> Amount:
    if count < _SMALLEST:
        raise InvalidValueError(
            f"{text!r} is {count} bytes, and a slice has at least {format_bytes(_SMALLEST)}",
            f"Write for example {EXAMPLES}.",
        )
    if count > _LARGEST:
        raise InvalidValueError(
            f"{text!r} is more memory than any GPU has", f"Write for example {EXAMPLES}."
        )
    return Amount(bytes=count)


def format_bytes(count: int) -> str:
    """Bytes for a person, rounded down to at most one decimal.

    `parse_amount` reads the result, as at most `count` bytes.
    """
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= factor:
            whole, tenth = divmod(count * 10 // factor, 10)
            return f"{whole} {unit}" if tenth == 0 else f"{whole}.{tenth} {unit}"
    return f"{count} B"


def format_count(count: int, noun: str) -> str:
    """A number of things for a person: `1 grant`, `2 grants`, `2 processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{ending}"


def parse_duration(text: str) -> float:
    """Read `90` (seconds), `10m`, `2h`, `1h30m`, `1.5h`, `30d` or `1:30:00` as seconds."""
    word = text.strip().lower()
    if len(word) <= _LONGEST and (clock := _CLOCK.fullmatch(word)):
        return sum(float(clock[unit] or 0) * size for unit, size in _SECONDS.items())
    match = _DURATION.fullmatch(word) if len(word) <= _LONGEST else None
    if match is None or not word:
        raise InvalidValueError(f"{text!r} is not a duration", f"Write for example {DURATIONS}.")
    if match["seconds"]:
        return float(match["seconds"])
    return sum(
        float(number) * _SECONDS[unit[0]]
        for number, unit in re.findall(r"([0-9.]+)\s*([a-z]+)", word)
    )


def format_duration(seconds: float) -> str:
    """A duration for a person, in its two largest units: `45 s`, `2 h`, `1 h 30 min`, `3 d 4 h`."""
    left = round(max(0.0, seconds))
    units = [(86400, "d"), (3600, "h"), (60, "min"), (1, "s")]
    at = next((at for at, (size, _) in enumerate(units) if left >= size), len(units) - 1)
    words: list[str] = []
    for size, unit in units[at : at + 2]:
        count, left = divmod(left, size)
        if count or not words:
            words.append(f"{count} {unit}")
    return " ".join(words)


def parse_share(text: str) -> int:
    """Read `30`, `30%` or `equal` as percent; `equal` is 0."""
    if text.strip().lower() == EQUAL:
        return 0
    match = _SHARE.fullmatch(text.strip())
    if match is None or not 1 <= int(match["percent"]) <= 100:
        raise InvalidValueError(
            f"{text!r} is not a share of a GPU's compute time",
            f"Write --compute with 1 to 100 (whole percent), or {EQUAL} for an equal part of what"
            " the others leave.",
        )
    return int(match["percent"])


def format_share(percent: int) -> str:
    """A share for a person."""
    return f"{percent}%" if percent else EQUAL
