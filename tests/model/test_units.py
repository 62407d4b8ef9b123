from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model import (
    Amount,
    format_bytes,
    format_duration,
    format_share,
    parse_amount,
    parse_duration,
    parse_share,
)
from aliquot.model.errors import InvalidValueError
from support import GIB, MIB


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GiB", 8 * GIB),
        ("8G", 8 * GIB),
        ("8Gi", 8 * GIB),
        ("8gib", 8 * GIB),
        ("8192MiB", 8 * GIB),
        ("8192M", 8 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        (" 8 GiB ", 8 * GIB),
        ("2048KiB", 2 * MIB),
        ("1TiB", 1024 * GIB),
        ("8GB", 8 * 10**9),
        ("8589934592", 8 * GIB),
        ("8589934592B", 8 * GIB),
    ],
)
def test_amounts_that_people_write(text: str, expected: int) -> None:
    assert parse_amount(text) == Amount(bytes=expected)


def test_a_part_in_percent_is_of_the_gpu_it_is_asked_of() -> None:
    half = parse_amount("50%")
    assert half == Amount(percent=Fraction(50))
    assert half.of(80 * GIB) == 40 * GIB
    assert half.of(24 * GIB) == 12 * GIB
    assert parse_amount("33.3 %").of(1000) == 333


@pytest.mark.parametrize("text", ["", "GiB", "8X", "-8GiB", "8GiB8", "1e9", "٨GiB", "0x10", "8,5G"])
def test_what_is_no_amount_is_named_with_examples(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_amount(text)
    assert repr(text) in caught.value.message
    assert "8GiB" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["0", "8", "1023KiB", "0%", "101%", "0GiB", "9999999TiB"])
def test_amounts_that_no_slice_can_have(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_amount(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (8 * GIB, "8 GiB"),
        (5 * GIB // 2, "2.5 GiB"),
        (81559 * MIB, "79.6 GiB"),
        (518 * MIB, "518 MiB"),
        (GIB - 1, "1023.9 MiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(min_value=MIB, max_value=1 << 59))
def test_a_printed_size_can_be_parsed_and_is_never_too_large(count: int) -> None:
    read = parse_amount(format_bytes(count)).of(0)
    assert read <= count
    assert count - read <= count / 10


@given(st.text(max_size=40))
def test_any_text_is_an_amount_or_a_clear_error(text: str) -> None:
    try:
        amount = parse_amount(text)
    except InvalidValueError as error:
        assert repr(text) in error.message
    else:
        assert amount.of(80 * GIB) >= 0


@given(st.integers(1, 100), st.integers(1, 1 << 50))
def test_parts_never_add_up_to_more_than_the_whole(parts: int, total: int) -> None:
    part = Amount(percent=Fraction(100, parts))
    assert part.of(total) * parts <= total


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 30), ("30%", 30), (" 30 % ", 30), ("1", 1), ("100", 100), ("equal", 0), ("Equal", 0)],
)
def test_shares(text: str, expected: int) -> None:
    assert parse_share(text) == expected


@pytest.mark.parametrize("text", ["", "0", "101", "-1", "12.5", "half", "30 GiB", "%", "1e1", "٣٠"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_share(text)
    assert repr(text) in caught.value.message
    assert "equal" in str(caught.value.hint)


@given(st.integers(0, 100))
def test_a_share_that_is_printed_can_be_read(percent: int) -> None:
    assert parse_share(format_share(percent)) == percent


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("90", 90, "1 min 30 s"),
        ("45s", 45, "45 s"),
        ("10m", 600, "10 min"),
        ("2h", 7200, "2 h"),
        ("1h30m", 5400, "1 h 30 min"),
        ("1.5 h", 5400, "1 h 30 min"),
        ("30d", 30 * 86400, "30 d"),
        ("1 day 2 hours", 93600, "1 d 2 h"),
        ("0", 0, "0 s"),
        ("00:10:00", 600, "10 min"),
        ("36:00:05", 129605, "1 d 12 h"),
        ("2-12:00:00", 216000, "2 d 12 h"),
    ],
)
def test_durations_are_read_and_shown(text: str, seconds: float, shown: str) -> None:
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    "text",
    ["", " ", "h", "-5", "10x", "1m1h", "1e9", "5 5", "1" * 40, "10:00", "1:60:00", "1-", "1-2"],
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_duration(text)
