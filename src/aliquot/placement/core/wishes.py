"""Which GPUs a demand may use by name, and which slices may be beside it.

Labels are plain text here. Who may use which labels is the caller's decision: it puts a namespace
or a user in front of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """What a slice leaves on its GPU for others to see: its label, and which labels it avoids.

    `later`: it is not there yet, but will be while the asking work runs.
    """

    label: str = ""
    apart_from: frozenset[str] = frozenset()
    later: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a demand says about its GPUs and about the slices on them.

    A GPU is meant by its UUID or by the beginning of its UUID. If some are `named`, only these may
    be used; `excluded` ones never. Being `apart_from` a label holds in both directions. `beside` is
    a label that must be on each GPU; it counts only while some GPU has a slice with that label.

    A slice that shares its GPU with nobody needs no wish: it is a demand for the whole GPU.
    """

    named: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    label: str = ""
    beside: str = ""
    apart_from: frozenset[str] = frozenset()

    @property
    def mark(self) -> Mark | None:
        """What its slices leave on a GPU; None: nothing that matters to others."""
        return Mark(self.label, self.apart_from) if self.label or self.apart_from else None

    @property
    def needs_existing(self) -> bool:
        """Whether only GPUs that are there already can be right: no new node would help."""
        return bool(self.named or self.beside)

    @property
    def joins_itself(self) -> bool:
        """Whether where one goes decides where the next one of these may go."""
        return bool(self.beside) and self.beside == self.label

    @property
    def avoids_itself(self) -> bool:
        """Whether no two of these may be on one GPU."""
        return bool(self.label) and self.label in self.apart_from

    def selects(self, uuid: str) -> bool:
        """Whether a GPU may be used, by its UUID."""
        if self.excluded and uuid.startswith(tuple(self.excluded)):
            return False
        return not self.named or uuid.startswith(tuple(self.named))

    def tolerates(self, mark: Mark) -> bool:
        """Whether both may be on one GPU."""
        if mark.label and mark.label in self.apart_from:
            return False
        return not (self.label and self.label in mark.apart_from)

    def __str__(self) -> str:
        parts = [f"on {' or '.join(sorted(self.named))}"] if self.named else []
        parts += [f"not on {' or '.join(sorted(self.excluded))}"] if self.excluded else []
        parts += [f"with {self.beside}"] if self.beside else []
        parts += [f"apart from {' and '.join(sorted(self.apart_from))}"] if self.apart_from else []
        return ", ".join(parts)
