"""What containers hold of this node's cards, as it is kept in a file."""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.plan import Kind  # noqa: TC001 - msgspec reads it
from aliquot.model import Policy, Priority


class Owner(msgspec.Struct, frozen=True):
    """A container of a pod. What is not known is empty."""

    uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""

    def __str__(self) -> str:
        if not self.pod:
            return "a container that is not known yet"
        return f"container {self.container!r} of {self.namespace}/{self.pod}"


class Part(msgspec.Struct, frozen=True):
    """A part of one card: bytes of memory, and percent of compute that no other can have."""

    gpu: str
    memory: int
    reserved: int = 0


class Settings(msgspec.Struct, frozen=True):
    """What a grant's slices have: bytes on each card, in the order of its parts, and the rest."""

    memory: tuple[int, ...]
    compute: int = 0
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL


class Held(msgspec.Struct, frozen=True):
    """What one container holds, by one answer to the kubelet.

    `name` is its grant's. `asked` is what it asked for and `now` what it has since a resize;
    `parts` is what the books count: the larger of both. `units` are the kubelet's device ids, by
    resource; `by` is the resource whose answer it was. `after` are the grants of init containers
    whose ids the kubelet gave on to it; `joined`: one with exactly the same ids had this grant.
    `owner` is the likeliest container, until the kubelet has said whose the ids are: then it is
    `sure`.
    """

    name: str
    owner: Owner
    kind: Kind
    parts: tuple[Part, ...]
    asked: Settings
    now: Settings
    units: dict[str, tuple[str, ...]]
    by: str
    after: tuple[str, ...] = ()
    joined: bool = False
    sure: bool = False

    def has(self, resource: str, ids: tuple[str, ...]) -> bool:
        """Whether it was given for exactly these ids, which are sorted."""
        return self.units.get(resource) == ids
