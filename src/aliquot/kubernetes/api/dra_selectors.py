"""Selectors of devices: the part of the Common Expression Language (CEL) that is understood here.

    device.driver == "aliquot.io" && device.attributes["aliquot.io"].model.startsWith("H100")
    device.attributes["aliquot.io"].strength >= 100 || device.capacity["aliquot.io"].memory
        .isGreaterThan(quantity("40Gi"))

There are `&&`, `||`, `!`, brackets, comparisons, `in` with a list, texts, whole numbers, the
methods startsWith, endsWith and contains of texts, and isGreaterThan, isLessThan and compareTo of
quantities. Anything else is refused (`UnknownExpressionError`): a selector that is not understood
must not be taken for one that fits. An attribute that a device lacks, or has of another type, is an
error: as in CEL the device does not fit unless another part of `||` or `&&` decides. People who may
create claims write selectors. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.api.dra_devices import Version
from aliquot.kubernetes.api.requests import quantity
from aliquot.model.errors import AliquotError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

LONGEST = 10 << 10  # characters of an expression, as the API server has it
MOST_WORDS = 500  # of all selectors of a request: they are read for each GPU of the cluster
DEEPEST = 32
REMEMBERED = 1 << 10

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,18})|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<text>\"[^\"\\\n]*\"|'[^'\\\n]*')|(?P<sign>&&|\|\||[=!<>]=|[!<>()\[\],.-]))",
    re.ASCII,
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
_TEXT_METHODS: dict[str, Callable[[str, str], object]] = {
    "startsWith": lambda text, part: text.startswith(part),
    "endsWith": lambda text, part: text.endswith(part),
    "contains": lambda text, part: part in text,
}
_QUANTITY_METHODS: dict[str, Callable[[Any, Any], object]] = {
    "isGreaterThan": lambda one, other: one > other,
    "isLessThan": lambda one, other: one < other,
    "compareTo": lambda one, other: (one > other) - (one < other),
}


class UnknownExpressionError(AliquotError):
    """A selector has something that is not understood here."""


class _NotSoError(Exception):
    """The device has no such attribute, or one of another type."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as selectors see it: its attributes and capacities in the driver's domain."""

    attributes: tuple[tuple[str, str | int | Version], ...]
    capacity: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Quantity:
    value: Any


_Value = Any


def fulfils(device: Device, expression: str) -> bool:
    """Whether a device of our driver fulfils a selector; UnknownExpressionError if that is open."""
    try:
        return _parsed(expression).says(device) is True
    except _NotSoError:
        return False


def attributes_in(expressions: Collection[str]) -> frozenset[str]:
    """The attributes that the selectors of a request are about.

    UnknownExpressionError if one is not understood, or if they are too long together.
    """
    found = [_parsed(one) for one in expressions]
    if sum(one.words for one in found) > MOST_WORDS:
        raise UnknownExpressionError(
            f"its selectors have more than {MOST_WORDS} words and signs together, which Aliquot's"
            " scheduler does not read",
            "Write fewer or shorter ones.",
        )
    return frozenset[str]().union(*(one.attributes for one in found))


@dataclass(frozen=True, slots=True)
class _Parsed:
    """What an expression says of a device, the attributes that it is about, and its length."""

    says: Callable[[Device], _Value]
    attributes: frozenset[str]
    words: int


@lru_cache(maxsize=REMEMBERED)
def _parsed(expression: str) -> _Parsed:
    parser = _Parser(expression)
    return _Parsed(parser.whole(), frozenset(parser.attributes), parser.words)


class _Parser:
    """Turns an expression into a function of a device."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = self._split(expression)
        self._at = 0
        self._depth = 0
        self.attributes: set[str] = set()

    @property
    def words(self) -> int:
        return len(self._tokens)

    def whole(self) -> Callable[[Device], _Value]:
        found = self._any()
        if self._next() is not None:
            raise self._unknown(f"{self._next()!r}")
        return found

    # --- tokens -----------------------------------------------------------------------------------

    def _split(self, expression: str) -> list[str]:
        if len(expression) > LONGEST:
            raise self._unknown("more characters than an expression may have")
        tokens, at, text = [], 0, expression.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._unknown(f"{text[at : at + 20]!r}")
            tokens.append(found[0].strip())
            at = found.end()
            if len(tokens) > MOST_WORDS:
                raise self._unknown(f"more than {MOST_WORDS} words and signs")
        return tokens

    def _unknown(self, what: str) -> UnknownExpressionError:
        shown = self._expression.strip()[:200]
        return UnknownExpressionError(
            f"the selector {shown!r} has {what}, which Aliquot's scheduler does not understand",
            "docs/dra.md says what selectors can have.",
        )

    def _next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, *wanted: str) -> str | None:
        """The next token, if it is one of these; without any, whatever it is."""
        token = self._next()
        if token is None or (wanted and token not in wanted):
            return None
        self._at += 1
        return token

    def _must(self, *wanted: str) -> str:
        token = self._take(*wanted)
        if token is None:
            at = self._next()
            raise self._unknown("an end" if at is None else f"{at!r}")
        return token

    # --- grammar ----------------------------------------------------------------------------------

    def _any(self) -> Callable[[Device], _Value]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._unknown("too many brackets in each other")
        parts = [self._every()]
        while self._take("||"):
            parts.append(self._every())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else _either(parts)

    def _every(self) -> Callable[[Device], _Value]:
        parts = [self._comparison()]
        while self._take("&&"):
            parts.append(self._comparison())
        return parts[0] if len(parts) == 1 else _all(parts)

    def _comparison(self) -> Callable[[Device], _Value]:
        left = self._unary()
        if self._take("in"):
            self._must("[")
            values = [self._unary()]
            while self._take(","):
                values.append(self._unary())
            self._must("]")
            return lambda device: any(_compared("==", left(device), one(device)) for one in values)
        sign = self._take(*_COMPARISONS)
        if sign is None:
            return left
        right = self._unary()
        return lambda device: _compared(sign, left(device), right(device))

    def _unary(self) -> Callable[[Device], _Value]:
        if self._take("!"):
            self._depth += 1
            if self._depth > DEEPEST:
                raise self._unknown("too many '!' in a row")
            inner = self._unary()
            self._depth -= 1
            return lambda device: not _truth(inner(device))
        return self._with_methods(self._primary())

    def _with_methods(self, of: Callable[[Device], _Value]) -> Callable[[Device], _Value]:
        while self._take("."):
            method = self._must()
            if method not in _TEXT_METHODS and method not in _QUANTITY_METHODS:
                raise self._unknown(f"{method!r}")
            self._must("(")
            argument = self._any()
            self._must(")")
            of = _called(method, of, argument)
        return of

    def _primary(self) -> Callable[[Device], _Value]:
        word = self._must()
        match word:
            case "(":
                found = self._any()
                self._must(")")
                return found
            case "-" if (self._next() or "").isdecimal():
                return _constant(-int(self._must()))
            case "true" | "false":
                return _constant(word == "true")
            case "quantity":
                return self._quantity()
            case "device":
                return self._device()
        return self._literal(word)

    def _literal(self, word: str) -> Callable[[Device], _Value]:
        if word.isdecimal():
            return _constant(int(word))
        if word[0] in "\"'":
            return _constant(word[1:-1])
        raise self._unknown(f"{word!r}")

    def _quantity(self) -> Callable[[Device], _Value]:
        self._must("(")
        text = self._must()
        self._must(")")
        try:
            return _constant(_Quantity(quantity(text[1:-1])))
        except InvalidValueError as error:
            raise self._unknown(f"the quantity {text}") from error

    def _device(self) -> Callable[[Device], _Value]:
        self._must(".")
        field = self._must("driver", "attributes", "capacity")
        if field == "driver":
            return _constant(DRIVER)
        self._must("[")
        domain = self._must()
        self._must("]")
        if self._take("["):
            name = self._must()[1:-1]
            self._must("]")
        else:
            self._must(".")
            name = self._must()
        if domain[1:-1] != DRIVER:
            return _missing
        if field == "attributes":
            self.attributes.add(name)
            return lambda device: _found(dict(device.attributes), name)
        return lambda device: _Quantity(_found(dict(device.capacity), name))


def _constant(value: _Value) -> Callable[[Device], _Value]:
    return lambda _device: value


def _missing(_device: Device) -> _Value:
    raise _NotSoError


def _found(values: dict[str, Any], name: str) -> _Value:
    if name not in values:
        raise _NotSoError
    return values[name]


def _truth(value: _Value) -> bool:
    if not isinstance(value, bool):
        raise _NotSoError
    return value


def _either(parts: list[Callable[[Device], _Value]]) -> Callable[[Device], _Value]:
    return lambda device: _decided(parts, device, by=True)


def _all(parts: list[Callable[[Device], _Value]]) -> Callable[[Device], _Value]:
    return lambda device: _decided(parts, device, by=False)


def _decided(parts: list[Callable[[Device], _Value]], device: Device, *, by: bool) -> bool:
    """As CEL has it: the part that decides does so even if another one is an error."""
    failed = False
    for one in parts:
        try:
            if _truth(one(device)) is by:
                return by
        except _NotSoError:
            failed = True
    if failed:
        raise _NotSoError
    return not by


def _compared(sign: str, one: _Value, other: _Value) -> bool:
    """A comparison of two texts, or of two numbers; nothing else can be compared."""
    if type(one) is not type(other) or not isinstance(one, str | int) or isinstance(one, Version):
        raise _NotSoError
    return _COMPARISONS[sign](one, other)


def _called(
    method: str, of: Callable[[Device], _Value], argument: Callable[[Device], _Value]
) -> Callable[[Device], _Value]:
    def call(device: Device) -> _Value:
        one, other = of(device), argument(device)
        if method in _TEXT_METHODS and type(one) is str and type(other) is str:
            return _TEXT_METHODS[method](one, other)
        both = isinstance(one, _Quantity) and isinstance(other, _Quantity)
        if method in _QUANTITY_METHODS and both:
            return _QUANTITY_METHODS[method](one.value, other.value)
        raise _NotSoError

    return call
