"""Checks JSON against a schema of the OpenAPI document: what is documented is what is accepted.

It knows the few keywords that `openapi` uses. A keyword that it does not know is a defect.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
_NOTES = {"description", "title", "default", "examples"}
_CHECKED = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
}


def check(value: Any, schema: Mapping[str, Any], name: str = "the body") -> None:
    """Raise InvalidValueError, with the name of the field, if the value does not match."""
    assert not schema.keys() - _NOTES - _CHECKED, schema  # noqa: S101 - of our own document
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is(value, kind) for kind in kinds):
        raise InvalidValueError(f"{name} must be {' or '.join(kinds)}")
    if "enum" in schema and value not in schema["enum"]:
        shown = ", ".join(str(one) for one in schema["enum"] if one is not None)
        raise InvalidValueError(f"{name} is not known", f"Write one of {shown}.")
    match value:
        case dict():
            _check_object(value, schema, name)
        case list():
            _check_size(len(value), schema, name, "Items", "entries")
            for number, one in enumerate(value):
                check(one, schema["items"], f"{name}[{number}]")
        case str():
            _check_text(value, schema, name)
        case int() | float() if not isinstance(value, bool):
            _check_number(value, schema, name)


def parse(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """The value of a parameter of a URL."""
    value: Any = text
    if schema["type"] == "integer":
        if re.fullmatch(r"-?[0-9]{1,18}", text) is None:
            raise InvalidValueError(f"{name} must be a whole number")
        value = int(text)
    check(value, schema, name)
    return value


def _is(value: Any, kind: str) -> bool:
    """Python's True is an int, JSON's is no number."""
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _check_object(value: dict[str, Any], schema: Mapping[str, Any], name: str) -> None:
    known = schema["properties"]
    for missing in (one for one in schema.get("required", ()) if one not in value):
        raise InvalidValueError(f"{name} lacks {missing}")
    for unknown in sorted(value.keys() - known.keys()):
        raise InvalidValueError(
            f"{name} has an unknown field {unknown[:40]!r}", f"Known are {', '.join(known)}."
        )
    for key, one in value.items():
        check(one, known[key], key)


def _check_text(value: str, schema: Mapping[str, Any], name: str) -> None:
    _check_size(len(value), schema, name, "Length", "characters")
    if "\0" in value or any(0xD800 <= ord(one) < 0xE000 for one in value):
        raise InvalidValueError(f"{name} has a character that no text has")
    if "pattern" in schema and re.fullmatch(schema["pattern"], value) is None:
        raise InvalidValueError(f"{name} is not written as it must be: {schema['pattern']}")


def _check_size(size: int, schema: Mapping[str, Any], name: str, keyword: str, noun: str) -> None:
    least, most = schema.get(f"min{keyword}", 0), schema.get(f"max{keyword}", size)
    if not least <= size <= most:
        raise InvalidValueError(f"{name} must have from {least} to {most} {noun}")


def _check_number(value: float, schema: Mapping[str, Any], name: str) -> None:
    if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        raise InvalidValueError(
            f"{name} must be from {schema.get('minimum')} to {schema.get('maximum')}"
        )
