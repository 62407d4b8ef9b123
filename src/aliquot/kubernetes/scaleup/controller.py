"""Creates and deletes what asks for nodes, so that the API server has what is wanted.

All state is in the API server: names follow from the content, so a leader that dies between any two
requests leaves objects that the next one knows, adopts or deletes. The order of writes keeps an
autoscaler from adding a node too many:

1. Delete what nobody needs any more.
2. Label the nodes whose GPUs were counted when the shortage was judged. A new node without the
   label still counts as the answer to what asks for it.
3. Create what is missing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.names import COUNTED, SCHEDULER
from aliquot.kubernetes.api.objects import NODES, DeleteOptions, Preconditions
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import membership_of
from aliquot.kubernetes.scaleup.hidden import Hidden
from aliquot.kubernetes.scaleup.manifests import (
    HOSTNAME,
    PLACEHOLDERS,
    REQUESTS,
    SELECTOR,
    TEMPLATES,
    RequestForm,
    placeholders,
    provisioning_requests,
)
from aliquot.kubernetes.scaleup.units import units_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Pod, Resource
    from aliquot.kubernetes.cluster.view import ClusterView
    from aliquot.kubernetes.gangs.missing import MissingWork, Shortage
    from aliquot.kubernetes.scaleup.manifests import Manifest
    from aliquot.placement.core.demand import Gang

PASS_SECONDS = 5.0  # at least so often
BURST_SECONDS = 2.0  # changes come in bursts, and nodes take minutes
LIST_AGAIN = 30.0  # somebody may have deleted what asks
MOST = 500  # pods that ask at a time
MOST_SINGLE_PODS = 100  # that are judged in one pass, the oldest first
FAILED_SECONDS = 300.0  # until a request that the autoscaler gave up is made again
AT_ONCE = 16  # requests

Wanted = dict["Resource[Manifest]", dict[str, "Manifest"]]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ScaleUpOptions:
    """How nodes are asked for.

    `request_class`: by ProvisioningRequests of this class; empty: by placeholder pods. `resource`
    is the name under which new nodes offer GPUs, `profile` the schedulerName of placeholders.
    """

    request_class: str = ""
    resource: str = "aliquot.io/gpu"
    profile: str = SCHEDULER
    patience: float = 60.0


@dataclass(slots=True)
class _Done:
    """What the API server was last made to have, and when that was read."""

    wanted: Wanted = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    at: float = -LIST_AGAIN


class ScaleUp:
    """Asks for nodes while this replica leads.

    `shortage` is what gangs lack, and `short_of_gpus` says which single pods lack GPUs beside them.
    `schedulers` are those that ask Aliquot, beside the profile of placeholders: no node is asked
    for pods of others.
    """

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        client: Client,
        options: ScaleUpOptions,
        *,
        view: ClusterView,
        namespace: str,
        changes: Changes,
        leading: Callable[[], bool],
        shortage: Callable[[], Shortage],
        short_of_gpus: Callable[[Iterable[Pod], Iterable[Gang]], Iterable[MissingWork]],
        schedulers: Iterable[str] = (),
    ) -> None:
        self._client = client
        self._options = options
        self._view = view
        self._namespace = namespace
        self._changes = changes
        self._leading = leading
        self._shortage = shortage
        self._short_of_gpus = short_of_gpus
        self._schedulers = {options.profile, *schedulers}
        self._kinds = (REQUESTS, TEMPLATES) if options.request_class else (PLACEHOLDERS,)
        self._done = _Done()
        self._free = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Ask whenever something has changed, until cancelled."""
        while True:
            await self._changes.wait(PASS_SECONDS)
            await asyncio.sleep(BURST_SECONDS)
            if not self._leading():
                self._done = _Done()
                continue
            try:
                await self.look()
            except ApiError as error:
                self._done = _Done()
                _log.warning("cannot ask for nodes", why=error.message)
            except Exception:  # noqa: BLE001 - the next pass may succeed
                self._done = _Done()
                _log.exception("cannot ask for nodes")

    @property
    def asked(self) -> int:
        """How many objects ask for nodes."""
        return sum(len(one) for kind, one in self._done.wanted.items() if kind is not TEMPLATES)

    async def look(self) -> None:
        """One pass: make the API server have what is wanted."""
        shortage = self._shortage()
        gangs = [one for one in shortage.work if all(self._is_ours(each.pod) for each in one.pods)]
        work = [*gangs, *await self._single_pods(gangs)]
        counted: frozenset[str] = frozenset()
        if work:  # if gangs lack nothing, no decision depends on which nodes were counted
            counted = shortage.nodes if gangs else self._usable()
        wanted = self._wanted(work, counted)
        now, last = time.monotonic(), self._done
        same = wanted == last.wanted and counted == last.counted
        if same and now - last.at < LIST_AGAIN:
            return
        existing = {kind: await self._existing(kind) for kind in self._kinds}
        for kind in self._kinds:  # requests before their templates
            gone = existing[kind].keys() - wanted[kind].keys()
            await self._each(self._delete(kind, existing[kind].pop(name)) for name in gone)
        if wanted.get(PLACEHOLDERS):
            await self._each(self._count(name) for name in sorted(counted))
        for kind in reversed(self._kinds):
            new = (one for name, one in wanted[kind].items() if name not in existing[kind])
            await self._each(self._create(kind, one) for one in new)
        self._done = _Done(wanted, counted, now)

    # --- what is wanted ---------------------------------------------------------------------------

    def _wanted(self, work: Iterable[MissingWork], counted: frozenset[str]) -> Wanted:
        options, namespace, view = self._options, self._namespace, self._view
        pods, largest = view.workloads.pods.values(), view.queues.largest_gpu
        hidden = Hidden(view.nodes, pods, self._resources, options.resource)
        seen = {
            one.gang.name: [each for each in one.pods if hidden.is_hidden(each.pod)] for one in work
        }
        if not options.request_class:
            every = [each for some in seen.values() for each in some]
            units = units_of(every, largest)[:MOST]
            found = placeholders(units, namespace, options.resource, options.profile)
            return {PLACEHOLDERS: _by_name(found)}
        asked = {name: units_of(some, largest) for name, some in seen.items() if some}
        hosts = frozenset(self._host(name) for name in counted)
        form = RequestForm(options.request_class, options.profile, hosts)
        templates, requests = provisioning_requests(asked, namespace, options.resource, form)
        return {REQUESTS: _by_name(requests), TEMPLATES: _by_name(templates)}

    @property
    def _resources(self) -> set[str]:
        return {name for one in self._view.presets for name in one.resources}

    def _host(self, name: str) -> str:
        node = self._view.nodes.get(name)
        return name if node is None else node.metadata.labels.get(HOSTNAME, name)

    def _usable(self) -> frozenset[str]:
        cluster = self._view.cluster
        return frozenset(one for one in cluster.nodes if cluster.why_unusable(one) is None)

    def _is_ours(self, pod: Pod) -> bool:
        """Whether the scheduler of a pod asks Aliquot."""
        return not pod.spec.scheduler_name or pod.spec.scheduler_name in self._schedulers

    async def _single_pods(self, gangs: Iterable[MissingWork]) -> list[MissingWork]:
        """What single pods lack beside these gangs, the oldest first.

        A pod behind a gate, as Kueue's, could not use a node. Other tasks get the event loop after
        each pod.
        """
        waiting = [
            one
            for one in self._view.workloads.pods.values()
            if not (one.spec.node_name or one.metadata.deletion_timestamp)
            and not one.spec.scheduling_gates
            and self._is_ours(one)
            and membership_of(one) is None
        ]
        waiting.sort(key=lambda one: (one.metadata.creation_timestamp or "", one.key))
        found = []
        asking = (one.gang for one in gangs)
        for one in self._short_of_gpus(waiting[:MOST_SINGLE_PODS], asking):
            found.append(one)
            await asyncio.sleep(0)
        return found

    # --- requests ---------------------------------------------------------------------------------

    async def _existing(self, kind: Resource[Manifest]) -> dict[str, Manifest]:
        listing = await self._client.list(kind, self._namespace, labels=SELECTOR)
        found = _by_name(one for one in listing.items if not one.metadata.deletion_timestamp)
        for name in [name for name, one in found.items() if _is_over(one)]:
            await self._delete(kind, found.pop(name))
        return found

    async def _each(self, requests: Iterable[Any]) -> None:
        await asyncio.gather(*requests)

    async def _delete(self, kind: Resource[Manifest], one: Manifest) -> None:
        meta = one.metadata
        async with self._free:
            if self._leading():
                options = DeleteOptions(preconditions=Preconditions(uid=meta.uid))
                await self._client.delete(kind, meta.name, meta.namespace, options)

    async def _count(self, name: str) -> None:
        """Label a node as one whose GPUs are counted."""
        node = self._view.nodes.get(name)
        if node is None or COUNTED in node.metadata.labels:
            return
        async with self._free:
            if self._leading():
                patch = {"metadata": {"uid": node.metadata.uid, "labels": {COUNTED: "true"}}}
                await self._client.patch(NODES, name, patch)

    async def _create(self, kind: Resource[Manifest], one: Manifest) -> None:
        async with self._free:
            if not self._leading():
                return
            try:
                await self._client.create(kind, one)
            except ApiError as error:
                if not error.conflict:  # else it exists: a request whose answer was lost
                    raise


def _by_name(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    return {one.metadata.name: one for one in manifests}


def _is_over(one: Manifest) -> bool:
    """Whether it asks no more: a pod that got a node or ended, a request that failed long ago."""
    if one.spec.get("nodeName") or one.status.get("phase") in {"Succeeded", "Failed"}:
        return True
    failed = (
        seconds_at(each.get("lastTransitionTime"))
        for each in one.status.get("conditions", ())
        if each.get("type") == "Failed" and each.get("status") == "True"
    )
    return any(at is not None and time.time() - at > FAILED_SECONDS for at in failed)
