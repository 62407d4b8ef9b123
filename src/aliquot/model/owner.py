"""The user that a job belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """A Unix user, by the kernel's word: the workers of its jobs run with this uid and gid.

    `name` is the user's name, or its number if it has none.
    """

    uid: int
    gid: int
    name: str

    def __str__(self) -> str:
        return self.name
