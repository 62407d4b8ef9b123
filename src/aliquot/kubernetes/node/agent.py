"""The agent of a node: all its parts, put together and run until it is told to end.

Its loops are independent: the kubelet's calls, the watch of pods, what is released and resized, the
arbiter's life, the GPUs' health, the GPUNode object. One that fails for a passing reason tries
again by itself; one that fails otherwise ends the agent, which is then started again.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import structlog

from aliquot.devices.health import HealthWatch
from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.client import connect
from aliquot.kubernetes.api.events import Recorder
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.api.pages import serve
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.node.allocate import Allocator
from aliquot.kubernetes.node.arbiter import ArbiterKeeper
from aliquot.kubernetes.node.events import Events
from aliquot.kubernetes.node.grants import Grants
from aliquot.kubernetes.node.identity import Identity, PodResources
from aliquot.kubernetes.node.lookout import Lookout
from aliquot.kubernetes.node.machine import make_books, read_machine
from aliquot.kubernetes.node.plugin import Plugin
from aliquot.kubernetes.node.publish import Publisher, status_of
from aliquot.kubernetes.node.record import Record
from aliquot.kubernetes.node.registrar import Registrar
from aliquot.kubernetes.node.release import Releaser
from aliquot.kubernetes.node.resize import Resizer
from aliquot.kubernetes.node.roster import Roster
from aliquot.kubernetes.node.start import Starter
from aliquot.kubernetes.node.status import BooksCollector, Meters, make_app
from aliquot.kubernetes.node.store import Store
from aliquot.kubernetes.node.whose import Whose
from aliquot.model.errors import AliquotError, ArbiterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from typing import Any

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.gpunode import GpuNodeStatus
    from aliquot.kubernetes.node.machine import Machine, Options
    from aliquot.model import Gpu
    from aliquot.slices.control import Status

KEPT = "node.json"
LINGER_SECONDS = 0.2
TOGETHER_SECONDS = 0.1  # what happens at nearly the same time is looked at once
LOOK_SECONDS = 2.0

T = TypeVar("T")

_log = structlog.get_logger(__name__)


async def run_agent(options: Options) -> None:
    """Be the agent of this node, until a signal says to end."""
    machine = await asyncio.to_thread(read_machine, options)
    async with connect(options.kubeconfig) as client:
        await Agent(options, machine, client).run()


class Agent:
    """The parts, and what goes on between them."""

    def __init__(self, options: Options, machine: Machine, client: Client) -> None:
        self.options = options
        self.machine = machine
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in machine.inventory.gpus}
        store = Store(options.home / KEPT)
        books = make_books(options, machine.inventory, store.load())
        self.record = Record(books, store)
        node = f"spec.nodeName={options.node}"
        self.roster = Roster(options.presets, lambda: self.watch.synced)
        self.watch = Watch(client, PODS, self.roster.heard, fields=node)
        self.recorder = Recorder(client, names.AGENT)
        self.events = Events(self.recorder, options.node)
        self.kubelet = PodResources(options.kubelet / "pod-resources" / "kubelet.sock")
        self.identity = Identity(self.record, self.roster, self.kubelet)
        self.grants = Grants(options.state)
        self.keeper = ArbiterKeeper(options.state, machine.driver)
        self.resizer = Resizer(self.record, self.roster, self.grants, self.events)
        self.lookout = Lookout(self.record, self.roster, self.events)
        whose = Whose(self.record, self.roster, self.identity)
        self.allocator = Allocator(
            self.record, self.roster, whose, lambda: self.gpus, self.events.say
        )
        self.starter = Starter(
            self.record,
            self.roster,
            self.identity,
            self.grants,
            self.resizer,
            self.allocator,
            self.events,
        )
        self.releaser = Releaser(
            self.record, self.roster, self.identity, self.grants, self.allocator.is_fresh
        )
        self.plugins = [self._plugin(resource) for resource in books.offers]
        self.registrar = Registrar(options.kubelet / "device-plugins", self.plugins)
        self.publisher = Publisher(client, options.node, self._status, self._told)
        self.meters = self._meters()
        self._wake = asyncio.Event()
        self._stop = threading.Event()
        self.record.listen(self._changed)
        self.roster.listen(lambda _before, _after: self._wake.set())

    async def run(self) -> None:
        """All loops, until one fails or a signal comes."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        health = threading.Thread(target=self._health_watch().run, name="health", daemon=True)
        health.start()
        loops: list[Coroutine[Any, Any, object]] = [
            ended.wait(),
            self.keeper.run(),
            self.watch.run(),
            self.recorder.run(),
            self.registrar.run(),
            self.publisher.run(),
            self._give_back(),
            self._look(),
            self._look_at_images(),
            serve(
                make_app(self.meters, self.grants, self._missing),
                self.options.host,
                self.options.port,
            ),
        ]
        tasks = [asyncio.create_task(one) for one in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._stop.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.kubelet.close()
            await self.keeper.end()
            _log.info("ended")

    # --- what goes on -----------------------------------------------------------------------------

    def _changed(self) -> None:
        for plugin in self.plugins:
            plugin.tell()
        self.publisher.change()
        self._wake.set()

    async def _give_back(self) -> None:
        """Release and resize, as pods end and say what they want."""
        await self.watch.wait_synced()
        while True:
            self._wake.clear()
            lingers = await self.releaser.look()
            await self.resizer.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS if lingers else LOOK_SECONDS):
                    await self._wake.wait()
            await asyncio.sleep(TOGETHER_SECONDS)

    async def _look(self) -> None:
        """See who uses the GPUs, and put names right that nobody has asked for."""
        await self.watch.wait_synced()
        while True:
            with suppress(ArbiterError):
                seen = await self.grants.status()
                self._note_use(seen)
                self.lookout.look(seen)
                await self.releaser.end_strays(seen)
            for held in list(self.record.books.held.values()):
                guest = self.roster.get(held.owner.uid)
                begun = guest is not None and not guest.waits
                if not held.sure and (begun or not held.owner.pod):
                    await self.identity.confirm(held.name)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_at_images(self) -> None:
        """By itself: tenants' file systems take their time, and nobody else waits for them."""
        await self.watch.wait_synced()
        while True:
            await self.lookout.look_at_images()
            await asyncio.sleep(LOOK_SECONDS)

    def _note_use(self, seen: Status) -> None:
        for one in seen.gpus:
            if known := self.gpus.get(one.gpu.uuid):
                self.gpus[known.uuid] = replace(known, used_bytes=one.gpu.used_bytes)

    def _health_watch(self) -> HealthWatch:
        loop = asyncio.get_running_loop()

        def tell(sick: Mapping[str, str]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._health, sick)

        return HealthWatch(self.machine.driver, list(self.record.books.cards), tell, self._stop)

    def _health(self, sick: Mapping[str, str]) -> None:
        books = self.record.books
        changed = [uuid for uuid, why in sick.items() if books.set_health(uuid, why)]
        for uuid in changed:
            self._say_health(uuid, sick[uuid])
        if changed:
            self.record.announce()

    def _say_health(self, uuid: str, why: str) -> None:
        card = self.record.books.cards[uuid]
        text = f"{card} ({uuid}) is not healthy: {why}" if why else f"{card} ({uuid}) is well"
        reason = "GPUUnhealthy" if why else "GPUHealthy"
        self.events.say_of_node(reason, text, warning=bool(why))
        for held in self.record.books.held.values():
            guest = self.roster.get(held.owner.uid)
            if guest and any(part.gpu == uuid for part in held.parts):
                self.events.say(guest, reason, text, warning=bool(why))

    # --- what others call -------------------------------------------------------------------------

    def _plugin(self, resource: str) -> Plugin:
        return Plugin(
            resource,
            self.options.kubelet / "device-plugins",
            lambda: self.record.books.ids(resource),
            allocate=lambda name, ids: self._timed("Allocate", self.allocator.allocate(name, ids)),
            start=lambda name, ids: self._timed("PreStart", self.starter.start(name, ids)),
            outfit=lambda held: self.machine.response(held, self.grants.folder(held)),
        )

    async def _timed(self, call: str, answer: Awaitable[T]) -> T:
        began, result = time.perf_counter(), "failed"
        try:
            got = await answer
            result = "done"
        except AliquotError:
            result = "refused"
            raise
        finally:
            took = time.perf_counter() - began
            self.meters.call_seconds.labels(call, result).observe(took)
        return got

    def _status(self) -> GpuNodeStatus:
        return status_of(
            self.record.books,
            self.gpus,
            self.machine.attached,
            self.machine.inventory.driver_version,
        )

    async def _told(self) -> None:
        await asyncio.gather(*(plugin.told() for plugin in self.plugins))

    def _missing(self) -> list[str]:
        """What keeps pods from being served."""
        checks = {
            "the kubelet does not follow all plugins": self.registrar.registered,
            "the API server has not told of the pods": self.watch.synced,
            "no arbiter answers": self.keeper.answers,
        }
        return [text for text, fine in checks.items() if not fine]

    def _meters(self) -> Meters:
        meters = Meters()
        counters: dict[str, tuple[str, Callable[[], float]]] = {
            "aliquot_node_registrations": (
                "Times that all plugins were registered with a kubelet.",
                lambda: self.registrar.registrations,
            ),
            "aliquot_node_arbiter_starts": (
                "Times that the arbiter was started.",
                lambda: self.keeper.starts,
            ),
            "aliquot_node_corrections": (
                "Pods that were taken for another, and put right.",
                lambda: self.identity.corrections,
            ),
            "aliquot_node_events_dropped": (
                "Events that could not be written.",
                lambda: self.recorder.dropped,
            ),
        }
        meters.registry.register(BooksCollector(self.record.books, counters))
        return meters
