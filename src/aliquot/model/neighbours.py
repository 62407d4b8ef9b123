"""Which slices may be on one GPU: together with a label, apart from labels, or alone.

A slice has a label: the one that was given, else the name of its grant or job. Labels are per user:
a slice is with, and apart from, slices of its own user only. Being apart holds in both directions,
also for slices that come later. A slice that is alone shares its GPU with no other slice of any
user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.names import checked_name

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_APART = 8  # NEIGHBOURS_MOST in neighbours.h


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What a grant or a request says about the slices beside it.

    `beside` is the label that a request asks to be with. The first slices may be on any GPU: it
    counts only while some GPU has a slice with that label.
    """

    label: str | None = None
    beside: str | None = None
    apart_from: tuple[str, ...] = ()
    alone: bool = False

    def __post_init__(self) -> None:
        if len(self.apart_from) > MAX_APART:  # first: each entry is looked at below
            raise InvalidValueError(
                f"--apart-from names {len(self.apart_from)} labels, and may name {MAX_APART}",
                "Give several slices the same --label.",
            )
        named = (("--label", self.label), ("--with", self.beside))
        options = [(option, name) for option, name in named if name is not None]
        for option, name in (*options, *(("--apart-from", one) for one in self.apart_from)):
            checked_name(name, f"{option} {name!r} is not a valid label")
        if self.beside is not None and self.alone:
            raise InvalidValueError(
                f"--alone and --with {self.beside} exclude each other", "Leave one of them out."
            )
        if self.beside is not None and self.beside in self.apart_from:
            raise InvalidValueError(
                f"--with {self.beside} and --apart-from {self.beside} exclude each other",
                "Leave one of them out.",
            )

    def __bool__(self) -> bool:
        return self != Neighbours()

    @property
    def asks(self) -> bool:
        """Whether it asks for anything: a label alone does not."""
        return bool(self.beside or self.apart_from or self.alone)

    def options(self) -> str:
        """The options that say this, for a sentence."""
        words = [f"--label {self.label}"] if self.label else []
        words += [f"--with {self.beside}"] if self.beside else []
        words += [f"--apart-from {label}" for label in self.apart_from]
        return " ".join([*words, "--alone"] if self.alone else words)


@dataclass(frozen=True, slots=True)
class Occupant:
    """A slice on a GPU as its neighbours see it, or a request for one. `owner` None: nobody's."""

    owner: int | None
    label: str
    apart_from: tuple[str, ...] = ()
    alone: bool = False

    def told_to(self, reader: Occupant) -> str:
        """How to name it to another user: without its label."""
        return f"the slice {self.label}" if self.is_known_to(reader) else "another user's slice"

    def is_known_to(self, other: Occupant) -> bool:
        """Whether both belong to one user."""
        return self.owner is not None and self.owner == other.owner


def why_not_beside(asking: Occupant, there: Iterable[Occupant]) -> str | None:
    """Why a slice may not be on a GPU that has those, as a clause about the GPU; None if it may."""
    me = asking.label or "this request"
    for other in there:
        told = other.told_to(asking)
        if other.alone:
            return f"it has {told}, which is alone on it"
        if asking.alone:
            return f"it has {told}, and {me} asks to be alone"
        if not other.is_known_to(asking):
            continue
        if other.label in asking.apart_from:
            return f"it has {told}, which {me} asks to be apart from"
        if asking.label in other.apart_from:
            return f"it has {told}, which asks to be apart from {asking.label}"
    return None
