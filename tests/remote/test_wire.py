"""The bytes of a client are read by one function, which refuses what no client sends."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aliquot.remote import wire
from aliquot.remote.wire import MessageKind, Parser, Tag, WireError

FLOAT32, INT64 = 6, 4


def layout(number: int, sizes: Iterable[int], strides: Iterable[int], offset: int = 0) -> bytes:
    return struct.pack("<I", number) + wire.shape_bytes(
        FLOAT32, tuple(sizes), tuple(strides), offset
    )


def text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


def signature(number: int, name: str, *arguments: bytes) -> bytes:
    head = struct.pack("<I", number) + text(name) + text("Tensor")
    return head + struct.pack("<I", len(arguments)) + b"".join(arguments)


TENSOR = struct.pack("<BI", Tag.TENSOR, 0)
FLOAT = bytes([Tag.FLOAT])
CALL = struct.pack("<IQIIQQd", 0, 9, 2, 1, 5, 6, 2.5)
# A session as a client would send it.
SESSION = [
    (MessageKind.CONTROL, json.dumps({"ask": "hello"}).encode()),
    (MessageKind.FLAGS, struct.pack("<Q", 0b1 | FLOAT32 << 16)),
    (MessageKind.LAYOUT, layout(0, (2, 3), (3, 1))),
    (MessageKind.HOST, struct.pack("<QI", 5, 0) + bytes(24)),
    (MessageKind.SIGNATURE, signature(0, "aten::add", TENSOR, TENSOR, FLOAT)),
    (MessageKind.CALL_WAIT, CALL),
    (MessageKind.READ, struct.pack("<QI", 9, 0)),
    (MessageKind.FREE, struct.pack("<QQ", 5, 9)),
    (MessageKind.RESET, b""),
    (MessageKind.LAYOUT, layout(0, (), ())),
]


def parse(messages: Iterable[tuple[MessageKind, bytes]]) -> list[wire.Message]:
    parser = Parser()
    return [parser.message(kind, memoryview(body)) for kind, body in messages]


def parser_after(count: int) -> Parser:
    parser = Parser()
    for kind, body in SESSION[:count]:
        parser.message(kind, memoryview(body))
    return parser


def test_a_session_is_read_as_checked_values() -> None:
    made = parse(SESSION)
    assert made[0] == wire.ControlMessage({"ask": "hello"})
    assert isinstance(made[1], wire.Flags)
    assert made[1].settings["cudnn"]
    assert not made[1].settings["deterministic"]
    written = made[3]
    assert isinstance(written, wire.Write)
    assert (written.storage, written.on_host, len(written.data)) == (5, True, 24)
    call = made[5]
    assert isinstance(call, wire.Call)
    assert (call.first, call.storages, call.numbers, call.wait) == (9, (5, 6), (2.5,), True)
    assert call.signature.operator == "aten::add"
    assert [one.layout.sizes for one in call.signature.slots] == [(2, 3), (2, 3)]
    assert made[7] == wire.Free((5, 9))


@pytest.mark.parametrize(
    ("sizes", "strides", "offset", "reach"),
    [
        ((), (), 0, 4),
        ((2, 3), (3, 1), 0, 24),
        ((2, 3), (1, 2), 5, 44),
        ((4,), (0,), 7, 32),
        ((0, 3), (3, 1), 1000, 0),
    ],
)
def test_a_layout_knows_how_many_bytes_its_storage_must_have(
    sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, reach: int
) -> None:
    messages = [
        (MessageKind.LAYOUT, layout(0, sizes, strides, offset)),
        (MessageKind.READ, struct.pack("<QI", 1, 0)),
    ]
    read = parse(messages)[1]
    assert isinstance(read, wire.Read)
    assert read.layout.reach == reach


@pytest.mark.parametrize(
    ("before", "kind", "body"),
    [
        pytest.param(0, MessageKind.LAYOUT, layout(0, (-1,), (1,)), id="a negative size"),
        pytest.param(0, MessageKind.LAYOUT, layout(0, (2,), (-1,)), id="a negative stride"),
        pytest.param(0, MessageKind.LAYOUT, layout(0, (2,), (1,), -1), id="a negative offset"),
        pytest.param(
            0, MessageKind.LAYOUT, layout(0, (1 << 40, 1 << 40), (1, 1)), id="an overflow"
        ),
        pytest.param(0, MessageKind.LAYOUT, layout(0, (2,), (1 << 62,)), id="a far stride"),
        pytest.param(
            0, MessageKind.LAYOUT, layout(1, (2,), (1,)), id="a number that is not the next"
        ),
        pytest.param(0, MessageKind.LAYOUT, b"\0\0\0\0\x63\0" + bytes(8), id="an unknown dtype"),
        pytest.param(0, MessageKind.LAYOUT, layout(0, (2,), (1,)) + b"x", id="too many bytes"),
        pytest.param(3, MessageKind.HOST, struct.pack("<QI", 5, 0) + bytes(23), id="too few bytes"),
        pytest.param(
            3, MessageKind.WRITE, struct.pack("<QI", 5, 1) + bytes(24), id="an unknown layout"
        ),
        pytest.param(3, MessageKind.SIGNATURE, signature(0, "a", bytes([99])), id="an unknown tag"),
        pytest.param(
            3,
            MessageKind.SIGNATURE,
            signature(0, "a", struct.pack("<BI", Tag.LIST, 1 << 31)),
            id="a list longer than its message",
        ),
        pytest.param(
            3,
            MessageKind.SIGNATURE,
            signature(0, "a", struct.pack("<BI", Tag.LIST, 1) * 3 + b"\0"),
            id="lists too deep",
        ),
        pytest.param(5, MessageKind.CALL, CALL[:-1], id="a call that is cut off"),
        pytest.param(5, MessageKind.CALL, struct.pack("<IQIIQ", 0, 9, 1, 0, 5), id="other counts"),
        pytest.param(9, MessageKind.CALL, CALL, id="a signature that was forgotten"),
        pytest.param(0, MessageKind.FREE, bytes(7), id="half an id"),
        pytest.param(
            0, MessageKind.FLAGS, struct.pack("<Q", FLOAT32 << 16 | 1 << 15), id="unknown bits"
        ),
        pytest.param(
            0, MessageKind.FLAGS, struct.pack("<Q", INT64 << 16), id="integers by default"
        ),
        pytest.param(0, MessageKind.CONTROL, b"[1]", id="no object"),
        pytest.param(0, MessageKind.CONTROL, b"[" * 100_000, id="JSON too deep"),
        pytest.param(0, MessageKind.CONTROL, b"\xff", id="no text"),
        pytest.param(0, MessageKind.RESET, b"x", id="a reset with a body"),
    ],
)
def test_what_no_client_sends_is_refused(before: int, kind: MessageKind, body: bytes) -> None:
    parser = parser_after(before)
    with pytest.raises(WireError):
        parser.message(kind, memoryview(body))


@pytest.mark.parametrize(
    ("kind", "length"),
    [(0, 0), (99, 0), (MessageKind.CALL, wire.MOST_BODY + 1), (MessageKind.WRITE, 1 << 63)],
)
def test_a_header_of_an_unknown_kind_or_length_is_refused(kind: int, length: int) -> None:
    with pytest.raises(WireError):
        wire.read_header(wire.HEADER.pack(length, kind))


def check(messages: Iterable[tuple[MessageKind, bytes]]) -> None:
    """Each message is refused, or consistent in itself."""
    parser = Parser()
    for kind, body in messages:
        try:
            made = parser.message(kind, memoryview(body))
        except WireError:
            return
        if isinstance(made, wire.Call):
            assert len(made.storages) == len(made.signature.slots)
            assert len(made.numbers) == made.signature.numbers
        if isinstance(made, wire.Write):
            assert len(made.data) == made.layout.bytes
        if isinstance(made, wire.Write | wire.Read):
            assert 0 <= made.layout.reach <= wire.MOST_BYTES
            assert min((*made.layout.sizes, *made.layout.strides, made.layout.offset)) >= 0


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(MessageKind), st.binary(max_size=80)), max_size=6))
def test_random_bytes_are_refused_or_consistent(messages: list[tuple[MessageKind, bytes]]) -> None:
    check(messages)


@settings(max_examples=500)
@given(
    st.integers(0, len(SESSION) - 1),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 3),
)
@example(4, [(0, 0)], 3)
def test_a_session_with_changed_bytes_is_refused_or_consistent(
    which: int, changes: list[tuple[int, int]], cut: int
) -> None:
    kind, body = SESSION[which]
    changed = bytearray(body)
    for at, value in changes:
        if changed:
            changed[at % len(changed)] = value
    check([*SESSION[:which], (kind, bytes(changed[: len(changed) - cut])), *SESSION[which + 1 :]])
