"""Grants in the node's arbiter: made when a container starts, released when its pod has ended.

The arbiter may be restarting at any moment. The agent asks until it answers, for no longer than the
kubelet waits. Making a grant that exists brings it to the wanted settings, so the kubelet may start
a container as often as it likes.

A grant's GPUs are free again only when its pod is gone or has ended, and its processes too,
whatever the kubelet does with the device ids. If the owner is not confirmed, it is confirmed first:
another pod may be the one that still runs. A grant whose owner cannot be confirmed stays while a
running container has it: its pod may not be known here yet, or not as long as no scheduler leads.
So does every grant where pods come through the GPUNode, which may have those of long ago.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from aliquot.model import Life, Slice
from aliquot.model.errors import AliquotError, NameInUseError, NoCapacityError
from aliquot.slices import control, state_directory
from aliquot.slices.control import SliceChange

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant, SliceSettings
    from aliquot.kubernetes.node.pods import NodePods
    from aliquot.model.parking_rule import ParkingRule
    from aliquot.slices.arbiter_status import Status

ANSWER_SECONDS = 15.0
RETRY_SECONDS = 0.05
UNKNOWN_SECONDS = 60.0  # after this a grant whose owner is still unknown is released

_OURS = re.compile("(whole|shared|sliced)-[0-9a-f]{12}")

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class OwnerCheck(Protocol):
    """Finds the owners of grants: each way by which containers ask for grants has one."""

    async def confirm(self, name: str) -> ContainerGrant | None:
        """The grant with its owner confirmed, if that is possible; None if it is gone."""

    def may_be_confirmed(self, grant: ContainerGrant) -> bool:
        """Whether the owner of a grant that is not confirmed may still turn up."""


class ArbiterGrants:
    """The container grants in the arbiter of one state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def folder(self, grant: ContainerGrant) -> Path:
        """The grant's folder, which its container sees."""
        return self.directory / state_directory.KEPT / grant.name

    async def status(self) -> Status:
        """The arbiter's status; NoArbiterError if none answers."""
        return await asyncio.to_thread(control.status, self.directory)

    async def make(
        self, grant: ContainerGrant, together: str | None, parking: ParkingRule | None = None
    ) -> None:
        """Make sure that the grant exists, with its current settings.

        `together` and `parking` count only for a new grant.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                await self._ask(lambda: self._make(grant, together, parking))
            except NameInUseError:
                if await self._is_kept(grant.name):
                    await self.change(grant, grant.current)
                    return
                if time.monotonic() > deadline:  # its processes do not leave an ended grant
                    raise
            except NoCapacityError:
                if time.monotonic() > deadline:  # a grant that is ending has not ended in time
                    raise
            else:
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _make(
        self, grant: ContainerGrant, together: str | None, parking: ParkingRule | None
    ) -> None:
        control.make(
            self.directory,
            grant.name,
            slices_of(grant),
            kept=True,
            together=together,
            swap=grant.copier > 0,
            park_after=parking,
            overcommit=grant.overcommit or 0.0,
        )

    async def change(self, grant: ContainerGrant, to: SliceSettings) -> None:
        """Change an existing grant: all of it, or nothing."""
        changes = [
            SliceChange(part.gpu, size - grant.copier, to.compute, to.policy, to.priority)
            for part, size in zip(grant.allocated, to.memory, strict=True)
        ]
        await self._ask(lambda: control.resize(self.directory, grant.name, changes))

    async def set_cgroup(self, name: str, path: str) -> None:
        """Say which cgroup the grant's container has."""
        await self._ask(lambda: control.set_cgroup(self.directory, name, path))

    async def end(self, name: str) -> bool:
        """Let no more processes join; whether the grant is gone, because no process has it."""
        return await self._ask(lambda: control.end(self.directory, name))

    async def _is_kept(self, name: str) -> bool:
        status = await self._ask(lambda: control.status(self.directory))
        return any(one.name == name and one.life is Life.KEPT for one in status.grants)

    async def _ask(self, question: Callable[[], T]) -> T:
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return await asyncio.to_thread(question)
            except control.NoArbiterError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)


def slices_of(grant: ContainerGrant) -> list[Slice]:
    """The slices that the arbiter makes for a grant."""
    now = grant.current
    return [
        Slice(part.gpu, size - grant.copier, now.compute, now.policy, now.priority)
        for part, size in zip(grant.allocated, now.memory, strict=True)
    ]


class Releaser:
    """Ends the grants of pods that have ended, and frees their GPUs.

    Grants of resource claims may outlive a pod. If `has_driver`, the DRA driver ends them.
    `mounted` gives the names of the grants that running containers have.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        saved: SavedAllocations,
        pods: NodePods,
        arbiter: ArbiterGrants,
        owners: OwnerCheck,
        mounted: Callable[[], Collection[str]],
        *,
        has_driver: bool = False,
    ) -> None:
        self._saved = saved
        self._mounted = mounted
        self._has_driver = has_driver
        self._pods = pods
        self._arbiter = arbiter
        self._owners = owners
        self._unknown_since: dict[str, float] = {}

    async def release_ended(self) -> bool:
        """Release what can be released; True if a grant of an ended pod is still there."""
        lingers = False
        mounted: Collection[str] | None = None
        for name in list(self._saved.allocations.grants):
            grant = self._saved.allocations.grants.get(name)
            if grant is None or not self._has_ended(grant):
                continue
            grant = await self._owners.confirm(name)
            if grant is None or not self._has_ended(grant):
                continue
            if not grant.confirmed and self._owners.may_be_confirmed(grant):
                lingers = True
                continue
            if not grant.confirmed or self._pods.behind_seconds:
                if mounted is None:
                    mounted = await asyncio.to_thread(self._mounted)
                if name in mounted or self._saved.allocations.grants.get(name) != grant:
                    continue
            lingers |= not await self._release(grant)
        return lingers

    async def end_orphans(self, status: Status) -> None:
        """End grants of this agent that are not in the allocations: the checkpoint was lost."""
        for grant in status.grants:
            ours = grant.life is Life.KEPT and _OURS.fullmatch(grant.name)
            if ours and grant.name not in self._saved.allocations.grants:
                _log.warning("ending a grant that no container has", grant=grant.name)
                await self._arbiter.end(grant.name)

    def _has_ended(self, grant: ContainerGrant) -> bool:
        if grant.claim is not None:
            pods = grant.claim.pods
            return not self._has_driver and all(self._pods.is_gone(uid) for uid in pods)
        if grant.owner.pod:
            return self._pods.has_ended(grant.owner)
        since = self._unknown_since.setdefault(grant.name, time.monotonic())
        return time.monotonic() - since > UNKNOWN_SECONDS and not self._may_be_init(grant)

    def _may_be_init(self, grant: ContainerGrant) -> bool:
        """Whether a live pod has an init container of this size: the kubelet reports none."""
        counts = {name: len(ids) for name, ids in grant.device_ids.items()}
        return any(
            request.init and dict(request.units) == counts
            for pod in self._pods.live()
            for request in pod.requests
        )

    async def _release(self, grant: ContainerGrant) -> bool:
        """Release one grant; False if its processes still run."""
        try:
            ended = await self._arbiter.end(grant.name)
        except AliquotError as error:
            _log.warning("cannot end a grant yet", grant=grant.name, why=error.message)
            return False
        if not ended or self._saved.allocations.grants.get(grant.name) != grant:
            return False
        with self._saved.changing() as allocations:
            allocations.release(grant.name)
        self._unknown_since.pop(grant.name, None)
        _log.info("released a grant", grant=grant.name, owner=str(grant.owner))
        return True
