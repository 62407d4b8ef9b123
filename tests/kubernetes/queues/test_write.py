"""The leader alone writes the status of queues, on change and not too often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aliquot.kubernetes.api.objects import QUEUES, QueueObject
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.queues.status import QueueUsage
from aliquot.kubernetes.queues.write import StatusWriter
from aliquot.placement.queues.quota import Resources
from kubernetes.fake_api import FakeApi, as_json, until
from kubernetes.queues.builders import GPU_BYTES, make_queue


@dataclass
class Stage:
    """A writer beside a watch of queues, as in the scheduler."""

    api: FakeApi
    known: Queues = field(default_factory=Queues)
    loads: dict[str, QueueUsage] = field(default_factory=dict)
    leading: bool = True
    writer: StatusWriter = field(init=False)

    def add(self, queue: QueueObject) -> None:
        self.api.put("queues", as_json(QUEUES, queue))

    def has(self, name: str, milli: int) -> None:
        self.loads[name] = QueueUsage(Resources(milli))
        self.writer.change()

    def heard(self, old: QueueObject | None, new: QueueObject | None) -> None:
        one = new or old
        assert one is not None
        self.known.set_queue(one.metadata.name, new)
        self.writer.change()

    def used(self, name: str) -> int | None:
        status = self.api.objects["queues", "", name].get("status", {})
        return status["used"]["compute"] if status.get("used") else None

    @property
    def writes(self) -> int:
        return sum(method == "PATCH" for method, _ in self.api.requests)


@asynccontextmanager
async def playing(seconds: float = 0.01, api: FakeApi | None = None) -> AsyncIterator[Stage]:
    stage = Stage(api or FakeApi())
    stage.known.set_largest_gpu(GPU_BYTES)
    async with stage.api.serving(), stage.api.client() as client:
        stage.writer = StatusWriter(
            client, stage.known, lambda: stage.loads, lambda: stage.leading, seconds=seconds
        )
        watch = Watch(client, QUEUES, stage.heard)
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(stage.writer.run())]
        yield stage
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            assert task.cancelled()


def test_a_queue_gets_its_status_and_each_change_of_it() -> None:
    async def play() -> None:
        async with playing() as stage:
            stage.add(make_queue("a"))
            await until(lambda: stage.used("a") == 0)
            stage.has("a", 500)
            await until(lambda: stage.used("a") == 50)
            written = stage.api.objects["queues", "", "a"]["status"]
            assert [one["status"] for one in written["conditions"]] == ["True", "False"]
            assert "since" not in written["waiting"]
            assert all(
                path.endswith("/status") for method, path in stage.api.requests if method == "PATCH"
            )

    asyncio.run(play())


def test_a_queue_without_waiting_pods_has_no_since() -> None:
    async def play() -> None:
        async with playing() as stage:
            stage.add(make_queue("a"))
            stage.loads["a"] = QueueUsage(waiting_pods=1, since=time.time())
            await until(lambda: stage.used("a") == 0)
            waiting = stage.api.objects["queues", "", "a"]["status"]["waiting"]
            assert waiting["since"]
            stage.loads["a"] = QueueUsage()
            stage.has("a", 10)
            await until(lambda: stage.used("a") == 1)
            assert "since" not in stage.api.objects["queues", "", "a"]["status"]["waiting"]

    asyncio.run(play())


def test_nothing_is_written_while_nothing_changes_nor_by_a_new_leader() -> None:
    async def play() -> None:
        async with playing() as stage:
            stage.add(make_queue("a"))
            await until(lambda: stage.used("a") == 0)
        async with playing(api=stage.api) as again:
            before = again.writes
            again.add(make_queue("b"))
            again.has("a", 0)
            await until(lambda: again.used("b") == 0)
            assert again.writes == before + 1

    asyncio.run(play())


def test_many_changes_are_few_writes() -> None:
    async def play() -> None:
        async with playing(seconds=0.2) as stage:
            stage.add(make_queue("a"))
            await until(lambda: stage.used("a") == 0)
            start, before = time.monotonic(), stage.writes
            for milli in range(10, 1010, 10):
                stage.has("a", milli)
                await asyncio.sleep(0)
            await until(lambda: stage.used("a") == 100)
            assert stage.writes - before <= 2 + (time.monotonic() - start) / 0.2

    asyncio.run(play())


def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    async def play() -> None:
        async with playing() as stage:
            stage.leading = False
            stage.add(make_queue("a"))
            await until(lambda: stage.known.objects)
            await asyncio.sleep(0)
            stage.leading = True
            stage.has("a", 10)
            await until(lambda: stage.used("a") == 1)
            assert stage.writes == 1

    asyncio.run(play())


def test_failed_writes_are_retried_unless_the_queue_is_gone() -> None:
    async def play() -> None:
        async with playing() as stage:
            failing = [500, 503]
            stage.api.faults.refuse = lambda method, _: (
                failing.pop() if method == "PATCH" and failing else None
            )
            stage.add(make_queue("a"))
            await until(lambda: stage.used("a") == 0)
            stage.api.delete("queues", "a")
            stage.has("a", 10)
            stage.add(make_queue("b"))
            await until(lambda: stage.used("b") == 0)
            assert set(stage.known.objects) == {"b"}

    asyncio.run(play())
