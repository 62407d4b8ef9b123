"""The pods of this node, as the API server tells of them, and what their containers ask for.

Until the first list is in, nobody is taken for gone. A pod that asks for what makes no sense is
known too, with the reason.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.requests import InvalidRequestError, asks, requests_of
from aliquot.kubernetes.node.held import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest


@dataclass(frozen=True, slots=True)
class Guest:
    """A pod that asks for GPUs; `bad` says why what it asks for makes no sense.

    `arrival` tells those from each other that were heard of one after the other.
    """

    pod: Pod
    requests: tuple[ContainerRequest, ...] = ()
    bad: InvalidRequestError | None = None
    arrival: int = 0

    @property
    def uid(self) -> str:
        """The pod's."""
        return self.pod.metadata.uid

    @property
    def owner(self) -> Owner:
        """As the books name it, without a container."""
        meta = self.pod.metadata
        return Owner(meta.uid, meta.namespace, meta.name)

    @property
    def is_known(self) -> bool:
        """Whether the API server has told of it."""
        return bool(self.pod.metadata.name)

    @property
    def live(self) -> bool:
        """It has not ended."""
        return not self.pod.ended

    @property
    def waits(self) -> bool:
        """It has not begun, as far as is known."""
        return self.pod.status.phase in {"", "Pending"}

    def request(self, container: str) -> ContainerRequest | None:
        """What a container asks for."""
        return next((one for one in self.requests if one.container == container), None)


class Roster:
    """What `heard` was told of, by UID."""

    def __init__(self, presets: Sequence[Preset], synced: Callable[[], bool]) -> None:
        self._presets = presets
        self._synced = synced
        self._guests: dict[str, Guest] = {}
        self._arrivals = itertools.count()
        self._news = Changes()
        self._listeners: list[Callable[[Guest | None, Guest | None], None]] = []

    def listen(self, listener: Callable[[Guest | None, Guest | None], None]) -> None:
        """Tell of every change: before and after."""
        self._listeners.append(listener)

    def heard(self, old: Pod | None, new: Pod | None) -> None:
        """As a watch tells it."""
        before = self._guests.pop(old.metadata.uid, None) if old else None
        arrival = before.arrival if before else next(self._arrivals)
        after = self._guest(new, arrival) if new and asks(new, self._presets) else None
        if after:
            self._guests[after.uid] = after
        if before or after:
            for listener in self._listeners:
                listener(before, after)
        self._news.notify()

    def get(self, uid: str) -> Guest | None:
        """A pod."""
        return self._guests.get(uid)

    def live(self) -> list[Guest]:
        """Those that have not ended, in the order in which they came to the node.

        The kubelet has the same watch, and takes them in the same order, nearly always.
        """
        return sorted(
            (guest for guest in self._guests.values() if guest.live),
            key=lambda guest: guest.arrival,
        )

    def is_gone(self, uid: str) -> bool:
        """Whether a pod holds nothing any more: it is not there, or has ended."""
        guest = self._guests.get(uid)
        return self._synced() and (guest is None or not guest.live)

    def is_over(self, owner: Owner) -> bool:
        """Whether a container is of a pod that is gone; one that nobody knows is not."""
        return bool(owner.pod) and self.is_gone(owner.uid)

    async def wait_news(self, seconds: float) -> bool:
        """Until something is heard; False where that takes longer."""
        return await self._news.wait(seconds)

    def _guest(self, pod: Pod, arrival: int) -> Guest:
        try:
            return Guest(pod, requests_of(pod, self._presets), arrival=arrival)
        except InvalidRequestError as error:
            return Guest(pod, bad=error, arrival=arrival)
