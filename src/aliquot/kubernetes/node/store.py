"""What is kept over the agent's death: the cards that were, and what containers hold of them.

One file, replaced as a whole before the kubelet gets its answer, and written as the kubelet writes
its own. So what a container was told is always in it; what is in it and was never told belongs to a
pod that the kubelet turned down, and is released with it.

A file that cannot be read, or that an agent of another version wrote in another form, is no empty
one: what it says still runs. It stays where it is, and no agent starts on it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.node.held import Held  # noqa: TC001 - msgspec reads it
from aliquot.model.errors import StateError

if TYPE_CHECKING:
    from aliquot.kubernetes.node.books import Books

FORM = 1


class KeptCard(msgspec.Struct, frozen=True):
    """A card that this node has, or has had."""

    uuid: str
    index: int
    memory: int


class Kept(msgspec.Struct, frozen=True):
    """All of the file."""

    form: int = FORM
    cards: tuple[KeptCard, ...] = ()
    held: tuple[Held, ...] = ()


class _Form(msgspec.Struct, frozen=True):
    """What every form of the file says."""

    form: int


@dataclass(frozen=True, slots=True)
class Store:
    """The file."""

    path: Path

    def load(self) -> Kept:
        """What is kept; nothing where there is no file. StateError where it cannot be read."""
        try:
            text = self.path.read_bytes()
            form = msgspec.json.decode(text, type=_Form).form
            if form != FORM:
                raise self._refused(f"has form {form}, and this agent reads form {FORM}")
            return msgspec.json.decode(text, type=Kept)
        except FileNotFoundError:
            return Kept()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._refused(f"cannot be read: {error}") from error

    def save(self, books: Books) -> None:
        """Keep what the books say."""
        cards = tuple(KeptCard(one.uuid, one.index, one.memory) for one in books.cards.values())
        self.write(Kept(cards=cards, held=tuple(books.held.values())))

    def write(self, kept: Kept) -> None:
        """Replace the file."""
        new = self.path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fdatasync(file.fileno())
        new.rename(self.path)

    def _refused(self, why: str) -> StateError:
        return StateError(
            f"{self.path}, which says what running containers hold, {why}",
            "Run the version of Aliquot that wrote it. Or drain the node of pods with GPUs and"
            " delete the file: the agent then ends what grants are left.",
        )
