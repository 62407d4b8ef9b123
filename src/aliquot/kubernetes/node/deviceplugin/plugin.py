"""One device plugin: the gRPC server of one resource, which the kubelet calls."""

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

    from aliquot.containers.container_edits import ContainerEdits
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.kubernetes.node.grants.injection import Injection

ListIds = Callable[[], list[tuple[str, bool]]]
Allocate = Callable[[str, tuple[str, ...]], Awaitable["ContainerGrant | None"]]
Start = Callable[[str, tuple[str, ...]], Awaitable[None]]

OPTIONS = messages.DevicePluginOptions(pre_start_required=True)

# For each list the kubelet writes a file with all ids and all that containers got. The plugin sends
# a change at once, and the changes that follow it together.
BATCH_SECONDS = 0.5

_log = structlog.get_logger(__name__)


class Plugin:
    """A resource as the kubelet sees it. `notify` sends its ids again if they have changed."""

    def __init__(  # noqa: PLR0913 - its resource, and the answers to its calls
        self,
        resource: str,
        folder: Path,
        ids: ListIds,
        *,
        allocate: Allocate,
        start: Start,
        injection: Injection,
    ) -> None:
        self.resource = resource
        self.socket = folder / f"aliquot-{resource.replace('/', '_')}.sock"
        self.lost = asyncio.Event()  # the kubelet followed the ids, and does no longer
        self._ids = ids
        self._allocate = allocate
        self._start = start
        self._injection = injection
        self._server: Any = None
        self._changes = Changes()
        self._streams: dict[object, int] = {}  # how many changes each stream has been sent
        self._sent = Changes()

    @property
    def followed(self) -> bool:
        """Whether the kubelet follows the list of ids."""
        return bool(self._streams)

    def notify(self) -> None:
        """Note that the ids may have changed."""
        self._changes.notify()

    async def wait_sent(self) -> None:
        """Wait until the kubelet has been sent the ids as they are now, if it follows them."""
        count = self._changes.count
        while any(sent < count for sent in self._streams.values()):
            await self._sent.wait()

    async def serve(self) -> None:
        """Listen on the socket."""
        self.lost = asyncio.Event()
        self._server = wire.server(
            wire.OPTIONS.by(self._on_options),
            wire.LIST_AND_WATCH.by(self._on_list_and_watch),
            wire.PREFERRED.by(self._on_preferred),
            wire.ALLOCATE.by(self._on_allocate),
            wire.PRE_START.by(self._on_pre_start),
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
        """Register the plugin with the kubelet."""
        request = messages.RegisterRequest(
            version=wire.VERSION,
            endpoint=self.socket.name,
            resource_name=self.resource,
            options=OPTIONS,
        )
        await wire.REGISTER.on(kubelet)(request, timeout=10.0, wait_for_ready=True)

    # --- the kubelet's calls ----------------------------------------------------------------------

    async def _on_options(
        self, _: messages.Empty, __: wire.Context
    ) -> messages.DevicePluginOptions:
        return OPTIONS

    async def _on_list_and_watch(
        self, _: messages.Empty, __: wire.Context
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        stream, sent, lost = object(), None, self.lost
        self._streams[stream] = -1
        try:
            while True:
                count, ids = self._changes.count, self._ids()
                if ids != sent:
                    yield _list_response(ids)
                    sent = ids
                self._streams[stream] = count
                self._sent.notify()
                await asyncio.sleep(BATCH_SECONDS)
                while self._changes.count == count:
                    await self._changes.wait()
        finally:
            del self._streams[stream]
            self._sent.notify()
            lost.set()

    async def _on_preferred(
        self, asked: messages.PreferredAllocationRequest, _: wire.Context
    ) -> messages.PreferredAllocationResponse:
        """Any ids will do: all are the same."""
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

    async def _on_allocate(
        self, asked: messages.AllocateRequest, context: wire.Context
    ) -> messages.AllocateResponse:
        answer = messages.AllocateResponse()
        for one in asked.container_requests:
            try:
                grant = await self._allocate(self.resource, tuple(one.devices_ids))
                response = self._response(grant) if grant else messages.ContainerAllocateResponse()
            except (AliquotError, OSError) as error:
                await self._abort(context, "Allocate", error)
                continue
            answer.container_responses.append(response)
        return answer

    async def _on_pre_start(
        self, asked: messages.PreStartContainerRequest, context: wire.Context
    ) -> messages.PreStartContainerResponse:
        try:
            await self._start(self.resource, tuple(asked.devices_ids))
        except (AliquotError, OSError) as error:
            await self._abort(context, "PreStartContainer", error)
        return messages.PreStartContainerResponse()

    def _response(self, grant: ContainerGrant) -> messages.ContainerAllocateResponse:
        edits = self._injection.edits(grant)
        if devices := self._injection.cdi_devices(grant):
            # The specs have the variables too, but each runtime has its own order of an image's
            # variables and a spec's. The kubelet's always win over the image's.
            return messages.ContainerAllocateResponse(
                envs=dict(edits.environment),
                cdi_devices=[messages.CDIDevice(name=name) for name in devices],
            )
        return _mounts_response(edits)

    async def _abort(self, context: wire.Context, call: str, error: Exception) -> None:
        text = error.one_line if isinstance(error, AliquotError) else str(error)
        _log.warning("refused a call of the kubelet", call=call, resource=self.resource, why=text)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)


def _list_response(ids: list[tuple[str, bool]]) -> messages.ListAndWatchResponse:
    return messages.ListAndWatchResponse(
        devices=[
            messages.Device(ID=id_, health=wire.HEALTHY if healthy else wire.UNHEALTHY)
            for id_, healthy in ids
        ]
    )


def _mounts_response(edits: ContainerEdits) -> messages.ContainerAllocateResponse:
    return messages.ContainerAllocateResponse(
        envs=dict(edits.environment),
        mounts=[
            messages.Mount(
                container_path=str(one.target), host_path=str(one.source), read_only=one.read_only
            )
            for one in edits.mounts
        ],
        devices=[
            messages.DeviceSpec(container_path=str(one), host_path=str(one), permissions="rw")
            for one in edits.devices
        ],
    )
