"""Keeps the node's ResourceSlices as they should be, also if others change or delete them.

A kubelet that starts deletes the ResourceSlices of its node, and so does one whose driver was away
for a while. So the agent watches them, and writes what is missing. All slices of the pool have one
generation: a change gives all of them the next one, and schedulers wait until they have seen all.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.dra import DRIVER, RESOURCE_SLICES, ResourceSlice
from aliquot.kubernetes.api.names import GROUP
from aliquot.kubernetes.api.objects import NODES, Meta, OwnerReference
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.node.dra.devices import digest_of
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.kubernetes.api.client import Client

CONTENT = f"{GROUP}/content"  # an annotation: the digest of what the agent wrote
BATCH_SECONDS = 0.1  # changes at nearly the same time are written together
LATE_SECONDS = 10.0
DROPPED = "the API server dropped fields of the node's devices, which claims could then overbook"

_log = structlog.get_logger(__name__)


class DroppedFieldsError(AliquotError):
    """The API server lacks features that the devices need."""


class SlicePublisher:
    """Writes the slices that `specs` gives, after each `change` and whenever one differs."""

    def __init__(
        self, client: Client, node: str, specs: Callable[[], list[dict[str, Any]]]
    ) -> None:
        self._client = client
        self._node = node
        self._specs = specs
        self._changed = asyncio.Event()
        self._changed.set()
        self._failing_since: float | None = None
        self._failure = ""
        self.watch = Watch(
            client,
            RESOURCE_SLICES,
            lambda _old, _new: self._changed.set(),
            fields=f"spec.nodeName={node},spec.driver={DRIVER}",
        )

    def change(self) -> None:
        """Note that the slices may have to change."""
        self._changed.set()

    @property
    def problem(self) -> str:
        """Why the slices may not be as they should; empty: they are, as far as is known."""
        since = self._failing_since
        if since is None or time.monotonic() - since < LATE_SECONDS:
            return ""
        return f"they cannot be written: {self._failure}"

    async def run(self) -> None:
        """Write until cancelled."""
        await self.watch.wait_synced()
        backoff = Backoff(most=5.0)
        while True:
            await self._changed.wait()
            await asyncio.sleep(BATCH_SECONDS)
            self._changed.clear()
            try:
                await self._write_all()
            except AliquotError as error:
                _log.warning("cannot write the ResourceSlices", why=error.message)
                self._failing_since = self._failing_since or time.monotonic()
                self._failure = error.message
                self._changed.set()
                await asyncio.sleep(backoff.wait())
            else:
                self._failing_since = None
                backoff.reset()

    async def _write_all(self) -> None:
        specs = {f"{self._node}-{DRIVER}-{n}": spec for n, spec in enumerate(self._specs())}
        there = {name: one for (_, name), one in self.watch.objects.items()}
        if _is_right(there, specs):
            return
        generation = 1 + max((_generation(one) for one in there.values()), default=0)
        owner = await self._owner()
        for name, spec in specs.items():
            pool = {**spec["pool"], "generation": generation}
            meta = Meta(
                name=name, annotations={CONTENT: digest_of(spec)}, owner_references=(owner,)
            )
            wanted = ResourceSlice(meta, {**spec, "pool": pool})
            written = await self._write(wanted, there.get(name))
            if not _has_all(written.spec, spec):
                await self._client.delete(RESOURCE_SLICES, name)
                raise DroppedFieldsError(DROPPED, "Use Kubernetes 1.36 with its default features.")
        for name in there.keys() - specs.keys():
            await self._client.delete(RESOURCE_SLICES, name)
        _log.info("wrote the ResourceSlices", slices=len(specs), generation=generation)

    async def _write(self, one: ResourceSlice, before: ResourceSlice | None) -> ResourceSlice:
        """The slice as the API server has it now."""
        if before is not None:
            version = before.metadata.resource_version
            meta = msgspec.structs.replace(one.metadata, resource_version=version)
            try:
                return await self._client.replace(
                    RESOURCE_SLICES, msgspec.structs.replace(one, metadata=meta)
                )
            except ApiError as error:
                if not error.not_found:
                    raise
        return await self._client.create(RESOURCE_SLICES, one)

    async def _owner(self) -> OwnerReference:
        """The Node, with which the slices go; ApiError if there is no such Node."""
        node = await self._client.get(NODES, self._node)
        return OwnerReference(NODES.api_version, NODES.kind, self._node, node.metadata.uid)


def _has_all(written: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the API server has kept what makes the devices exclude each other.

    It drops the fields of features that it does not have.
    """
    kept = {one["name"]: one for one in written.get("devices", ())}
    return all(
        bool(kept.get(one["name"], {}).get(field)) == bool(one.get(field))
        for one in wanted.get("devices", ())
        for field in ("consumesCounters", "allowMultipleAllocations", "taints")
    )


def _is_right(there: Mapping[str, ResourceSlice], specs: Mapping[str, dict[str, Any]]) -> bool:
    """Whether exactly these slices are there, of one generation."""
    digests = {name: one.metadata.annotations.get(CONTENT) for name, one in there.items()}
    generations = {_generation(one) for one in there.values()}
    wanted = {name: digest_of(spec) for name, spec in specs.items()}
    return digests == wanted and len(generations) <= 1


def _generation(one: ResourceSlice) -> int:
    generation = one.spec.get("pool", {}).get("generation", 0)
    return int(generation) if isinstance(generation, int) else 0
