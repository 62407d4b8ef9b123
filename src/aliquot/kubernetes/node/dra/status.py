"""Size and identity of a grant in its claim's status, for people and other programs.

Nothing waits for it: a claim is prepared whether or not its status could be written.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.dra import (
    DRIVER,
    RESOURCE_CLAIMS,
    DeviceCondition,
    DeviceStatus,
    ResourceClaim,
    ResourceClaimStatus,
)
from aliquot.kubernetes.api.objects import Meta
from aliquot.kubernetes.api.times import stamp
from aliquot.model import format_bytes, format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.node.grants.allocations import HostGpu
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant

_log = structlog.get_logger(__name__)


class ClaimStatusWriter:
    """Writes the status of each claim whose grant is new or has changed."""

    def __init__(self, client: Client, saved: SavedAllocations) -> None:
        self._client = client
        self._saved = saved
        self._written: dict[str, tuple[DeviceStatus, ...]] = {}  # by the claim's UID
        self._changed = asyncio.Event()
        self._changed.set()

    def change(self) -> None:
        """Note that grants may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff(most=30.0)
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write_all()
            except ApiError as error:
                _log.warning("cannot write a resource claim's status", why=error.message)
                self._changed.set()
                await asyncio.sleep(backoff.wait())
            else:
                backoff.reset()

    async def _write_all(self) -> None:
        """Write what differs; ApiError if something may be written later."""
        grants = {
            grant.claim.uid: grant for grant in self._saved.allocations.saved() if grant.claim
        }
        self._written = {uid: one for uid, one in self._written.items() if uid in grants}
        failed = None
        for uid, grant in grants.items():
            wanted = statuses_of(grant, self._saved.allocations.gpus)
            if self._written.get(uid) == wanted:
                continue
            try:
                await self._write(grant, wanted)
            except ApiError as error:
                if error.passing:
                    failed = error
                    continue
                _log.warning("a resource claim's status is not written", why=error.message)
            self._written[uid] = wanted
        if failed is not None:
            raise failed

    async def _write(self, grant: ContainerGrant, devices: tuple[DeviceStatus, ...]) -> None:
        claim = grant.claim
        assert claim is not None  # noqa: S101 - only such grants come here
        meta = Meta(name=claim.name, namespace=claim.namespace, uid=claim.uid)
        one = ResourceClaim(meta, ResourceClaimStatus(devices=devices))
        await self._client.apply(RESOURCE_CLAIMS, one, manager=names.AGENT, sub="status")


def statuses_of(grant: ContainerGrant, gpus: Mapping[str, HostGpu]) -> tuple[DeviceStatus, ...]:
    """What the driver says about each device of a claim."""
    claim = grant.claim
    if claim is None:
        return ()
    sizes = dict(zip((part.gpu for part in grant.allocated), grant.current.memory, strict=True))
    return tuple(
        DeviceStatus(
            driver=DRIVER,
            pool=one.pool,
            device=one.device,
            share_id=one.share_id,
            conditions=(
                DeviceCondition(
                    type="Ready",
                    status="True",
                    reason="GrantMade",
                    message=_sentence(grant, gpus[one.gpu], sizes[one.gpu]),
                    last_transition_time=stamp(claim.made),
                ),
            ),
            data=_data(grant, gpus[one.gpu], sizes[one.gpu]),
        )
        for one in claim.devices
    )


def _sentence(grant: ContainerGrant, gpu: HostGpu, size: int) -> str:
    if grant.kind == "whole":
        return f"the whole of {gpu}"
    share = format_share(grant.current.compute)
    return f"{format_bytes(size)} of {gpu}, compute: {share}"


def _data(grant: ContainerGrant, gpu: HostGpu, size: int) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "kind": grant.kind,
        "memory": _quantity(size),
        "compute": grant.current.compute,
        "policy": str(grant.current.policy),
        "priority": str(grant.current.priority),
        "grant": grant.name,
    }


def _quantity(size: int) -> str:
    """Bytes as people write them in manifests."""
    units = ((1 << shift, unit) for shift, unit in ((30, "Gi"), (20, "Mi")))
    return next((f"{size // one}{unit}" for one, unit in units if size % one == 0), str(size))
