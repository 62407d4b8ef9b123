"""`aliquot controller`, all of it together.

Every replica follows the cluster; one leads and acts. Who becomes the leader reads jobs and pods
again before it does anything: the one before it may have written what was not heard of yet. Before
each request it asks whether it still leads.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.client import connect
from aliquot.kubernetes.api.elasticjob import JOB_PODS, JOBS
from aliquot.kubernetes.api.events import Recorder
from aliquot.kubernetes.api.gang import GANGS
from aliquot.kubernetes.api.leader import USUAL, Elector, Times
from aliquot.kubernetes.api.names import CONTROLLER, SCHEDULER
from aliquot.kubernetes.api.objects import (
    GPU_NODES,
    NAMESPACES,
    NODES,
    PODS,
    QUEUES,
    ApiObject,
)
from aliquot.kubernetes.api.presets import choose_presets
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.cluster.membership import membership_of
from aliquot.kubernetes.jobs.allocations import Ledger
from aliquot.kubernetes.jobs.controller import Controller, Views
from aliquot.kubernetes.jobs.manifests import OURS
from aliquot.kubernetes.node.status import serve as serve_pages
from aliquot.kubernetes.scheduler import LIVE
from aliquot.model.job import State
from aliquot.placement.elastic.resize import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from starlette.requests import Request

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Meta
    from aliquot.kubernetes.api.watch import OnChange

T = TypeVar("T", bound=ApiObject)

SETTLE = 0.05  # changes come in bursts
BUSY_SECONDS = 0.5  # between two rounds at most, while something is on its way
CALM_SECONDS = 2.0
DECIDE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How to run."""

    kubeconfig: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - the kubelet asks from outside the pod
    port: int = 8080
    presets: tuple[str, ...] = ("aliquot",)
    scheduler: str = SCHEDULER
    lease: str = "aliquot-controller"
    namespace: str = ""
    times: Times = USUAL
    rules: Rules = field(default_factory=Rules)


class Replica:
    """One replica."""

    def __init__(self, client: Client, options: Options) -> None:
        presets = choose_presets(options.presets)
        self._changes = Changes()
        self._ledger = ledger = Ledger(presets)
        self._recorder = Recorder(client, CONTROLLER)
        self._jobs = Watch(client, JOBS, self._rings)
        self._job_pods = Watch(client, JOB_PODS, self._rings, labels=OURS)
        self._gangs = Watch(client, GANGS, self._rings)
        told = self._told
        self._watches: list[Watch[Any]] = [
            self._jobs,
            self._job_pods,
            self._gangs,
            Watch(
                client,
                PODS,
                told(lambda meta: meta.uid, ledger.set_pod),
                fields=LIVE,
                keep=lambda pod: asks(pod, presets) or membership_of(pod) is not None,
            ),
            Watch(client, GPU_NODES, told(lambda meta: meta.name, ledger.set_gpus)),
            Watch(client, NODES, told(lambda meta: meta.name, ledger.set_node)),
            Watch(client, QUEUES, told(lambda meta: meta.name, ledger.queues.set_queue)),
            Watch(client, NAMESPACES, told(lambda meta: meta.name, ledger.queues.set_namespace)),
        ]
        views = Views(
            jobs=lambda: self._jobs.objects,
            pods=lambda: self._job_pods.objects,
            gangs=lambda: self._gangs.objects,
        )
        self.controller = Controller(
            client,
            views,
            ledger,
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

    # --- following ---

    async def run(self) -> None:
        """Follow the cluster and take part in the election, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for one in self._watches:
                tasks.create_task(one.run())
            tasks.create_task(self._recorder.run())
            for one in self._watches:
                await one.wait_synced()
            _log.info("read", jobs=len(self._jobs.objects), pods=len(self._job_pods.objects))
            tasks.create_task(self._elector.run())

    def _rings(self, _old: object, _new: object) -> None:
        self._changes.ring()

    def _told(
        self, name: Callable[[Meta], str], tell: Callable[[str, T | None], None]
    ) -> OnChange[T]:
        def hear(old: T | None, new: T | None) -> None:
            one = new or old
            if one is not None:
                tell(name(one.metadata), new)
                self._changes.ring()

        return hear

    # --- leading ---

    def _leads(self, leading: bool) -> None:  # noqa: FBT001 - the callback's form
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
            except Exception:  # noqa: BLE001 - one round must not end all later ones
                _log.exception("a round over the jobs failed; the next one comes soon")
            if self._changes.count == seen:
                await self._changes.wait(pause)
            await asyncio.sleep(SETTLE)

    async def _decide(self) -> None:
        """Sizes are decided beside the rounds: with many jobs that takes longer."""
        while True:
            began = time.perf_counter()
            try:
                await self.controller.decide()
            except Exception:  # noqa: BLE001 - as above
                _log.exception("a decision about sizes failed; the next one comes soon")
            await asyncio.sleep(max(DECIDE_SECONDS, time.perf_counter() - began))

    # --- the door ---

    @property
    def app(self) -> Starlette:
        """What the kubelet and Prometheus ask."""
        return Starlette(
            routes=[
                Route("/healthz", lambda _: PlainTextResponse("alive")),
                Route("/readyz", self._ready),
                Route("/metrics", lambda _: Response(generate_latest(self._registry))),
            ]
        )

    def _ready(self, _: Request) -> Response:
        if self._jobs.synced and self._job_pods.synced:
            return PlainTextResponse("leads" if self._elector.leading else "follows")
        return PlainTextResponse("ElasticJobs and pods are not read yet", 503)

    def _metrics(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        leader = Gauge(
            "aliquot_controller_leader", "1 where this replica leads.", registry=registry
        )
        leader.set_function(lambda: float(self._elector.leading))
        jobs = Gauge(
            "aliquot_controller_jobs", "Elastic jobs, by phase.", ["phase"], registry=registry
        )
        for state in State:
            jobs.labels(state).set_function(partial(self._count, state))
        return registry

    def _count(self, state: State) -> float:
        return float(self.controller.counts()[state])


async def serve(options: Options) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with connect(options.kubeconfig) as client:
        replica = Replica(client, options)
        loops: list[Coroutine[Any, Any, object]] = [
            ended.wait(),
            replica.run(),
            serve_pages(replica.app, options.host, options.port),
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
