"""The driver's two sockets: one by which the kubelet finds it, one for its calls.

    KUBELET/plugins_registry/aliquot.io-reg.sock    the kubelet watches this folder
    KUBELET/plugins/aliquot.io/dra.sock             the calls about resource claims

The second one also tells the kubelet the health of all devices, which it writes into the status of
pods that have them. A kubelet that starts finds the sockets that are there, and registers the
driver again by itself. The agent serves them again if somebody removes one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog

from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.kubelet import dra_health_pb2 as health
from aliquot.kubernetes.kubelet import dra_pb2 as messages
from aliquot.kubernetes.kubelet import pluginregistration_pb2 as registration
from aliquot.kubernetes.kubelet import wire
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from pathlib import Path

    import grpc.aio

    from aliquot.kubernetes.node.grants.grant import ResourceClaimDevice

Prepare = Callable[
    [str, str, str], Awaitable[tuple[tuple["ResourceClaimDevice", ...], tuple[str, ...]]]
]
Unprepare = Callable[[str], Awaitable[None]]
Health = Callable[[], list[tuple[str, str, str]]]

CHECK_SECONDS = 1.0
REPEAT_SECONDS = 20.0  # the kubelet hears of all devices at least so often
UNKNOWN_SECONDS = 90  # and takes the health of one for unknown after this

_log = structlog.get_logger(__name__)


class DraPlugin:
    """Serves both sockets. `prepare` gets a claim's namespace, name and UID.

    It returns the claim's devices and the names of the CDI devices that its containers get;
    `unprepare` gets the UID. `health` gives pool, name and problem of each device.
    """

    def __init__(
        self, kubelet: Path, prepare: Prepare, unprepare: Unprepare, health: Health
    ) -> None:
        self.registry = kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
        self.socket = kubelet / "plugins" / DRIVER / "dra.sock"
        self._prepare = prepare
        self._unprepare = unprepare
        self._health = health
        self._changes = Changes()
        self._servers: list[grpc.aio.Server] = []
        self.registered = False
        self.registrations = 0

    def notify(self) -> None:
        """Note that the health of a device may have changed."""
        self._changes.notify()

    async def run(self) -> None:
        """Serve until cancelled."""
        while not self.registry.parent.is_dir():
            await asyncio.sleep(CHECK_SECONDS)
        try:
            while True:
                await self._serve()
                while self.socket.exists() and self.registry.exists():
                    await asyncio.sleep(CHECK_SECONDS)
                _log.info("a socket of the driver is gone: serving them again")
                await self._stop()
        finally:
            await self._stop()

    async def _serve(self) -> None:
        self.socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        calls = wire.server(
            wire.PREPARE.by(self._on_prepare),
            wire.UNPREPARE.by(self._on_unprepare),
            wire.WATCH_HEALTH.by(self._on_watch_health),
        )
        finding = wire.server(
            wire.GET_INFO.by(self._on_get_info), wire.NOTIFY_REGISTRATION.by(self._on_notify)
        )
        # The socket by which the kubelet finds the driver comes last: it calls at once.
        for server, socket in ((calls, self.socket), (finding, self.registry)):
            wire.listen(server, socket)
            await server.start()
            self._servers.append(server)

    async def _stop(self) -> None:
        self.registered = False
        self.registry.unlink(missing_ok=True)
        servers, self._servers = self._servers, []
        for server in reversed(servers):
            await server.stop(None)
        self.socket.unlink(missing_ok=True)

    # --- the kubelet's calls ----------------------------------------------------------------------

    async def _on_get_info(
        self, _: registration.InfoRequest, __: wire.Context
    ) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=wire.DRA_TYPE,
            name=DRIVER,
            endpoint=str(self.socket),
            supported_versions=[wire.DRA_VERSION],
        )

    async def _on_notify(
        self, said: registration.RegistrationStatus, _: wire.Context
    ) -> registration.RegistrationStatusResponse:
        self.registered = said.plugin_registered
        if said.plugin_registered:
            self.registrations += 1
            _log.info("the kubelet has registered the driver", driver=DRIVER)
        else:
            _log.warning("the kubelet does not accept the driver", why=said.error)
        return registration.RegistrationStatusResponse()

    async def _on_prepare(
        self, asked: messages.NodePrepareResourcesRequest, _: wire.Context
    ) -> messages.NodePrepareResourcesResponse:
        async def one(claim: messages.Claim) -> messages.NodePrepareResourceResponse:
            try:
                answer = await self._prepare(claim.namespace, claim.name, claim.uid)
            except (AliquotError, OSError) as error:
                return messages.NodePrepareResourceResponse(error=_why("prepare", claim, error))
            return messages.NodePrepareResourceResponse(devices=_devices(*answer))

        found = await asyncio.gather(*map(one, asked.claims))
        by_uid = {claim.uid: said for claim, said in zip(asked.claims, found, strict=True)}
        return messages.NodePrepareResourcesResponse(claims=by_uid)

    async def _on_watch_health(
        self, _: health.NodeWatchResourcesRequest, __: wire.Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        while True:
            count = self._changes.count
            now = int(time.time())
            yield health.NodeWatchResourcesResponse(
                devices=[_device_health(*one, now) for one in self._health()]
            )
            if self._changes.count == count:
                await self._changes.wait(REPEAT_SECONDS)

    async def _on_unprepare(
        self, asked: messages.NodeUnprepareResourcesRequest, _: wire.Context
    ) -> messages.NodeUnprepareResourcesResponse:
        async def one(claim: messages.Claim) -> messages.NodeUnprepareResourceResponse:
            try:
                await self._unprepare(claim.uid)
            except (AliquotError, OSError) as error:
                text = _why("unprepare", claim, error)
                return messages.NodeUnprepareResourceResponse(error=text)
            return messages.NodeUnprepareResourceResponse()

        found = await asyncio.gather(*map(one, asked.claims))
        by_uid = {claim.uid: said for claim, said in zip(asked.claims, found, strict=True)}
        return messages.NodeUnprepareResourcesResponse(claims=by_uid)


def _devices(found: tuple[ResourceClaimDevice, ...], cdi: tuple[str, ...]) -> list[messages.Device]:
    """The devices for the kubelet: the first one brings the grant, whatever request is named.

    A container that names one request of several gets the CDI devices of that request's devices
    alone, and one that names the claim those of all. Each must get the grant, and get it once.
    """
    requests = list(dict.fromkeys(one.request for one in found))
    made: list[messages.Device] = []
    for one in found:
        first: dict[str, Any] = {"request_names": requests, "cdi_device_ids": cdi}
        made.append(
            messages.Device(
                pool_name=one.pool,
                device_name=one.device,
                share_id=one.share_id,
                **({"request_names": [one.request]} if made else first),
            )
        )
    return made


def _device_health(pool: str, device: str, problem: str, now: int) -> health.DeviceHealth:
    return health.DeviceHealth(
        device=health.DeviceIdentifier(pool_name=pool, device_name=device),
        health=health.UNHEALTHY if problem else health.HEALTHY,
        last_updated_time=now,
        health_check_timeout_seconds=UNKNOWN_SECONDS,
        message=problem,
    )


def _why(call: str, claim: messages.Claim, error: Exception) -> str:
    text = error.one_line if isinstance(error, AliquotError) else str(error)
    _log.warning("a call of the kubelet failed", call=call, name=claim.name, why=text)
    return text
