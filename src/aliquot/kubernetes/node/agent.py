"""The agent of a node: it assembles its parts and runs them until a signal ends it.

Its loops are independent: device plugins, the watch of pods, releasing and resizing, the arbiter,
the health of GPUs, the GPUNode object. A loop that fails for a passing reason tries again by
itself; one that fails otherwise ends the agent, which is then started again.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.client import connect
from aliquot.kubernetes.api.events import Recorder
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.api.pages import serve_pages
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.node.arbiter import ArbiterSupervisor
from aliquot.kubernetes.node.deviceplugin.service import DevicePlugins
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint, SavedAllocations
from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants, Releaser
from aliquot.kubernetes.node.grants.resize import Resizer
from aliquot.kubernetes.node.health import HealthMonitor
from aliquot.kubernetes.node.machine import read_machine, restore_allocations
from aliquot.kubernetes.node.metrics import AllocationsCollector, CallMetrics, make_app
from aliquot.kubernetes.node.pods import NodeEvents, NodePods
from aliquot.kubernetes.node.processes import ProcessMonitor
from aliquot.kubernetes.node.publish import Publisher, status_of
from aliquot.model.errors import ArbiterError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.gpunode import GpuNodeStatus
    from aliquot.kubernetes.node.machine import NodeMachine, NodeOptions
    from aliquot.model import Gpu
    from aliquot.slices.control import Status

CHECKPOINT = "node.json"
LINGER_SECONDS = 0.2  # while grants of ended pods still have processes
BATCH_SECONDS = 0.1  # changes at nearly the same time are handled together
CHECK_SECONDS = 2.0

_log = structlog.get_logger(__name__)


async def run_agent(options: NodeOptions) -> None:
    """Run the agent of this node until a signal ends it."""
    machine = await asyncio.to_thread(read_machine, options)
    async with connect(options.kubeconfig) as client:
        await Agent(options, machine, client).run()


class Agent:
    """The parts of the agent, and what connects them."""

    def __init__(self, options: NodeOptions, machine: NodeMachine, client: Client) -> None:
        self.options = options
        self.machine = machine
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in machine.inventory.gpus}
        checkpoint = Checkpoint(options.home / CHECKPOINT)
        allocations = restore_allocations(options, machine.inventory, checkpoint.load())
        self.saved = SavedAllocations(allocations, checkpoint)
        self.pods = NodePods(options.presets, lambda: self.watch.synced)
        self.watch = Watch(client, PODS, self.pods.observe, fields=f"spec.nodeName={options.node}")
        self.recorder = Recorder(client, names.AGENT)
        self.events = NodeEvents(self.recorder, options.node)
        self.supervisor = ArbiterSupervisor(options.state, machine.driver, options.unjoined)
        self.arbiter = ArbiterGrants(options.state)
        self.resizer = Resizer(self.saved, self.pods, self.arbiter, self.events)
        self.metrics = CallMetrics()
        self.device_plugins = DevicePlugins(
            options.kubelet,
            options.presets,
            saved=self.saved,
            pods=self.pods,
            arbiter=self.arbiter,
            resizer=self.resizer,
            events=self.events,
            gpus=lambda: self.gpus,
            edits_for=lambda grant: machine.edits_for(grant, self.arbiter.folder(grant)),
            metrics=self.metrics,
        )
        self.releaser = Releaser(self.saved, self.pods, self.arbiter, self.device_plugins)
        self.processes = ProcessMonitor(
            self.saved, self.pods, self.events, self.device_plugins.set_pod
        )
        self.health = HealthMonitor(machine.driver, self.saved, self.pods, self.events)
        self.publisher = Publisher(
            client, options.node, self._gpunode_status, self.device_plugins.wait_sent
        )
        self.metrics.registry.register(self._collector())
        self._wake = asyncio.Event()
        self.saved.listen(self._on_change)
        self.pods.listen(self._wake.set)

    async def run(self) -> None:
        """Run all loops until one fails or a signal comes."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        self.health.start()
        app = make_app(self.metrics, self.arbiter, self._not_ready)
        loops: list[Coroutine[Any, Any, object]] = [
            ended.wait(),
            self.supervisor.run(),
            self.watch.run(),
            self.recorder.run(),
            self.device_plugins.run(),
            self.publisher.run(),
            self._release_and_resize(),
            self._check_processes(),
            self._check_images(),
            serve_pages(app, self.options.host, self.options.port),
        ]
        tasks = [asyncio.create_task(one) for one in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.health.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.device_plugins.close()
            await self.supervisor.end()
            _log.info("the agent has ended")

    # --- loops ------------------------------------------------------------------------------------

    async def _release_and_resize(self) -> None:
        """Release the grants of ended pods, and follow the annotations of running ones."""
        await self.watch.wait_synced()
        while True:
            self._wake.clear()
            lingers = await self.releaser.release_ended()
            await self.resizer.follow_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS if lingers else CHECK_SECONDS):
                    await self._wake.wait()
            await asyncio.sleep(BATCH_SECONDS)

    async def _check_processes(self) -> None:
        """Check which processes use the GPUs, and confirm the owners of grants."""
        await self.watch.wait_synced()
        while True:
            with suppress(ArbiterError):
                status = await self.arbiter.status()
                self._note_used_memory(status)
                self.processes.check(status)
                await self.processes.tell_cgroups(status, self.arbiter)
                await self.releaser.end_orphans(status)
            await self.device_plugins.confirm_started()
            await asyncio.sleep(CHECK_SECONDS)

    async def _check_images(self) -> None:
        """A loop of its own: tenants' file systems may be slow, and nothing else waits for them."""
        await self.watch.wait_synced()
        while True:
            await self.processes.check_images()
            await asyncio.sleep(CHECK_SECONDS)

    # --- connections ------------------------------------------------------------------------------

    def _on_change(self) -> None:
        self.device_plugins.notify()
        self.publisher.change()
        self._wake.set()

    def _note_used_memory(self, status: Status) -> None:
        for one in status.gpus:
            if gpu := self.gpus.get(one.gpu.uuid):
                self.gpus[gpu.uuid] = replace(gpu, used_bytes=one.gpu.used_bytes)

    def _gpunode_status(self) -> GpuNodeStatus:
        return status_of(
            self.saved.allocations,
            self.gpus,
            self.machine.attached,
            self.machine.inventory.driver_version,
        )

    def _not_ready(self) -> list[str]:
        """Why pods cannot be served."""
        checks = {
            "the kubelet does not follow all device plugins": self.device_plugins.registered,
            "the API server has not listed the node's pods": self.watch.synced,
            "no arbiter answers": self.supervisor.answers,
        }
        return [text for text, fine in checks.items() if not fine]

    def _collector(self) -> AllocationsCollector:
        return AllocationsCollector(
            self.device_plugins.ids,
            {
                "aliquot_node_registrations": lambda: self.device_plugins.registrations,
                "aliquot_node_arbiter_starts": lambda: self.supervisor.starts,
                "aliquot_node_corrections": lambda: self.device_plugins.corrections,
                "aliquot_node_events_dropped": lambda: self.recorder.dropped,
            },
        )
