"""Which pod holds which device ids, by the kubelet's word (its PodResources interface).

An Allocate call does not say whose it is; the likeliest owner is written into the books. Here the
kubelet is asked: of one pod at a time (`Get`). `List` would also make it add up its ids anew, and
while it is in the middle of an Allocate of its own it would then give an id twice; so it is used
only where there is no `Get` (before 1.34).

The kubelet leaves out init containers. But it gives their ids on to the pod's other containers, and
ids are one pod's alone: one id in common says whose all of them are. A pod of which it tells
nothing has not been given anything yet, or only its init containers have; that is no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import structlog

from aliquot.kubernetes.kubelet import podresources_pb2 as wire_types
from aliquot.kubernetes.kubelet import wire
from aliquot.kubernetes.node.settle import settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aliquot.kubernetes.node.held import Held, Owner
    from aliquot.kubernetes.node.record import Record
    from aliquot.kubernetes.node.roster import Roster
    from aliquot.kubernetes.node.settle import Told

SECONDS = 5.0

_log = structlog.get_logger(__name__)


class PodResources:
    """The kubelet's PodResources socket."""

    def __init__(self, socket: Path) -> None:
        self._channel = wire.dial(socket)
        self._get = wire.GET.on(self._channel)
        self._list = wire.LIST.on(self._channel)
        self._has_get = True

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    async def told(self, owner: Owner) -> Told | None:
        """The device ids of a pod's containers, by resource; None where the kubelet says nothing.

        Containers without any are left out.
        """
        try:
            pod = await self._ask(owner)
        except grpc.aio.AioRpcError as error:
            if "not found" in (error.details() or ""):
                return {}
            _log.debug("the kubelet does not say", pod=owner.pod, why=error.details())
            return None
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for container in pod.containers if pod else ():
            for one in container.devices:  # one for each NUMA node
                units = found.setdefault(container.name, {})
                known = units.get(one.resource_name, ())
                units[one.resource_name] = (*known, *one.device_ids)
        return found

    async def _ask(self, owner: Owner) -> wire_types.PodResources | None:
        if self._has_get:
            asked = wire_types.GetPodResourcesRequest(
                pod_name=owner.pod, pod_namespace=owner.namespace
            )
            try:
                answer = await self._get(asked, timeout=SECONDS, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                if not _says_no_get(error):
                    raise
                self._has_get = False
            else:
                return answer.pod_resources  # type: ignore[no-any-return]
        listed = await self._list(wire_types.ListPodResourcesRequest(), timeout=SECONDS)
        for pod in listed.pod_resources:
            if (pod.namespace, pod.name) == (owner.namespace, owner.pod):
                return pod  # type: ignore[no-any-return]
        return None


def _says_no_get(error: grpc.aio.AioRpcError) -> bool:
    return error.code() == grpc.StatusCode.UNIMPLEMENTED or "disabled" in (error.details() or "")


class Identity:
    """Puts right which container the books give to what was allocated."""

    def __init__(self, record: Record, roster: Roster, kubelet: PodResources) -> None:
        self._record = record
        self._roster = roster
        self._kubelet = kubelet
        self.corrections = 0

    async def confirm(self, name: str) -> Held | None:
        """What a grant holds, with the name of who really has it; None: it is no longer held.

        The name stays as it is, and not sure, where the kubelet says nothing.
        """
        for pod in self._likely(name):
            self._settle(pod, await self._kubelet.told(pod) or {})
            now = self._record.books.held.get(name)
            if now is None or now.sure:
                break
        return self._record.books.held.get(name)

    def _settle(self, pod: Owner, told: Told) -> None:
        guest = self._roster.get(pod.uid)
        with self._record.changing() as books:
            wrong = settle(books, pod, told, guest.requests if guest else ())
        if wrong:
            self.corrections += wrong
            _log.info("containers were taken for others", pod=f"{pod.namespace}/{pod.pod}")

    def _likely(self, name: str) -> Iterator[Owner]:
        """Which pods to ask about, the likeliest first: its own, then all that are not sure."""
        held = self._record.books.held.get(name)
        if held is None or held.sure:
            return
        asked = {held.owner.uid}
        if held.owner.pod:
            yield held.owner
        for guest in self._roster.live():
            known = self._record.books.of_pod(guest.uid)
            if guest.uid not in asked and not (known and all(one.sure for one in known)):
                asked.add(guest.uid)
                yield guest.owner
