"""`aliquot scheduler`, all of it together.

Every replica follows the cluster and keeps its allocations; one leads and decides. Who becomes the
leader reads the pods again before it is ready: what the one before it has bound is in their
annotations.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvicorn

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.client import ApiError, connect
from aliquot.kubernetes.api.events import Recorder
from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.leader import USUAL, Elector, Times
from aliquot.kubernetes.api.names import SCHEDULER
from aliquot.kubernetes.api.objects import (
    GPU_NODES,
    NAMESPACES,
    NODES,
    PODS,
    QUEUES,
    GpuNode,
    Namespace,
    Node,
    Pod,
    Queue,
)
from aliquot.kubernetes.api.presets import choose_presets
from aliquot.kubernetes.api.requests import asks, quantity
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.cluster.cluster import Cluster
from aliquot.kubernetes.cluster.membership import membership_of
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.extender.bind import Binder
from aliquot.kubernetes.extender.metrics import Metrics, Now
from aliquot.kubernetes.extender.planner import Planner
from aliquot.kubernetes.extender.server import Extender
from aliquot.kubernetes.extender.waiting import Waiting
from aliquot.kubernetes.gangs.controller import GangOptions, Gangs
from aliquot.kubernetes.queues.write import Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.client import Client

LIVE = "status.phase!=Succeeded,status.phase!=Failed"
CERTIFICATE_SECONDS = 60.0
WARM_SECONDS = 0.2
QUEUE_SECONDS = 2.0
AT_ONCE = 100  # rows that are made before others get the loop
KEEP_ALIVE = 120  # longer than Go's clients keep a connection: they end it, not we under a call

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How to run."""

    kubeconfig: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - kube-scheduler may be on another machine
    port: int = 8443
    tls_cert: Path | None = None
    tls_key: Path | None = None
    presets: tuple[str, ...] = ("aliquot",)
    strategy: str = "fragmentation"
    offer: int = 1
    lease: str = "aliquot-scheduler"
    namespace: str = ""
    times: Times = USUAL
    gangs: GangOptions = field(default_factory=GangOptions)


class Scheduler:
    """One replica."""

    def __init__(self, client: Client, options: Options) -> None:
        presets = choose_presets(options.presets)
        self._client = client
        self._options = options
        self._changes = Changes()
        self._loaded = False
        self._loading: asyncio.Task[None] | None = None
        self.cluster = Cluster(presets=presets, by=options.strategy)
        planner = Planner(self.cluster, presets, offer=options.offer)
        self._recorder = Recorder(client, SCHEDULER)
        self._pods = Watch(
            client,
            PODS,
            self._pod_changed,
            fields=LIVE,
            keep=lambda pod: asks(pod, presets) or membership_of(pod) is not None,
        )
        self._gpu_nodes = Watch(client, GPU_NODES, self._gpus_changed)
        self._nodes = Watch(client, NODES, self._node_changed)
        self._known_nodes: dict[str, Node] = {}
        self._queues = Queues()
        self._queue_objects = Watch(client, QUEUES, self._queue_changed)
        self._namespaces = Watch(client, NAMESPACES, self._namespace_changed)
        self._seen_by_kubelets = [name for one in presets for name in one.roles]
        self._elector = Elector(
            client,
            namespace=options.namespace or client.namespace,
            name=options.lease,
            on_change=self._leads,
            times=options.times,
        )
        self._writer = Writer(
            client, self._queues, lambda: self._gangs.queue_usage, lambda: self._elector.leading
        )
        self._gangs = Gangs(
            client,
            planner,
            recorder=self._recorder,
            changes=self._changes,
            queues=self._queues,
            nodes=lambda: self._known_nodes,
            presets=presets,
            options=options.gangs,
            leading=lambda: self._elector.leading,
            looked=self._writer.change,
            waiting=lambda: self._waiting.pods,
        )
        self._waiting = Waiting(
            client,
            planner,
            self._recorder,
            self._changes,
            lambda: self._elector.leading,
            self._gangs.answers.lets,
        )
        answers = self._gangs.answers
        binder = Binder(client, planner, self._changes, self._pods.get, answers)
        now: Now = {
            "waiting_pods": ("Pods that found no room and wait.", lambda: len(self._waiting)),
            "held_back_pods": (
                "Pods whose bind waits, since the agent could take them for another.",
                lambda: binder.held_back,
            ),
            "waiting_gangs": (
                "Gangs that are all there and wait for room.",
                lambda: self._gangs.count(Phase.WAITING),
            ),
            "reserved_gangs": (
                "Gangs whose members have places and are on their way.",
                lambda: self._gangs.count(Phase.RESERVED),
            ),
            "events_dropped": ("Events that were not written.", lambda: self._recorder.dropped),
            "leader": ("1 where this replica leads.", lambda: self._elector.leading),
            "silence_seconds": (
                "Since the API server was last heard, by the quieter of pods and GPUNodes.",
                lambda: max(self._pods.silence, self._gpu_nodes.silence),
            ),
        }
        self._metrics = Metrics(self.cluster, now)
        extender = Extender(planner, answers, binder, self._waiting, self._metrics, self)
        self.app = extender.app()

    def why_not(self) -> str:
        """What keeps this replica from deciding; nothing where it may."""
        if not (self._pods.synced and self._gpu_nodes.synced):
            return "pods and GPUNodes are not read yet"
        if not self._elector.leading:
            return f"{self._elector.holder or 'nobody'} leads"
        return "" if self._loaded else "the plans of bound pods are not read yet"

    async def run(self) -> None:
        """Follow the cluster and take part in the election, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            tasks.create_task(self._gpu_nodes.run())
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._queue_objects.run())
            tasks.create_task(self._namespaces.run())
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._waiting.run())
            await self._pods.wait_synced()
            await self._gpu_nodes.wait_synced()
            rows = len(self.cluster.chooser.allocations.milli_free)
            _log.info(
                "read", nodes=len(self.cluster.nodes), rows=rows, pods=len(self._pods.objects)
            )
            gc.collect()
            gc.freeze()  # what is there now stays: it need not be looked at again and again
            tasks.create_task(self._keep_warm())
            tasks.create_task(self._gangs.run())
            tasks.create_task(self._writer.run())
            tasks.create_task(self._elector.run())

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        one = new or old
        if one is None:
            return
        uid = one.metadata.uid
        self.cluster.set_pod(uid, new)
        self._gangs.pod_changed(uid, new)
        if new is None or new.spec.node_name:
            self._waiting.done(uid)
        self._changes.ring()

    def _gpus_changed(self, old: GpuNode | None, new: GpuNode | None) -> None:
        one = new or old
        if one is not None:
            self.cluster.set_node(one.metadata.name, new)
            self._changes.ring()

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        one = new or old
        if one is None:
            return
        name = one.metadata.name
        if new is None:
            self._known_nodes.pop(name, None)
        else:
            self._known_nodes[name] = new
        served = new is not None and is_served(new, self._seen_by_kubelets)
        self.cluster.set_served(name, served=served)
        if old is None or new is None or _says(old) != _says(new):
            self._changes.ring()

    def _queue_changed(self, old: Queue | None, new: Queue | None) -> None:
        one = new or old
        if one is not None:
            self._queues.set_queue(one.metadata.name, new)
            self._changes.ring()

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        one = new or old
        if one is not None:
            self._queues.set_namespace(one.metadata.name, new)
            self._changes.ring()

    def _leads(self, leading: bool) -> None:  # noqa: FBT001 - the callback's form
        self._loaded = False
        if self._loading is not None:
            self._loading.cancel()
        self.cluster.forget_all()
        self._gangs.stop()
        if leading:
            self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        """Read the pods anew: the leader before may have bound some that were not heard of yet."""
        await self._pods.refresh()
        await self._gpu_nodes.refresh()
        await self._know_queues()
        backoff = Backoff()
        while not await self._gangs.load():
            await asyncio.sleep(backoff.wait())
        self._loaded = True
        _log.info("ready", nodes=len(self.cluster.nodes), pods=len(self._pods.objects))

    async def _know_queues(self) -> None:
        """Until queues are read: one that is not read yet is not one that does not exist.

        A cluster without their CustomResourceDefinition has none.
        """
        await self._namespaces.wait_synced()
        while not (self._queue_objects.synced or await self._has_no_queues()):
            with suppress(TimeoutError):
                async with asyncio.timeout(QUEUE_SECONDS):
                    await self._queue_objects.wait_synced()

    async def _has_no_queues(self) -> bool:
        try:
            await self._client.list(QUEUES)
        except ApiError as error:
            return error.not_found
        return False

    async def _keep_warm(self) -> None:
        """Who does not lead keeps its allocations up to date too: it may have to at any time."""
        while True:
            await asyncio.sleep(WARM_SECONDS)
            self.cluster.bring_up_to_date(AT_ONCE)


def _says(node: Node) -> object:
    """What of a node decides who may go there; the rest changes all the time."""
    return node.metadata.labels, node.spec, node.status


def is_served(node: Node, resources: Iterable[str]) -> bool:
    """Whether a node's kubelet has devices to give.

    A kubelet that lost its agent counts what it offered as capacity, and none of it as allocatable.
    One that never had any says nothing of it: then its agent may just have come.
    """
    offered = [name for name in resources if quantity(node.status.capacity.get(name, 0))]
    left = [name for name in offered if quantity(node.status.allocatable.get(name, 0))]
    return not offered or bool(left)


async def serve(options: Options) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    async with connect(options.kubeconfig) as client:
        scheduler = Scheduler(client, options)
        config = uvicorn.Config(
            scheduler.app,
            host=options.host,
            port=options.port,
            ssl_certfile=options.tls_cert,
            ssl_keyfile=options.tls_key,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=5,
            timeout_keep_alive=KEEP_ALIVE,
        )
        server = uvicorn.Server(config)
        _outlive_signals()
        following = asyncio.create_task(scheduler.run())
        following.add_done_callback(lambda _: setattr(server, "should_exit", True))
        renewing = asyncio.create_task(_renew_certificate(config))
        await server.serve()
        renewing.cancel()
        if following.done():
            following.result()
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


def _outlive_signals() -> None:
    """Uvicorn raises the signal that ended it again: there is still a lease to give back then."""
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, lambda: None)


async def _renew_certificate(config: uvicorn.Config) -> None:
    """Take a new certificate from its file when it is there: they are renewed while this runs."""
    cert = config.ssl_certfile
    if cert is None:
        return
    known = _written(cert)
    while True:
        await asyncio.sleep(CERTIFICATE_SECONDS)
        now = _written(cert)
        if now != known and config.ssl is not None:
            try:
                config.ssl.load_cert_chain(cert, config.ssl_keyfile)
            except (OSError, ssl.SSLError) as error:
                _log.warning("the new certificate cannot be read", file=str(cert), why=str(error))
            else:
                known = now


def _written(file: str | os.PathLike[str]) -> float:
    try:
        return Path(file).stat().st_mtime
    except OSError:
        return 0.0
