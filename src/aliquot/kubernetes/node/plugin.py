"""One device plugin: the server of one resource, which the kubelet calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.kubelet import deviceplugin_pb2 as messages
from aliquot.kubernetes.kubelet import wire
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.kubernetes.node.held import Held

Ids = Callable[[], list[tuple[str, bool]]]
Allocate = Callable[[str, tuple[str, ...]], Awaitable["Held | None"]]
Start = Callable[[str, tuple[str, ...]], Awaitable[None]]
Outfit = Callable[["Held"], messages.ContainerAllocateResponse]

OPTIONS = messages.DevicePluginOptions(pre_start_required=True)

# For each list the kubelet writes a file with all ids and all that containers got. A change is told
# at once; those that follow it, together.
APART_SECONDS = 0.5

_log = structlog.get_logger(__name__)


class Plugin:
    """A resource as the kubelet sees it. Its ids are told anew when `tell` is called."""

    def __init__(  # noqa: PLR0913 - what it is, and who answers its calls
        self,
        resource: str,
        folder: Path,
        ids: Ids,
        *,
        allocate: Allocate,
        start: Start,
        outfit: Outfit,
    ) -> None:
        self.resource = resource
        self.socket = folder / f"aliquot-{resource.replace('/', '_')}.sock"
        self.lost = asyncio.Event()  # the kubelet listened, and does no longer
        self._ids = ids
        self._allocate = allocate
        self._start = start
        self._outfit = outfit
        self._server: Any = None
        self._changes = Changes()
        self._streams: dict[object, int] = {}  # of how many changes each has been told
        self._told = Changes()  # of these streams

    @property
    def listened(self) -> bool:
        """Whether the kubelet follows the list of ids."""
        return bool(self._streams)

    def tell(self) -> None:
        """The ids may have changed."""
        self._changes.notify()

    async def told(self) -> None:
        """Until the kubelet has been sent what is so now, if it listens."""
        count = self._changes.count
        while any(known < count for known in self._streams.values()):
            await self._told.wait()

    async def serve(self) -> None:
        """Listen on the socket."""
        self.lost = asyncio.Event()
        self._server = wire.server(
            wire.OPTIONS.by(self._options),
            wire.LIST_AND_WATCH.by(self._list_and_watch),
            wire.PREFERRED.by(self._preferred),
            wire.ALLOCATE.by(self._allocated),
            wire.PRE_START.by(self._pre_start),
        )
        wire.listen(self._server, self.socket)
        await self._server.start()

    async def stop(self) -> None:
        """End all calls and stop listening."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)
            self.socket.unlink(missing_ok=True)

    async def register(self, kubelet: grpc.aio.Channel) -> None:
        """Make the plugin known to the kubelet."""
        asked = messages.RegisterRequest(
            version=wire.VERSION,
            endpoint=self.socket.name,
            resource_name=self.resource,
            options=OPTIONS,
        )
        await wire.REGISTER.on(kubelet)(asked, timeout=10.0, wait_for_ready=True)

    # --- what the kubelet calls -------------------------------------------------------------------

    async def _options(self, _: messages.Empty, __: wire.Context) -> messages.DevicePluginOptions:
        return OPTIONS

    async def _list_and_watch(
        self, _: messages.Empty, __: wire.Context
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        stream, said, lost = object(), None, self.lost
        self._streams[stream] = -1
        try:
            while True:
                count, ids = self._changes.count, self._ids()
                if ids != said:
                    yield _listed(ids)
                    said = ids
                self._streams[stream] = count
                self._told.notify()
                await asyncio.sleep(APART_SECONDS)
                while self._changes.count == count:
                    await self._changes.wait()
        finally:
            del self._streams[stream]
            self._told.notify()
            lost.set()

    async def _preferred(
        self, asked: messages.PreferredAllocationRequest, _: wire.Context
    ) -> messages.PreferredAllocationResponse:
        """Ids are all the same: whatever the kubelet likes."""
        return messages.PreferredAllocationResponse(
            container_responses=[
                messages.ContainerPreferredAllocationResponse(
                    deviceIDs=[
                        *one.must_include_deviceIDs,
                        *(
                            id_
                            for id_ in one.available_deviceIDs
                            if id_ not in one.must_include_deviceIDs
                        ),
                    ][: one.allocation_size]
                )
                for one in asked.container_requests
            ]
        )

    async def _allocated(
        self, asked: messages.AllocateRequest, context: wire.Context
    ) -> messages.AllocateResponse:
        answer = messages.AllocateResponse()
        for one in asked.container_requests:
            try:
                held = await self._allocate(self.resource, tuple(one.devices_ids))
            except (AliquotError, OSError) as error:
                await self._abort(context, "Allocate", error)
                continue
            got = self._outfit(held) if held else messages.ContainerAllocateResponse()
            answer.container_responses.append(got)
        return answer

    async def _pre_start(
        self, asked: messages.PreStartContainerRequest, context: wire.Context
    ) -> messages.PreStartContainerResponse:
        try:
            await self._start(self.resource, tuple(asked.devices_ids))
        except (AliquotError, OSError) as error:
            await self._abort(context, "PreStartContainer", error)
        return messages.PreStartContainerResponse()

    async def _abort(self, context: wire.Context, what: str, error: Exception) -> None:
        text = str(error).replace("\n ", "")
        _log.warning("refused", call=what, resource=self.resource, why=text)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)


def _listed(ids: list[tuple[str, bool]]) -> messages.ListAndWatchResponse:
    return messages.ListAndWatchResponse(
        devices=[
            messages.Device(ID=id_, health=wire.HEALTHY if healthy else wire.UNHEALTHY)
            for id_, healthy in ids
        ]
    )
