"""The messages between a program and its executor: bytes to checked values, and answers to bytes.

docs/remote.md has the format. `Parser.message` is the one function that reads a client's bytes.
What it returns is consistent in itself: layouts and signatures exist, sizes do not overflow, counts
match. Whether a view lies inside its storage is known only to the executor, which checks it.

This module uses the standard library alone: it also runs where Aliquot is not installed.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

VERSION = 1
HEADER = struct.Struct("<QB")  # the length of the body, the kind

MOST_BODY = 16 << 20  # of a message that carries no tensor
MOST_TENSOR = 1 << 36
MOST_KNOWN = 200_000  # layouts, and signatures; a client starts again at half of it
MOST_DIMENSIONS = 64
MOST_DEPTH = 2  # of lists in lists
MOST_BYTES = 1 << 62


class MessageKind(IntEnum):
    """The messages of a client."""

    CONTROL = 1
    LAYOUT = 2
    SIGNATURE = 3
    CALL = 4
    CALL_WAIT = 5
    FREE = 6
    WRITE = 7
    HOST = 8
    READ = 9
    FLAGS = 10
    RESET = 11


class AnswerKind(IntEnum):
    """The answers of an executor."""

    RESULTS = 1
    DATA = 2
    ERROR = 3
    CONTROL = 4


class Tag(IntEnum):
    """What an argument of a signature is."""

    NONE = 0
    TENSOR = 1
    LIST = 2
    INT = 3
    FLOAT = 4  # its value comes with each call
    BOOL = 5
    STRING = 6
    DEVICE = 7
    COMPLEX = 8
    FIXED = 9  # a float whose value belongs to the signature
    HOST_TENSOR = 10


# PyTorch's numbers of its dtypes, and their sizes in bytes.
DTYPES = {
    0: ("uint8", 1),
    1: ("int8", 1),
    2: ("int16", 2),
    3: ("int32", 4),
    4: ("int64", 8),
    5: ("float16", 2),
    6: ("float32", 4),
    7: ("float64", 8),
    8: ("complex32", 4),
    9: ("complex64", 8),
    10: ("complex128", 16),
    11: ("bool", 1),
    15: ("bfloat16", 2),
    23: ("float8_e5m2", 1),
    24: ("float8_e4m3fn", 1),
    25: ("float8_e5m2fnuz", 1),
    26: ("float8_e4m3fnuz", 1),
    27: ("uint16", 2),
    28: ("uint32", 4),
    29: ("uint64", 8),
}
DEFAULT_DTYPES = frozenset({5, 6, 7, 15})

# The global settings of PyTorch that change results, one bit each, in this order.
SETTINGS = (
    "cudnn",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "deterministic",
    "deterministic_warn_only",
    "cudnn_tf32",
    "matmul_tf32",
    "flash_attention",
    "memory_efficient_attention",
    "math_attention",
    "cudnn_attention",
    "fill_uninitialized_memory",
    "float16_reduction",
    "bfloat16_reduction",
    "float16_accumulation",
)


class WireError(Exception):
    """Bytes that no client of this version sends."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How a tensor lies in its storage. Two are the same only if they are one object."""

    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int  # in elements
    reach: int  # the bytes that the storage must have
    bytes: int  # of the elements, without gaps


class TensorSlot(NamedTuple):
    """An argument that is a tensor: which of the call's storages, and its layout."""

    position: int
    layout: Layout
    on_host: bool


class Varying(NamedTuple):
    """An argument that is a number of the call."""

    position: int


class DeviceArgument(NamedTuple):
    """An argument that is a device."""

    remote: bool


class Signature(NamedTuple):
    """An operator, and all of its arguments that do not differ from call to call."""

    operator: str
    overload: str
    arguments: tuple[Any, ...]  # TensorSlot, Varying, DeviceArgument, a list of them, or a value
    slots: tuple[TensorSlot, ...]
    numbers: int


class ControlMessage(NamedTuple):
    """A question or an instruction, as a JSON object."""

    content: dict[str, Any]


class Define(NamedTuple):
    """A layout or a signature was defined, or all were forgotten: nothing is left to do."""


class Call(NamedTuple):
    """Run a signature; its new storages get the ids from `first` on."""

    signature: Signature
    first: int
    storages: tuple[int, ...]
    numbers: tuple[float, ...]
    wait: bool


class Free(NamedTuple):
    """These storages are not used any more."""

    storages: tuple[int, ...]


class Write(NamedTuple):
    """The elements of a tensor that exists; on the host: of a new one in the executor's memory."""

    storage: int
    layout: Layout
    data: memoryview
    on_host: bool


class Read(NamedTuple):
    """A question for the elements of a tensor."""

    storage: int
    layout: Layout


class Flags(NamedTuple):
    """The global settings from here on."""

    settings: dict[str, bool]
    default_dtype: int


Message = ControlMessage | Define | Call | Free | Write | Read | Flags

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")
_CALL = struct.Struct("<IQII")
_PLACE = struct.Struct("<QI")  # a storage and a layout
_SHAPE = struct.Struct("<BBq")
_WITH_TENSOR = frozenset({MessageKind.WRITE, MessageKind.HOST})
_KINDS = frozenset(MessageKind)


def read_header(header: bytes) -> tuple[MessageKind, int]:
    """The kind and the length of the message that follows."""
    length, kind = HEADER.unpack(header)
    if kind not in _KINDS:
        raise WireError(f"{kind} is no kind of message")
    if length > (MOST_TENSOR if kind in _WITH_TENSOR else MOST_BODY):
        raise WireError(
            f"a message of {length} bytes is too long for its kind, {MessageKind(kind).name}"
        )
    return MessageKind(kind), length


class Parser:
    """What a client has defined so far, and the reader of its messages."""

    def __init__(self) -> None:
        self._layouts: dict[int, Layout] = {}
        self._signatures: dict[int, Signature] = {}

    def message(self, kind: MessageKind, body: memoryview) -> Message:
        """One message as checked values. Raises WireError, and then the connection must end."""
        try:
            return self._message(kind, body)
        except (struct.error, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise WireError(f"{kind.name}: {error}") from error

    def _message(  # noqa: C901, PLR0911, PLR0912 - one case for each kind
        self, kind: MessageKind, body: memoryview
    ) -> Message:
        match kind:
            case MessageKind.CALL | MessageKind.CALL_WAIT:
                return self._call(body, wait=kind is MessageKind.CALL_WAIT)
            case MessageKind.FREE:
                if len(body) % 8:
                    raise WireError("FREE: its length is no multiple of 8")
                return Free(struct.unpack(f"<{len(body) // 8}Q", body))
            case MessageKind.LAYOUT:
                (number,) = _U32.unpack_from(body)
                self._next(number, self._layouts, "layout")
                self._layouts[number] = _layout(body[4:])
                return Define()
            case MessageKind.SIGNATURE:
                (number,) = _U32.unpack_from(body)
                self._next(number, self._signatures, "signature")
                self._signatures[number] = _Arguments(body[4:], self._layouts).signature()
                return Define()
            case MessageKind.WRITE | MessageKind.HOST:
                storage, number = _PLACE.unpack_from(body)
                layout, data = self._layout(number), body[_PLACE.size :]
                if len(data) != layout.bytes:
                    raise WireError(
                        f"{kind.name}: {len(data)} bytes for a tensor of {layout.bytes}"
                    )
                return Write(storage, layout, data, kind is MessageKind.HOST)
            case MessageKind.READ:
                storage, number = _PLACE.unpack(body)
                return Read(storage, self._layout(number))
            case MessageKind.FLAGS:
                return _flags(_U64.unpack(body)[0])
            case MessageKind.RESET:
                if len(body):
                    raise WireError("RESET: it has a body")
                self._layouts.clear()
                self._signatures.clear()
                return Define()
            case MessageKind.CONTROL:
                content = json.loads(bytes(body))
                if not isinstance(content, dict):
                    raise WireError("CONTROL: it is no JSON object")
                return ControlMessage(content)

    def _layout(self, number: int) -> Layout:
        try:
            return self._layouts[number]
        except KeyError:
            raise WireError(f"layout {number} was never defined") from None

    @staticmethod
    def _next(number: int, known: dict[int, Any], what: str) -> None:
        if number != len(known) or number >= MOST_KNOWN:
            raise WireError(f"{what} {number} is not the next one of {len(known)}")

    def _call(self, body: memoryview, *, wait: bool) -> Call:
        number, first, slots, numbers = _CALL.unpack_from(body)
        signature = self._signatures.get(number)
        if signature is None:
            raise WireError(f"signature {number} was never defined")
        if slots != len(signature.slots) or numbers != signature.numbers:
            raise WireError(f"{signature.operator}: a call has other counts than its signature")
        if len(body) != _CALL.size + 8 * (slots + numbers):
            raise WireError(f"{signature.operator}: a call has the wrong length")
        values = struct.unpack_from(f"<{slots}Q{numbers}d", body, _CALL.size)
        return Call(signature, first, values[:slots], values[slots:], wait)


def _layout(body: memoryview) -> Layout:
    dtype, dimensions, offset = _SHAPE.unpack_from(body)
    if dtype not in DTYPES:
        raise WireError(f"LAYOUT: {dtype} is no dtype")
    if dimensions > MOST_DIMENSIONS or len(body) != _SHAPE.size + 16 * dimensions:
        raise WireError("LAYOUT: it has the wrong length")
    values = struct.unpack_from(f"<{2 * dimensions}q", body, _SHAPE.size)
    sizes, strides = values[:dimensions], values[dimensions:]
    if offset < 0 or any(value < 0 for value in values):
        raise WireError("LAYOUT: it has a negative size, stride or offset")
    width, count, last = DTYPES[dtype][1], 1, offset
    for size, stride in zip(sizes, strides, strict=True):
        count *= size
        last += (size - 1) * stride
    reach = (last + 1) * width if count else 0
    if max(reach, count * width, offset * width) > MOST_BYTES:
        raise WireError("LAYOUT: it is too large")
    return Layout(dtype, sizes, strides, offset, reach, count * width)


def _flags(value: int) -> Flags:
    dtype = value >> 16
    bits = value & 0xFFFF
    if dtype not in DEFAULT_DTYPES or bits >> len(SETTINGS):
        raise WireError(f"FLAGS: {value:#x} has unknown bits")
    return Flags({name: bool(bits >> i & 1) for i, name in enumerate(SETTINGS)}, dtype)


class _Arguments:
    """Reads the arguments of a signature, and numbers its tensors and varying numbers."""

    def __init__(self, body: memoryview, layouts: dict[int, Layout]) -> None:
        self._body = body
        self._at = 0
        self._layouts = layouts
        self._slots: list[TensorSlot] = []
        self._numbers = 0

    def signature(self) -> Signature:
        operator, overload = self._text(), self._text()
        (count,) = self._take(_U32)
        arguments = tuple(self._argument(0) for _ in range(self._checked(count)))
        if self._at != len(self._body):
            raise WireError(f"{operator}: a signature has more bytes than it needs")
        return Signature(operator, overload, arguments, tuple(self._slots), self._numbers)

    def _take(self, form: struct.Struct) -> tuple[Any, ...]:
        values = form.unpack_from(self._body, self._at)
        self._at += form.size
        return values

    def _checked(self, count: int) -> int:
        """A count of things of which each takes a byte or more."""
        if count > len(self._body) - self._at:
            raise WireError("SIGNATURE: it is cut off")
        return count

    def _text(self) -> str:
        (size,) = self._take(_U32)
        end = self._at + self._checked(size)
        text = str(self._body[self._at : end], "utf-8")
        self._at = end
        return text

    def _byte(self) -> int:
        if self._at >= len(self._body):
            raise WireError("SIGNATURE: it is cut off")
        self._at += 1
        return self._body[self._at - 1]

    def _argument(self, depth: int) -> Any:  # noqa: C901, PLR0911 - one for each tag
        match Tag(self._byte()):
            case Tag.NONE:
                return None
            case Tag.TENSOR:
                return self._slot(on_host=False)
            case Tag.HOST_TENSOR:
                return self._slot(on_host=True)
            case Tag.LIST:
                if depth >= MOST_DEPTH:
                    raise WireError("SIGNATURE: its lists are too deep")
                (count,) = self._take(_U32)
                return [self._argument(depth + 1) for _ in range(self._checked(count))]
            case Tag.INT:
                return self._take(_I64)[0]
            case Tag.FLOAT:
                self._numbers += 1
                return Varying(self._numbers - 1)
            case Tag.BOOL:
                return bool(self._byte())
            case Tag.STRING:
                return self._text()
            case Tag.DEVICE:
                return DeviceArgument(bool(self._byte()))
            case Tag.COMPLEX:
                return complex(*self._take(_F64), *self._take(_F64))
            case Tag.FIXED:
                return self._take(_F64)[0]

    def _slot(self, *, on_host: bool) -> TensorSlot:
        (number,) = self._take(_U32)
        if number not in self._layouts:
            raise WireError(f"layout {number} was never defined")
        self._slots.append(TensorSlot(len(self._slots), self._layouts[number], on_host))
        return self._slots[-1]


def answer(kind: AnswerKind, *parts: bytes | memoryview) -> list[bytes | memoryview]:
    """The parts of an answer, its header first."""
    return [HEADER.pack(sum(len(part) for part in parts), kind), *parts]


def error_answer(kind: str, text: str) -> list[bytes | memoryview]:
    """The answer that says why there is no other one: the exception's name and its text."""
    parts = [value.encode() for value in (kind, text)]
    return answer(
        AnswerKind.ERROR, *(piece for part in parts for piece in (_U32.pack(len(part)), part))
    )


def shape_bytes(dtype: int, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> bytes:
    """A layout as its bytes."""
    count = len(sizes)
    return struct.pack(f"<BBq{2 * count}q", dtype, count, offset, *sizes, *strides)
