"""The agent of a node: it assembles its parts and runs them until a signal ends it.

Its loops are independent: device plugins or the DRA driver, the watch of pods, releasing and
resizing, the arbiter, the health of GPUs, the GPUNode object. A loop that fails for a passing
reason tries again by itself; one that fails otherwise ends the agent, which is then started again.

The agent reads the node's driver and GPUs once. After an update of the driver it starts anew in the
same process (`health`): for the kubelet, its device plugins register again.
"""

from __future__ import annotations

import asyncio
import fcntl
import signal
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.containers.cdi import CdiSpecs
from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.client import ApiError, connect
from aliquot.kubernetes.api.events import Recorder
from aliquot.kubernetes.api.http_server import serve_http
from aliquot.kubernetes.api.node_pods import NODE_PODS
from aliquot.kubernetes.api.objects import NODES
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.node.arbiter import ArbiterSupervisor
from aliquot.kubernetes.node.busy import BusyMonitor
from aliquot.kubernetes.node.deviceplugin.service import DevicePlugins
from aliquot.kubernetes.node.dra.service import DraDriver
from aliquot.kubernetes.node.gpunode_pods import BEHIND_SECONDS, NOT_WRITTEN, GpuNodePods
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint, SavedAllocations
from aliquot.kubernetes.node.grants.injection import Injection
from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants, Releaser
from aliquot.kubernetes.node.grants.resize import Resizer
from aliquot.kubernetes.node.grants.swap import overcommit_of
from aliquot.kubernetes.node.health import HealthMonitor
from aliquot.kubernetes.node.idle import IdleMonitor
from aliquot.kubernetes.node.machine import probe_driver, read_machine, restore_allocations
from aliquot.kubernetes.node.metrics import (
    AllocationsCollector,
    CallMetrics,
    CheckResult,
    node_pages,
)
from aliquot.kubernetes.node.parked import ParkingMonitor
from aliquot.kubernetes.node.pods import NodeEvents, NodePods
from aliquot.kubernetes.node.processes import ProcessMonitor, mounted_grants
from aliquot.kubernetes.node.publish import Publisher, status_of
from aliquot.kubernetes.node.turns import TurnsMonitor
from aliquot.model.errors import ArbiterError
from aliquot.slices import state_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping
    from pathlib import Path
    from typing import Any

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.gpunode import GpuNodeStatus
    from aliquot.kubernetes.api.node_pods import NodePod
    from aliquot.kubernetes.node.machine import NodeMachine, NodeOptions
    from aliquot.model import Gpu
    from aliquot.slices.arbiter_status import Status

CHECKPOINT = "node.json"
LOCK = "agent.lock"
OTHER_AGENT = "another agent runs on this node: waiting until it has ended"
LINGER_SECONDS = 0.2  # while grants of ended pods still have processes
BATCH_SECONDS = 0.1  # changes at nearly the same time are handled together
CHECK_SECONDS = 2.0
RUNTIME_SECONDS = 300.0
ARBITER_SECONDS = 3.0
# An arbiter that was killed, or that another version replaces, answers again before this.
ARBITER_AWAY_SECONDS = 10.0
NO_ARBITER = "the node's arbiter does not answer"
# A full disk, for example. Allocations that could not be saved are as before.
NOT_SAVED = "the checkpoint cannot be written: grants of ended pods stay until it can"

_log = structlog.get_logger(__name__)


async def run_agent(options: NodeOptions) -> bool:
    """Run the agent of this node until a signal ends it; True: it must start anew."""
    async with only_agent(options.home):
        machine = await asyncio.to_thread(read_machine, options)
        async with connect(options.kubeconfig) as client:
            return await Agent(options, machine, client).run()


@asynccontextmanager
async def only_agent(home: Path) -> AsyncIterator[None]:
    """Wait until no other agent runs with this folder, and keep others waiting.

    Two agents would each give out what is free by their own allocations. That can happen when a
    pod was deleted by force: its agent may still run when the next one starts.
    """
    state_directory.make_directory(home)
    with (home / LOCK).open("a") as file:
        waits = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waits:
                    _log.warning(OTHER_AGENT, lock=file.name)
                waits = True
                await asyncio.sleep(BATCH_SECONDS)
        yield


class Agent:
    """The parts of the agent, and what connects them."""

    def __init__(self, options: NodeOptions, machine: NodeMachine, client: Client) -> None:
        self.options = options
        self.machine = machine
        self.client = client
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in machine.inventory.gpus}
        checkpoint = Checkpoint(options.home / CHECKPOINT)
        allocations = restore_allocations(options, machine, checkpoint.load())
        self.saved = SavedAllocations(allocations, checkpoint)
        claimed = any(grant.claim is not None for grant in allocations.saved())  # before a switch
        self.pods = NodePods(
            options.presets,
            lambda: self.watch.synced,
            with_resource_claims=options.dra or claimed,
            keep_all=options.pods_by_gpunode,
            behind_seconds=BEHIND_SECONDS if options.pods_by_gpunode else 0.0,
        )
        self.watch = self._make_watch()
        self.recorder = Recorder(client, names.AGENT)
        self.events = NodeEvents(self.recorder, options.node)
        self.supervisor = ArbiterSupervisor(
            options.state,
            machine.usable.driver if machine.usable else None,
            version=machine.inventory.driver_version,
            gpus=self._healthy_gpus,
            unjoined=options.unjoined,
            host_bytes=options.swap.host_bytes or None,
            overcommit=self._overcommit({}),
        )
        self.arbiter = ArbiterGrants(options.state)
        self.resizer = Resizer(self.saved, self.pods, self.arbiter, self.events)
        self.metrics = CallMetrics()
        self._problem = ""  # why no container can get a grant, for the scheduler
        self.injection = Injection(
            options.cdi,
            CdiSpecs(options.cdi_dir),
            lambda: machine.common_edits,
            machine.grant_edits,
            self.arbiter.folder,
            machine.check_sources,
            machine.minors,
        )
        self.requests = self._make_driver() if options.dra else self._make_plugins()
        self.releaser = Releaser(
            self.saved,
            self.pods,
            self.arbiter,
            self.requests,
            mounted_grants,
            has_driver=options.dra,
        )
        self.processes = ProcessMonitor(self.saved, self.pods, self.events, self.requests.set_pod)
        self.idle = IdleMonitor(self.saved, self.pods, self.events, options.idle_seconds)
        self.parked = ParkingMonitor(self.saved, self.pods, self.events)
        self.turns = TurnsMonitor(self.saved, self.pods, self.events)
        self.health = HealthMonitor(
            machine, self.saved, self.pods, self.events, partial(probe_driver, options)
        )
        self.publisher = Publisher(
            client, options.node, self._gpunode_status, self.requests.wait_sent
        )
        self.busy = BusyMonitor(self.publisher.change)
        self.metrics.registry.register(self._collector())
        self._wake = asyncio.Event()
        self._asking: asyncio.Task[Status] | None = None
        self.saved.listen(self._on_change)
        self.pods.listen(self._wake.set)

    def _make_watch(self) -> Watch[NodePod] | GpuNodePods:
        """Where the node's pods come from."""
        node, observe = self.options.node, self.pods.observe
        if self.options.pods_by_gpunode:
            return GpuNodePods(self.client, node, observe)
        return Watch(self.client, NODE_PODS, observe, fields=f"spec.nodeName={node}")

    def _make_plugins(self) -> DevicePlugins:
        """Containers ask for grants by the resources of the presets."""
        options = self.options
        return DevicePlugins(
            options.kubelet,
            options.presets,
            saved=self.saved,
            pods=self.pods,
            arbiter=self.arbiter,
            resizer=self.resizer,
            events=self.events,
            gpus=lambda: self.gpus,
            injection=self.injection,
            swap=options.swap,
            metrics=self.metrics,
        )

    def _make_driver(self) -> DraDriver:
        """Pods ask for grants by resource claims."""
        return DraDriver(
            self.client,
            self.options.node,
            self.options.kubelet,
            machine=self.machine,
            saved=self.saved,
            pods=self.pods,
            arbiter=self.arbiter,
            injection=self.injection,
            events=self.events,
            gpus=lambda: self.gpus,
            problem=lambda: self._problem,
            metrics=self.metrics,
            scheduled=self.options.scheduled,
            reads_pods=not self.options.pods_by_gpunode,
        )

    async def run(self) -> bool:
        """Run all loops until one fails or a signal comes; True: the agent must start anew."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        await self._observe_runtime()
        with suppress(ArbiterError):  # one that outlived the last agent: pods may come at once
            self.turns.check(await self._ask_arbiter(), self.supervisor.overcommit)
        self.injection.restore(self.saved)  # before the kubelet starts any
        self.health.start()
        pages = node_pages(self.metrics, self.arbiter, self._checks)
        renewal = asyncio.create_task(self.health.run())
        loops: list[Coroutine[Any, Any, object]] = [
            ended.wait(),
            self.supervisor.run(),
            self.watch.run(),
            self.recorder.run(),
            self.requests.run(),
            self.publisher.run(),
            self._release_and_resize(),
            self._check_processes(),
            self._check_images(),
            self._check_arbiter(),
            self._check_runtime(),
            serve_http(pages, self.options.host, self.options.port),
        ]
        tasks = [renewal, *(asyncio.create_task(one) for one in loops)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return done == {renewal}
        finally:
            self.health.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.requests.close()
            await self.supervisor.end()
            _log.info("the agent has ended")

    # --- loops ------------------------------------------------------------------------------------

    async def _release_and_resize(self) -> None:
        """Release the grants of ended pods, and follow the annotations of running ones."""
        await self.watch.wait_synced()
        while True:
            self._wake.clear()
            lingers = False
            try:
                lingers = await self.releaser.release_ended()
                await self.resizer.follow_all()
            except OSError as error:
                _log.error(NOT_SAVED, why=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS if lingers else CHECK_SECONDS):
                    await self._wake.wait()
            await asyncio.sleep(BATCH_SECONDS)

    async def _check_processes(self) -> None:
        """Check which processes use the GPUs, and confirm the owners of grants."""
        await self.watch.wait_synced()
        while True:
            try:
                with suppress(ArbiterError):
                    status = await self.arbiter.status()
                    self._note_used_memory(status)
                    self.processes.check(status)
                    self.idle.check(status)
                    self.parked.check(status)
                    self.busy.check(status)
                    if self.turns.check(status, self.supervisor.overcommit):
                        self.requests.notify()
                        self.publisher.change()
                    self.supervisor.check(status)
                    await self.processes.tell_cgroups(status, self.arbiter)
                    await self.releaser.end_orphans(status)
                    await self.requests.keep(status)
                await self.requests.confirm_started()
            except OSError as error:
                _log.error(NOT_SAVED, why=str(error))
            await asyncio.sleep(CHECK_SECONDS)

    async def _check_images(self) -> None:
        """A loop of its own: tenants' file systems may be slow, and nothing else waits for them."""
        await self.watch.wait_synced()
        while True:
            await self.processes.check_images()
            await asyncio.sleep(CHECK_SECONDS)

    async def _check_arbiter(self) -> None:
        """Publish that the arbiter has not answered for a while, so that no new pods come."""
        answered = time.monotonic()
        while True:
            with suppress(ArbiterError):
                await self._ask_arbiter()
                answered = time.monotonic()
            is_away = time.monotonic() - answered > ARBITER_AWAY_SECONDS
            before, self._problem = self._problem, NO_ARBITER if is_away else ""
            if self._problem != before:
                self.publisher.change()
                self.requests.notify()
            await asyncio.sleep(CHECK_SECONDS)

    async def _check_runtime(self) -> None:
        """Follow upgrades of the node's runtime; a read that failed is tried again sooner."""
        backoff = Backoff(first=CHECK_SECONDS, most=60.0)
        while True:
            if await self._observe_runtime():
                backoff.reset()
                await asyncio.sleep(RUNTIME_SECONDS)
            else:
                await asyncio.sleep(backoff.wait())

    async def _observe_runtime(self) -> bool:
        """Read from the Node object how containers get their GPUs; whether it could be read."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                node = await self.client.get(NODES, self.options.node)
        except (ApiError, TimeoutError) as error:
            _log.warning("cannot read the Node object", why=str(error))
            return False
        if self.injection.observe(node.status.node_info):
            self.publisher.change()
        self.supervisor.overcommit = self._overcommit(node.metadata.labels)
        return True

    def _overcommit(self, labels: Mapping[str, str]) -> float:
        """How many times a GPU's memory slices may have; resource claims take no turns."""
        if self.options.dra:
            return 1.0
        factor, problem = overcommit_of(self.options.swap, labels)
        if problem:
            _log.warning("the over-commit of the node stays as it is", why=problem, factor=factor)
        return factor

    # --- connections ------------------------------------------------------------------------------

    def _on_change(self) -> None:
        self.injection.keep_only(self.saved.allocations.saved())
        self.requests.notify()
        self.publisher.change()
        self._wake.set()

    def _note_used_memory(self, status: Status) -> None:
        for one in status.gpus:
            if gpu := self.gpus.get(one.gpu.uuid):
                self.gpus[gpu.uuid] = replace(gpu, used_bytes=one.gpu.used_bytes)

    def _gpunode_status(self) -> GpuNodeStatus:
        status = status_of(
            self.saved.allocations,
            self.gpus,
            self.machine.attached,
            self.machine.inventory.driver_version,
            self.injection.way,
            busy=self.busy.steps,
            turns=self.turns.report,
        )
        return msgspec.structs.replace(
            status, problem=self._problem, allocator=self.options.allocator
        )

    def _healthy_gpus(self) -> frozenset[str]:
        gpus = self.saved.allocations.gpus.values()
        return frozenset(gpu.uuid for gpu in gpus if gpu.healthy)

    async def _checks(self) -> dict[str, CheckResult]:
        """What the agent needs to do its work."""
        why = "" if self.requests.registered else self.requests.UNREGISTERED
        not_listed = "the API server has not listed the node's pods"
        pods = NOT_WRITTEN if self.options.pods_by_gpunode else not_listed
        return {
            "driver": CheckResult(self.health.driver_problem),
            "arbiter": CheckResult(await self._arbiter_problem()),
            "arbiter's replacement": CheckResult(self.supervisor.postponed, for_pods=False),
            self.requests.NAME: CheckResult(why or self.requests.problem),
            "pods": CheckResult("" if self.watch.synced else pods),
            "GPUNode": CheckResult(self.publisher.problem, for_pods=False),
        }

    async def _arbiter_problem(self) -> str:
        """Why the arbiter cannot give grants; empty: it answers."""
        try:
            status = await self._ask_arbiter()
        except ArbiterError as error:
            return error.message
        if status.nvml_silent_seconds > ARBITER_SECONDS:
            return f"NVML has not answered it for {status.nvml_silent_seconds:.0f} s"
        return ""

    async def _ask_arbiter(self) -> Status:
        """The arbiter's status; ArbiterError if it does not answer in time."""
        try:
            async with asyncio.timeout(ARBITER_SECONDS):
                if self._asking is None or self._asking.done():  # one call serves all who ask
                    self._asking = asyncio.create_task(self.arbiter.status())
                return await asyncio.shield(self._asking)
        except TimeoutError as error:
            raise ArbiterError(f"it does not answer within {ARBITER_SECONDS:.0f} s") from error

    def _collector(self) -> AllocationsCollector:
        return AllocationsCollector(
            self.saved.allocations,
            self.requests.ids,
            {
                "aliquot_node_registrations": lambda: self.requests.registrations,
                "aliquot_node_arbiter_starts": lambda: self.supervisor.starts,
                "aliquot_node_corrections": lambda: self.requests.corrections,
                "aliquot_node_events_dropped": lambda: self.recorder.dropped,
            },
        )
