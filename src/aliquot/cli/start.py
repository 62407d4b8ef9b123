"""What a command does before it starts: as little as possible.

typer builds all commands of an application, and imports pydantic to convert values, also values
that are not given. Each takes about as long as `aliquot ps` itself. Here only the command that is
called is built, and simple values are converted without pydantic: with the same result, and typer
converts, or refuses, every other value.
"""

from __future__ import annotations

import re
from copy import copy
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NUMBERS: dict[Any, re.Pattern[str]] = {
    int: re.compile(r"(0|[1-9][0-9]{0,8})", re.ASCII),
    float: re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?", re.ASCII),
}


class _UnknownValueError(Exception):
    """typer must convert this value."""


def start_command(app: typer.Typer, words: Sequence[str]) -> Callable[..., Any]:
    """The program for these words of a command line: with one command, or all if none is named."""
    root = typer.main.get_command(_with_only(app, words[0]) if words else app)
    for command in (root, *_commands(root)):
        setattr(command, "get_params", partial(_parameters, command.get_params))  # noqa: B010
    return root


def _with_only(app: typer.Typer, name: str) -> typer.Typer:
    """The application with the one command or group of this name, or with all if none has it."""
    commands = [
        one
        for one in app.registered_commands
        if name == (one.name or getattr(one.callback, "__name__", ""))
    ]
    groups = [one for one in app.registered_groups if name == one.name]
    if not commands and not groups:
        return app
    only = copy(app)
    only.registered_commands, only.registered_groups = commands, groups
    return only


def _commands(group: Any) -> list[Any]:
    inner = list(getattr(group, "commands", {}).values())
    return inner + [one for command in inner for one in _commands(command)]


def _parameters(by_typer: Callable[..., list[Any]], context: Any) -> list[Any]:
    """What `Command.get_params` returns, with --help; their `process_value` is `_process`."""
    found = by_typer(context)
    for one in found:
        if "process_value" not in vars(one):
            one.process_value = partial(_process, one, one.process_value)
    return found


def _process(parameter: Any, by_typer: Callable[..., Any], context: Any, value: Any) -> Any:
    """What `Parameter.process_value` returns, or raises."""
    try:
        value = _converted(parameter, value)
    except _UnknownValueError:
        return by_typer(context, value)
    callback = parameter.callback
    return value if callback is None else callback(context, parameter, value)


def _converted(parameter: Any, value: Any) -> Any:
    kind, rules = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    if value is None and not parameter.required:
        return () if parameter.multiple or parameter.nargs == -1 else None
    if rules.parser is not None:
        raise _UnknownValueError
    if kind == list[str] and value and all(type(one) is str for one in value):
        return list(value)
    if kind is str and type(value) is str:
        return value
    if kind in _NUMBERS:
        return _number(kind, rules, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        found = [one for one in kind if value in {one, one.value}]
        if len(found) == 1:
            return found[0]
    raise _UnknownValueError


def _number(kind: Any, rules: Any, value: Any) -> Any:
    if type(value) is str and _NUMBERS[kind].fullmatch(value):
        value = kind(value)
    if (
        type(value) is not kind
        or (rules.min is not None and value < rules.min)
        or (rules.max is not None and value > rules.max)
    ):
        raise _UnknownValueError
    return value
