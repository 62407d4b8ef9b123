"""The leader's EndpointSlice: the Service of the extender leads to the replica that decides.

Every replica is ready, so that rollouts end and budgets count; only the leader gets connections.
The Service has no selector. Each replica has a slice of its own, by its pod's name and owned by its
pod; the one that decides writes its slice and deletes all others of the Service. A replica that
stops deciding deletes its own. So no two replicas write the same object, and what a dead replica
left behind leads nowhere as soon as the next one decides.

A Service that had a selector before an upgrade still has the slices, and the Endpoints object, that
Kubernetes made for it, with addresses of pods that are gone: they are deleted too.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.names import SCHEDULER
from aliquot.kubernetes.api.objects import (
    ENDPOINT_SLICES,
    ENDPOINTS,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Meta,
    OwnerReference,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.client import Client

LOOK_SECONDS = 0.1  # between two looks whether this replica decides
REPEAT_SECONDS = 10.0  # somebody may have changed the slices
WITHDRAW_SECONDS = 2.0
PORT_NAME = "https"
OF_SERVICE = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OwnEndpoint:
    """A Service, and the pod of this replica: its name, UID, address and port."""

    service: str
    pod: str
    uid: str
    address: str
    port: int


class EndpointWriter:
    """Leads the Service to this replica while `decides()`."""

    def __init__(
        self, client: Client, namespace: str, own: OwnEndpoint, decides: Callable[[], bool]
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._own = own
        self._decides = decides
        self._written = False
        self._due = 0.0

    async def run(self) -> None:
        """Keep the slices, until cancelled; then delete this replica's."""
        try:
            while True:
                try:
                    await self._keep()
                except ApiError as error:
                    _log.warning(
                        "cannot write the EndpointSlice",
                        service=f"{self._namespace}/{self._own.service}",
                        why=error.message,
                    )
                    await asyncio.sleep(1.0)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            with suppress(ApiError, TimeoutError):
                async with asyncio.timeout(WITHDRAW_SECONDS):
                    await self._withdraw()

    async def _keep(self) -> None:
        if not self._decides():
            await self._withdraw()
        elif not self._written or time.monotonic() >= self._due:
            await self._write()
            await self._delete_others()
            self._due = time.monotonic() + REPEAT_SECONDS

    async def _write(self) -> None:
        slice_ = self._slice()
        self._written = True  # also if the answer is lost
        try:
            await self._client.create(ENDPOINT_SLICES, slice_)
        except ApiError as error:
            if not error.conflict:
                raise
            patch = {
                "endpoints": msgspec.to_builtins(slice_.endpoints),
                "ports": msgspec.to_builtins(slice_.ports),
            }
            name = slice_.metadata.name
            await self._client.patch(ENDPOINT_SLICES, name, patch, namespace=self._namespace)

    async def _delete_others(self) -> None:
        # First the old form: Kubernetes copies it into slices.
        await self._client.delete(ENDPOINTS, self._own.service, self._namespace)
        label = f"{OF_SERVICE}={self._own.service}"
        found = await self._client.list(ENDPOINT_SLICES, self._namespace, labels=label)
        for one in found.items:
            if one.metadata.name != self._own.pod and self._decides():
                await self._client.delete(ENDPOINT_SLICES, one.metadata.name, self._namespace)

    async def _withdraw(self) -> None:
        if self._written:
            await self._client.delete(ENDPOINT_SLICES, self._own.pod, self._namespace)
            self._written = False

    def _slice(self) -> EndpointSlice:
        own = self._own
        return EndpointSlice(
            metadata=Meta(
                name=own.pod,
                namespace=self._namespace,
                labels={OF_SERVICE: own.service, MANAGED_BY: SCHEDULER},
                owner_references=(OwnerReference("v1", "Pod", own.pod, own.uid),),
            ),
            address_type="IPv6" if ":" in own.address else "IPv4",
            endpoints=(Endpoint((own.address,)),),
            ports=(EndpointPort(PORT_NAME, own.port),),
        )
