"""Blocks of lines at the end of a command's help, such as its examples."""

from __future__ import annotations


def block(title: str, *lines: str) -> str:
    """Lines that typer does not wrap."""
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


def examples(*lines: str) -> str:
    """The block of a command's examples."""
    return block("Examples:", *lines)
