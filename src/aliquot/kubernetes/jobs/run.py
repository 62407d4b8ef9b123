"""Assembles the process of `aliquot controller`.

Every replica watches the cluster; only the leader acts. A new leader lists jobs and pods again
before it acts, because the leader before it may have written objects that the watches have not
reported yet. Before each request it checks that it still leads.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.client import connect
from aliquot.kubernetes.api.elasticjob import JOB_PODS, JOBS
from aliquot.kubernetes.api.events import Recorder
from aliquot.kubernetes.api.gang import GANGS
from aliquot.kubernetes.api.http_server import HttpResponse, pages, serve_http, text
from aliquot.kubernetes.api.leader import USUAL_TIMES, Elector, LeaseTimes
from aliquot.kubernetes.api.names import CONTROLLER, SCHEDULER
from aliquot.kubernetes.api.presets import choose_presets
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.cluster.view import USUAL_LABELS
from aliquot.kubernetes.cluster.watches import ClusterWatches
from aliquot.kubernetes.jobs.allocations import JobAllocations
from aliquot.kubernetes.jobs.controller import Controller, WatchedObjects
from aliquot.kubernetes.jobs.manifests import OURS
from aliquot.model.job import JobPhase
from aliquot.placement.elastic.resize import Rules

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.http_server import Handler
    from aliquot.kubernetes.cluster.topology import Labels

BURST_SECONDS = 0.05  # changes come in bursts
BUSY_SECONDS = 0.5  # between two rounds at most, while a change is under way
CALM_SECONDS = 2.0
DECIDE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """The options of `aliquot controller`."""

    kubeconfig: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - the kubelet asks from outside the pod
    port: int = 8080
    presets: tuple[str, ...] = ("aliquot",)
    scheduler: str = SCHEDULER
    labels: Labels = USUAL_LABELS
    lease: str = "aliquot-controller"
    namespace: str = ""
    times: LeaseTimes = USUAL_TIMES
    rules: Rules = field(default_factory=Rules)


class Replica:
    """One replica of the controller."""

    def __init__(self, client: Client, options: ControllerOptions) -> None:
        self._changes = Changes()
        self._view = JobAllocations(choose_presets(options.presets), labels=options.labels)
        self._recorder = Recorder(client, CONTROLLER)
        self._jobs = Watch(client, JOBS, self._on_change)
        self._job_pods = Watch(client, JOB_PODS, self._on_change, labels=OURS)
        self._gangs = Watch(client, GANGS, self._on_change)
        self._cluster = ClusterWatches(client, self._view, self._changes.notify)
        watched = WatchedObjects(
            jobs=lambda: self._jobs.objects,
            pods=lambda: self._job_pods.objects,
            gangs=lambda: self._gangs.objects,
        )
        self.controller = Controller(
            client,
            watched,
            self._view,
            options.rules,
            recorder=self._recorder,
            scheduler=options.scheduler,
            may=lambda: self._elector.leading,
        )
        self._elector = Elector(
            client,
            namespace=options.namespace or client.namespace,
            name=options.lease,
            on_change=self._leads,
            times=options.times,
        )
        self._working: asyncio.Task[None] | None = None
        self._registry = self._metrics()

    # --- watches ---

    async def run(self) -> None:
        """Watch the cluster and take part in the leader election until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            watches: list[Watch[Any] | ClusterWatches]
            watches = [self._jobs, self._job_pods, self._gangs, self._cluster]
            for one in watches:
                tasks.create_task(one.run())
            tasks.create_task(self._recorder.run())
            for one in watches:
                await one.wait_synced()
            await self._cluster.wait_queues()
            _log.info("read", jobs=len(self._jobs.objects), pods=len(self._job_pods.objects))
            tasks.create_task(self._elector.run())

    def _on_change(self, _old: object, _new: object) -> None:
        self._changes.notify()

    # --- leader ---

    def _leads(self, leading: bool) -> None:  # noqa: FBT001 - the signature of the callback
        if self._working is not None:
            self._working.cancel()
            self._working = None
        if leading:
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        await self._jobs.refresh()
        await self._job_pods.refresh()
        await asyncio.gather(self._step(), self._decide())

    async def _step(self) -> None:
        while True:
            seen = self._changes.count
            pause = CALM_SECONDS
            try:
                pause = BUSY_SECONDS if await self.controller.round() else CALM_SECONDS
            except Exception:  # noqa: BLE001 - one failed round must not end the loop
                _log.exception("round failed; will retry")
            if self._changes.count == seen:
                await self._changes.wait(pause)
            await asyncio.sleep(BURST_SECONDS)

    async def _decide(self) -> None:
        """Decide sizes in a separate loop: with many jobs a decision takes longer than a round."""
        while True:
            began = time.perf_counter()
            try:
                await self.controller.decide()
            except Exception:  # noqa: BLE001 - as above
                _log.exception("decision about sizes failed; will retry")
            await asyncio.sleep(max(DECIDE_SECONDS, time.perf_counter() - began))

    # --- HTTP ---

    def pages(self) -> Handler:
        """The pages for the kubelet's probes and for Prometheus."""
        return pages(
            {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._show_metrics}
        )

    async def _healthz(self) -> HttpResponse:
        return text("alive")

    async def _readyz(self) -> HttpResponse:
        if self._jobs.synced and self._job_pods.synced:
            return text("leads" if self._elector.leading else "follows")
        return text("ElasticJobs and pods are not listed yet", 503)

    async def _show_metrics(self) -> HttpResponse:
        return HttpResponse(generate_latest(self._registry), content_type=CONTENT_TYPE_LATEST)

    def _metrics(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        leader = Gauge(
            "aliquot_controller_leader", "1 if this replica is the leader.", registry=registry
        )
        leader.set_function(lambda: float(self._elector.leading))
        jobs = Gauge(
            "aliquot_controller_jobs", "Elastic jobs, by phase.", ["phase"], registry=registry
        )
        for phase in JobPhase:
            jobs.labels(phase).set_function(partial(self._count, phase))
        return registry

    def _count(self, phase: JobPhase) -> float:
        return float(self.controller.counts()[phase])


async def serve(options: ControllerOptions) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with connect(options.kubeconfig) as client:
        replica = Replica(client, options)
        loops: list[Coroutine[Any, Any, object]] = [
            ended.wait(),
            replica.run(),
            serve_http(replica.pages(), options.host, options.port),
        ]
        tasks = [asyncio.create_task(one) for one in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
