"""The words in which the OpenAPI documents are written, and the schemas that they share."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

PREFIX = "/api/v1"
MOST_ITEMS = 500

_WORDS = 200


def text(description: str, most: int = _WORDS, **more: Any) -> Schema:
    """A text of at most so many characters."""
    return {"type": "string", "description": description, "maxLength": most, **more}


def number(description: str, kind: str = "integer", **more: Any) -> Schema:
    """A number."""
    return {"type": kind, "description": description, **more}


def maybe(schema: Schema) -> Schema:
    """The same, or null: it is not known, or this user may not see it."""
    enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **enum}


def flag(description: str) -> Schema:
    """Yes or no."""
    return {"type": "boolean", "description": description}


def record(properties: dict[str, Schema], *optional: str) -> Schema:
    """An object; all properties are required but those that are named."""
    return {
        "type": "object",
        "properties": properties,
        "required": [one for one in properties if one not in optional],
        "additionalProperties": False,
    }


def array(items: Schema, description: str = "") -> Schema:
    """A list."""
    return {"type": "array", "items": items, "description": description}


BYTES = "in bytes"
TIME = number("seconds since 1970", "number")
POLICY = text("what it gets beyond its share", enum=["elastic", "hard"])
PRIORITY = text("who comes first", enum=["latency", "normal", "background"])

PROBLEM = record(
    {
        "type": text("the sort of problem"),
        "title": text("the status in words"),
        "status": number("the status"),
        "detail": text("what is wrong", 1 << 20),
        "hint": maybe(text("a way out", 1 << 16)),
    }
)


def page_of(items: Schema) -> Schema:
    """A page of a list."""
    return record(
        {"items": array(items), "next": maybe(text("`after` of the next page; null: the last"))}
    )


INDEX = {"type": "integer", "minimum": 0, "maximum": 1 << 20}
LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS, "default": 100}
NAME = {"type": "string", "minLength": 1, "maxLength": _WORDS}
PAGE_QUERY = {"limit": LIMIT, "after": {"type": "string", "maxLength": _WORDS}}
