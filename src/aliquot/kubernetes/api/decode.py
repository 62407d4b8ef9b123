"""Texts that tenants, other programs and the API server wrote, to values.

Any tenant can nest JSON thousands deep, in an annotation, a termination message or a part of an
object that the API server keeps as it is. A decoder calls itself for each level, so that such a
text could end a program that serves everybody. Here what is deeper than DEEPEST reads as null.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

DEEPEST = 100
_DIGITS = 18
# A string that has no end goes to the end of the text: to look for its end again from each of its
# quotation marks would take minutes.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)

T = TypeVar("T")


def decode_json(text: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """The value; msgspec.DecodeError if the text is no such value."""
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        whole = text.encode() if isinstance(text, str) else bytes(text)
        return msgspec.json.decode(_cut(whole), type=kind)


def whole_number(text: str) -> int | None:
    """The number that a text of decimal digits is; None for any other text, or for a long one.

    Python refuses to convert a text of thousands of digits.
    """
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdecimal() else None


def shortened(text: str, most: int = 500) -> str:
    """A text for a message, and of a long one the beginning.

    What a pod's author wrote is repeated for every node in an answer to kube-scheduler.
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut(text: bytes) -> bytes:
    """The text without what is too deep."""
    kept, level, after = [], 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"[" | b"{":
                level += 1
                if level == DEEPEST + 1:
                    kept += [text[after : token.start()], b"null"]
            case b"]" | b"}":
                if level == DEEPEST + 1:
                    after = token.end()
                level -= 1
    return b"".join(kept if level > DEEPEST else [*kept, text[after:]])
