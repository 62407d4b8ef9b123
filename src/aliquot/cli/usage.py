"""Errors of typer about a command line, in the words of all other errors.

typer's classes for them are not public, so they are known by their names and attributes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from typer.exceptions import TyperException

_EXAMPLE = re.compile(r"^ +((?:sudo )?aliquot .*?)(?:  .*)?$", re.MULTILINE)
_QUOTED = re.compile(r"'([^']*)'")


def usage_text(error: TyperException) -> str:
    """What is invalid in a command line, with its value, and what to write instead.

    It is the help of a command that needs arguments and got none.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        return f"{error.message}\n"
    context = getattr(error, "ctx", None)
    command = "aliquot COMMAND" if context is None else str(context.command_path)
    message, hint = _described(error, command.removeprefix("aliquot "), context)
    return f"aliquot: {InvalidValueError(message, hint or f'See: {command} --help')}\n"


def _described(error: Any, command: str, context: Any) -> tuple[str, str]:
    match type(error).__name__:
        case "NoSuchOption":
            names = sorted(error.possibilities or ())
            return f"{command} has no option {error.option_name}", _meant(names)
        case "MissingParameter":
            shown = _EXAMPLE.search(context.command.epilog or "")
            return f"{command} needs {_name(error)}", f"For example: {shown[1]}" if shown else ""
        case "BadParameter":
            return _invalid(error)
        case "BadOptionUsage":
            lacks = "needs a" if "requires" in error.message else "takes no"
            return f"{error.option_name} {lacks} value", ""
        case _:
            return _unexpected(error, command)


def _unexpected(error: Any, command: str) -> tuple[str, str]:
    """A word that is no command, or an argument too many."""
    if error.message.startswith("No such command"):
        wrong, *near = _QUOTED.findall(error.message)
        return f"{command} has no command {wrong!r}", _meant(near)
    if error.message.startswith("Got unexpected extra argument"):
        extra = error.message.rpartition(" (")[2].rstrip(")")
        return f"{command} takes no further argument: {extra}", ""
    return str(error.format_message()), ""


def _meant(names: list[str]) -> str:
    return f"Did you mean {' or '.join(names)}?" if names else ""


def _name(error: Any) -> str:
    """The option or argument as the user writes it."""
    if error.param is None:
        return str(error.param_hint)
    if error.param.param_type_name == "option":
        return str(error.param.opts[0])
    return str(error.param.metavar or error.param.name)


def _invalid(error: Any) -> tuple[str, str]:
    """An option or argument with a value that it cannot have."""
    name, cause = _name(error), error.__cause__
    if cause is None or not hasattr(cause, "errors"):
        return f"invalid value for {name}: {error.message.rstrip('.')}", ""
    value = cause.errors()[0]["input"]
    kind = error.param.type_descriptor
    return f"invalid value for {name}: {value!r}", _possible(kind)


def _possible(kind: Any) -> str:
    """What can be written."""
    if kind.choices:
        *others, last = [str(getattr(one, "value", one)) for one in kind.choices]
        return f"Write {', '.join(others)} or {last}." if others else f"Write {last}."
    noun = {int: "a whole number", float: "a number"}.get(kind.annotation)
    if noun is None:
        return ""
    least, most = kind.parameter_info.min, kind.parameter_info.max
    if least is None and most is None:
        return f"Write {noun}."
    if most is None:
        return f"Write {noun}, at least {least:g}."
    return f"Write {noun} from {least:g} to {most:g}."
