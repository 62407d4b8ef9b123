"""What is kept over the agent's death: the cards that were, and what containers hold of them.

One file, replaced as a whole before the kubelet gets its answer, and written as the kubelet writes
its own. So what a container was told is always in it; what is in it and was never told belongs to a
pod that the kubelet turned down, and is released with it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.node.held import Held  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from aliquot.kubernetes.node.books import Books

FORM = 1

_log = structlog.get_logger(__name__)


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


@dataclass(frozen=True, slots=True)
class Store:
    """The file."""

    path: Path

    def load(self) -> Kept:
        """What is kept; nothing where there is no file. One that cannot be read is put aside."""
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=Kept)
        except FileNotFoundError:
            return Kept()
        except msgspec.DecodeError as error:
            aside = self.path.with_suffix(".unreadable")
            self.path.rename(aside)
            _log.error("what containers hold cannot be read", file=str(aside), why=str(error))
            return Kept()
        return kept if kept.form == FORM else Kept()

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
