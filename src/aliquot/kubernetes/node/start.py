"""PreStartContainer: a container is about to start, so its grant is made now.

By now the kubelet can say whose the ids are. So the books are put right first, and the grant gets
the policy, the priority and the sizes that the pod asks for itself. The grants of those end whose
ids were given on, to it or from it: an init container has ended when a later one starts, and the
others when the pod begins again. They never run together, and a card may have room for one only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.node.whose import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.node.allocate import Allocator
    from aliquot.kubernetes.node.events import Events
    from aliquot.kubernetes.node.grants import Grants
    from aliquot.kubernetes.node.held import Held
    from aliquot.kubernetes.node.identity import Identity
    from aliquot.kubernetes.node.record import Record
    from aliquot.kubernetes.node.resize import Resizer
    from aliquot.kubernetes.node.roster import Roster


@dataclass(frozen=True, slots=True)
class Starter:
    """Answers PreStartContainer calls."""

    record: Record
    roster: Roster
    identity: Identity
    grants: Grants
    resizer: Resizer
    allocator: Allocator
    events: Events

    async def start(self, resource: str, ids: Iterable[str]) -> None:
        """Make the grant of the container that has these ids."""
        found = self._found(resource, tuple(ids))
        if found is None:
            return
        self.allocator.started(found)
        held = await self.identity.confirm(found.name)
        guest = self.roster.get(held.owner.uid) if held else None
        if guest is not None:
            await self.resizer.follow(guest, found.name)
        held = self.record.books.held.get(found.name)
        if held is None:
            raise RefusedError(f"the grant {found.name} was released while its container started")
        if guest is not None and held.kind == "sliced" and not held.now.compute:
            self.events.say(
                guest,
                "EqualCompute",
                f"container {held.owner.container!r} asks for memory and no compute: it gets an"
                " equal part of what the others leave",
                warning=False,
            )
        for other in self.record.books.not_beside(held):
            await self.grants.end(other.name)
        await self.grants.make(held)

    def _found(self, resource: str, ids: tuple[str, ...]) -> Held | None:
        """What the container holds; None: it is another of its resources that matters."""
        books = self.record.books
        held = books.find(resource, ids)
        if held is not None:
            return held if resource == held.by else None
        if books.offers[resource].role == "core" and any(books.holder(id_) for id_ in ids):
            return None  # given on in part: the memory says which container it is
        raise RefusedError(
            f"{len(ids)} units of {resource} are not in this node's books",
            "Delete the pod, so that it gets others.",
        )
