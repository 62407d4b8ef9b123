"""`aliquot scheduler`: assembles the process: cluster view, extender, gangs, resource claims.

Every replica follows the cluster and keeps its allocations; the leader alone decides. A new leader
first reads pods, queues and gangs again: the leader before it may have bound pods that it has not
seen yet. Their plans are in their annotations.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.client import connect
from aliquot.kubernetes.api.events import Recorder
from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.leader import USUAL_TIMES, Elector, LeaseTimes
from aliquot.kubernetes.api.names import SCHEDULER
from aliquot.kubernetes.api.presets import choose_presets
from aliquot.kubernetes.cluster.view import ClusterView
from aliquot.kubernetes.cluster.watches import ClusterWatches
from aliquot.kubernetes.dra.controller import ClaimAllocator
from aliquot.kubernetes.extender.authority import OwnCertificates, TlsSecrets
from aliquot.kubernetes.extender.bind import Binder
from aliquot.kubernetes.extender.bypass import BypassingPods
from aliquot.kubernetes.extender.endpoint import EndpointWriter, OwnEndpoint
from aliquot.kubernetes.extender.metrics import Gauges, Metrics
from aliquot.kubernetes.extender.node_pods import NodePodsWriter
from aliquot.kubernetes.extender.planner import Planner
from aliquot.kubernetes.extender.pods import PodFinder
from aliquot.kubernetes.extender.serve import Address, TlsFiles, serve_while
from aliquot.kubernetes.extender.server import Extender
from aliquot.kubernetes.extender.waiting import WaitingPods
from aliquot.kubernetes.gangs.controller import GangOptions, Gangs
from aliquot.kubernetes.queues.write import StatusWriter
from aliquot.kubernetes.scaleup.controller import ScaleUp, ScaleUpOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.dra import ResourceClaim
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.membership import GangKey

NOT_SYNCED = "pods, Nodes and GPUNodes are not read yet"
WARM_SECONDS = 0.2
AT_ONCE = 100  # rows of the allocations that are updated before other tasks get the event loop

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """The options of `aliquot scheduler`.

    `tls`: files with certificates, or the Secrets of its own; plain HTTP without. `endpoint`: the
    Service that leads to the leader, if that is this replica's business.
    `scheduler_names` are the schedulers that ask this extender, as pods name them.
    `resource_claims`: it allocates these too. `pods_by_gpunode`: it writes the pods of each node
    into its GPUNode, for agents that may read no pods.
    """

    kubeconfig: Path | None = None
    address: Address = field(default_factory=Address)
    tls: TlsFiles | TlsSecrets | None = None
    endpoint: OwnEndpoint | None = None
    presets: tuple[str, ...] = ("aliquot",)
    strategy: str = "fragmentation"
    offer: int = 1
    lease: str = "aliquot-scheduler"
    namespace: str = ""
    times: LeaseTimes = USUAL_TIMES
    gangs: GangOptions = field(default_factory=GangOptions)
    scheduler_names: tuple[str, ...] = ()
    scale_up: ScaleUpOptions | None = None
    resource_claims: bool = False
    pods_by_gpunode: bool = False


class Scheduler:
    """One replica; `now` is the wall clock that gangs are planned by."""

    def __init__(
        self, client: Client, options: SchedulerOptions, *, now: Callable[[], float] = time.time
    ) -> None:
        presets = choose_presets(options.presets)
        gangs, scale_up = options.gangs, options.scale_up
        self._namespace = options.namespace or client.namespace
        if scale_up is not None:
            gangs = replace(gangs, patience=scale_up.patience)
        self._changes = Changes()
        self._view = ClusterView(
            presets,
            by=options.strategy,
            labels=gangs.labels,
            assumed=gangs.assumed,
            with_resource_claims=options.resource_claims,
            now=now,
        )
        self.cluster = self._view.cluster
        self._watches = ClusterWatches(
            client,
            self._view,
            self._changes.notify,
            self._pod_changed,
            with_budgets=True,
            resource_claim_changed=self._resource_claim_changed,
            gpu_node_changed=self._gpu_node_changed,
        )
        self._node_pods = None
        if options.pods_by_gpunode:
            self._node_pods = NodePodsWriter(
                client,
                presets,
                self._watches.gpu_nodes.get,
                lambda: not self.why_not(),
            )
        self._elector = Elector(
            client,
            namespace=self._namespace,
            name=options.lease,
            on_change=self._leads,
            times=options.times,
        )
        self._loaded = False
        self._loading: asyncio.Task[None] | None = None
        self._recorder = Recorder(client, SCHEDULER)
        queues = self._view.queues
        planner = Planner(
            self.cluster,
            presets,
            offer=options.offer,
            overcommit=lambda pod: queues.overcommit_of(queues.queue_of(pod)),
        )
        self._writer = StatusWriter(
            client,
            self._view.queues,
            lambda: self._gangs.queue_usage,
            lambda: self._elector.leading,
        )
        self._gangs = Gangs(
            client,
            planner,
            view=self._view,
            recorder=self._recorder,
            changes=self._changes,
            options=gangs,
            leading=lambda: self._elector.leading,
            looked=self._writer.change,
            waiting=lambda: self._waiting.pods,
            offered=lambda uid: self._waiting.offered(uid),  # noqa: PLW0108 - made below
            by_resource_claims=self._by_resource_claims,
            now=now,
        )
        answers = self._gangs.answers
        self._waiting = WaitingPods(
            client,
            planner,
            self._recorder,
            self._changes,
            lambda: self._elector.leading,
            answers.lets,
        )
        self._allocator: ClaimAllocator | None = None
        if self._view.resource_claims is not None:
            self._allocator = ClaimAllocator(
                client,
                self._view.resource_claims,
                Planner(self._view.resource_claims.cluster, presets),
                view=self._view,
                recorder=self._recorder,
                changes=self._changes,
                limits=answers,
                labels=gangs.labels,
                leading=lambda: not self.why_not(),
                now=now,
            )
        self._scale_up = None
        if scale_up is not None:
            self._scale_up = ScaleUp(
                client,
                scale_up,
                view=self._view,
                namespace=self._namespace,
                changes=self._changes,
                leading=lambda: not self.why_not(),
                shortage=lambda: self._gangs.shortage,
                short_of_gpus=answers.short_of_gpus,
                schedulers=options.scheduler_names,
            )
        finder = PodFinder(client, self._watches.pods.get)
        self._bypassing = BypassingPods(
            self._recorder,
            options.scheduler_names,
            self._view.asks,
            lambda: self._loaded and self._elector.leading,
        )
        self._binder = Binder(client, planner, self._changes, finder, answers)
        self.tls = self._certificates(client, options.tls)
        self._endpoint = (
            EndpointWriter(client, self._namespace, options.endpoint, self._serves)
            if options.endpoint
            else None
        )
        self._metrics = Metrics(self.cluster, self._gauges())
        extender = Extender(
            finder, planner, answers, self._binder, self._waiting, self._metrics, self
        )
        self.handler = extender.handler()
        self.pages = extender.pages()

    def not_ready(self) -> str:
        """Why this replica could not take over; empty if it could."""
        if not self._watches.synced:
            return NOT_SYNCED
        if isinstance(self.tls, OwnCertificates) and not self.tls.loaded:
            return "the certificate authority is not read yet"
        return ""

    def _serves(self) -> bool:
        return not (self.why_not() or self.not_ready())

    def why_not(self) -> str:
        """Why this replica may not decide; empty if it may."""
        if not self._watches.synced:
            return NOT_SYNCED
        if not self._elector.leading:
            return f"{self._elector.holder or 'nobody'} leads"
        return "" if self._loaded else "the plans of bound pods are not read yet"

    async def run(self) -> None:
        """Follow the cluster and take part in the election, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watches.run())
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._waiting.run())
            await self._watches.wait_synced()
            rows = len(self.cluster.chooser.allocations.milli_free)
            pods = len(self._watches.pods.objects)
            _log.info("read", nodes=len(self.cluster.nodes), rows=rows, pods=pods)
            gc.collect()
            gc.freeze()  # these objects stay: the collector need not visit them again and again
            tasks.create_task(self._keep_warm())
            tasks.create_task(self._gangs.run())
            tasks.create_task(self._writer.run())
            if self._scale_up is not None:
                tasks.create_task(self._scale_up.run())
            if self._allocator is not None:
                tasks.create_task(self._allocator.run())
            if self._node_pods is not None:
                tasks.create_task(self._node_pods.run())
            tasks.create_task(self._take_part())
            if self._endpoint is not None:
                tasks.create_task(self._endpoint.run())

    async def _take_part(self) -> None:
        """Take part in the election, as soon as this replica could serve kube-scheduler."""
        if isinstance(self.tls, OwnCertificates):
            await self.tls.wait_loaded()
        await self._elector.run()

    def _pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        self._gangs.pod_changed(before, now)
        one = now or before
        if one is not None and (now is None or now.spec.node_name):
            self._waiting.done(one.metadata.uid)
        if now is not None:
            self._bypassing.observe(now)
        elif before is not None:
            self._bypassing.forget(before.metadata.uid)

    def _resource_claim_changed(
        self, before: ResourceClaim | None, now: ResourceClaim | None
    ) -> None:
        if self._allocator is not None:
            self._allocator.claim_changed(before, now)

    def _by_resource_claims(self, key: GangKey) -> tuple[Phase, str] | None:
        """The phase of a gang whose pods ask by resource claims, and why; None for all others."""
        return None if self._allocator is None else self._allocator.gang_verdict(key)

    def _gpu_node_changed(self, name: str) -> None:
        if self._node_pods is not None:
            self._node_pods.gpu_node_changed(name)

    def _leads(self, leading: bool) -> None:  # noqa: FBT001 - the callback's form
        self._loaded = False
        if self._loading is not None:
            self._loading.cancel()
        self.cluster.forget_all()
        if self._view.resource_claims is not None:
            self._view.resource_claims.cluster.forget_all()
        self._gangs.stop()
        if leading:
            self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        """Read what the leader before this one has written."""
        await self._watches.refresh()
        await self._watches.wait_queues()
        backoff = Backoff()
        while not await self._gangs.load():
            await asyncio.sleep(backoff.wait())
        if self._node_pods is not None:
            await self._node_pods.refresh()
            self._node_pods.compare_all([name for _, name in self._watches.gpu_nodes.objects])
        self._loaded = True
        self._bypassing.observe_all(self._watches.pods.objects.values())
        pods = len(self._watches.pods.objects)
        _log.info("ready", nodes=len(self.cluster.nodes), pods=pods)

    async def _keep_warm(self) -> None:
        """Keep the allocations up to date in every replica: each may become the leader."""
        while True:
            await asyncio.sleep(WARM_SECONDS)
            self.cluster.bring_up_to_date(AT_ONCE)

    def _certificates(
        self, client: Client, tls: TlsFiles | TlsSecrets | None
    ) -> TlsFiles | OwnCertificates | None:
        if not isinstance(tls, TlsSecrets):
            return tls
        return OwnCertificates(
            client,
            self._namespace,
            tls,
            lambda: self._elector.leading,
            self._elector.sees_a_leader,
        )

    def _authority_ends(self) -> float:
        return self.tls.authority_ends if isinstance(self.tls, OwnCertificates) else 0.0

    def _gauges(self) -> Gauges:
        return {
            "authority_ends_seconds": (
                "When the extender's own certificate authority ends, in seconds since 1970; or 0.",
                self._authority_ends,
            ),
            "waiting_pods": ("Pods that no node has GPUs for.", lambda: len(self._waiting)),
            "held_back_pods": (
                "Pods whose binding waits until the agent cannot confuse them with another pod.",
                lambda: self._binder.held_back,
            ),
            "waiting_gangs": (
                "Gangs whose pods are all there and wait for GPUs.",
                lambda: self._gangs.count(Phase.WAITING),
            ),
            "reserved_gangs": (
                "Gangs whose GPUs are reserved and whose pods are being bound.",
                lambda: self._gangs.count(Phase.RESERVED),
            ),
            "scale_up_requests": (
                "Placeholder pods or ProvisioningRequests that ask an autoscaler for nodes.",
                lambda: 0 if self._scale_up is None else self._scale_up.asked,
            ),
            "events_dropped": (
                "Events that were dropped and not written.",
                lambda: self._recorder.dropped,
            ),
            "leader": ("1 if this replica leads.", lambda: self._elector.leading),
            "silence_seconds": (
                "Seconds since the quieter of the watches of pods and GPUNodes received anything.",
                lambda: self._watches.silence,
            ),
        }


async def serve(options: SchedulerOptions) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    async with connect(options.kubeconfig) as client:
        scheduler = Scheduler(client, options)
        await serve_while(
            scheduler.handler,
            options.address,
            scheduler.run(),
            pages=scheduler.pages,
            tls=scheduler.tls,
        )
