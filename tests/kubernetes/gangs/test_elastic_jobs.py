"""Preemption of elastic jobs: they are asked to shrink, then notified, then evicted."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kubernetes.api.names import ELASTIC, GANG, GANG_SIZE, JOB, JOB_RANK
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.times import stamp
from aliquot.kubernetes.cluster import elastic
from aliquot.kubernetes.cluster.elastic import Terms, surpluses, terms_of, told_ahead
from aliquot.kubernetes.gangs import state
from kubernetes.builders import make_pod
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, led, played

QUEUE = "aliquot.io/queue"
LATE = 0.3


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "MARGIN", 0.4)
    monkeypatch.setattr(state, "LATE", LATE)


def job(world: World, workers: int, *, least: int = 1, notice: float = 0.0) -> list[str]:
    """An elastic job's pods, in a queue that borrows them from another."""
    world.queue("own", quota={"gpus": workers})
    world.queue("guest", quota={"gpus": 0})
    terms = msgspec.json.encode(Terms(least, notice)).decode()
    names = [f"train-{rank}" for rank in range(workers)]
    for rank, name in enumerate(names):
        notes = {GANG: "train-1", GANG_SIZE: str(workers), ELASTIC: terms}
        labels = {QUEUE: "guest", JOB: "train", JOB_RANK: str(rank)}
        world.pod(name, gated=True, annotations=notes, labels=labels, gpu=1)
    return names


def preempt(world: World, size: int) -> None:
    world.gang("preemptor", size, labels={QUEUE: "own"}, gpu=1)


def evicted(world: World) -> set[str]:
    paths = (path.split("/") for _, path in world.api.requests if path.endswith("/eviction"))
    return {path[-2] for path in paths}


def test_a_job_that_shrinks_enough_is_not_evicted() -> None:
    async def play(world: World, _: Replica) -> None:
        job(world, 4, notice=60.0)
        await is_bound(world, "train-1", 4)
        preempt(world, 2)
        await until(lambda: "ns/train can shrink for it, and has until" in world.why("preemptor"))
        assert world.phase("preemptor") == "Waiting"
        world.delete("train-2", "train-3")  # as its controller does
        await is_bound(world, "preemptor", 2)
        assert set(world.bound("train-1")) == {"train-0", "train-1"}
        assert not evicted(world)

    played(World(4), play)


def test_a_job_that_does_not_shrink_in_time_is_notified_and_evicted() -> None:
    async def play(world: World, _: Replica) -> None:
        written, evictions = times(world, "/gangs/train-1/status"), times(world, "/eviction")
        job(world, 4, notice=1.0)
        await is_bound(world, "train-1", 4)
        began = time.monotonic()
        preempt(world, 2)
        await until(lambda: world.eviction_reason("train-1"))
        found = world.status("train-1")
        assert found is not None
        assert found.status.eviction_time
        await is_bound(world, "preemptor", 2)
        assert evicted(world) == {"train-0", "train-1", "train-2", "train-3"}
        assert evictions[0] - began >= 2 * 1.0 + 0.4, "it is waited for, and then told"
        told = max(at for at in written if at < evictions[0])
        assert evictions[0] - told >= 0.5
        await until(lambda: ("Preempted", preempted(1.0)) in world.events("train-0"))

    played(World(4), play)


def times(world: World, what: str) -> list[float]:
    """When requests with such paths came."""
    found: list[float] = []
    before = world.api.faults.refuse

    def note(method: str, path: str) -> int | None:
        if path.endswith(what):
            found.append(time.monotonic())
        return before(method, path)

    world.api.faults.refuse = note
    return found


def preempted(seconds: float) -> str:
    why = "queue guest borrows from the quota of queue own"
    return f"preempted for ns/preemptor: {why}; it is told, and has {seconds:.0f} s"


@pytest.mark.parametrize(("least", "size"), [(4, 2), (3, 2)], ids=["nothing", "too little"])
def test_a_job_that_cannot_shrink_enough_is_notified_at_once(least: int, size: int) -> None:
    async def play(world: World, _: Replica) -> None:
        job(world, 4, least=least, notice=60.0)
        await is_bound(world, "train-1", 4)
        preempt(world, size)
        await until(lambda: world.eviction_reason("train-1"))
        assert "can shrink" not in world.why("preemptor")
        world.delete("train-0", "train-1", "train-2", "train-3")  # they were told, and have ended
        await is_bound(world, "preemptor", size)
        assert not evicted(world)

    played(World(4), play)


@pytest.mark.parametrize("gone", [["train-1"], []], ids=["one has gone", "none has"])
def test_a_new_leader_goes_on_with_an_eviction_and_its_time(
    gone: list[str],
) -> None:
    async def run(world: World) -> None:
        async with world.api.serving():
            async with led(world):
                names = job(world, 2, least=2, notice=60.0)
                await is_bound(world, "train-1", 2)
                preempt(world, 2)
                await until(lambda: world.eviction_reason("train-1"))
                assert world.api.objects["gangs", "ns", "preemptor"]["status"]["victims"]
            world.delete(*gone)
            found = world.api.objects["gangs", "ns", "train-1"]
            status = {**found["status"], "evictionTime": stamp(time.time())}
            world.api.put("gangs", {**found, "status": status})
            async with led(world):
                await is_bound(world, "preemptor", 2)
        assert evicted(world) == {*names} - {*gone}

    asyncio.run(run(World(2)))


def test_an_abandoned_preemption_evicts_nobody() -> None:
    async def play(world: World, _: Replica) -> None:
        names = job(world, 2, least=2, notice=60.0)
        await is_bound(world, "train-1", 2)
        preempt(world, 2)
        await until(lambda: world.eviction_reason("train-1"))
        world.delete("preemptor-0", "preemptor-1")
        await until(lambda: not world.eviction_reason("train-1"))
        assert world.active("train-1") == {*names}
        assert not evicted(world)

    played(World(2), play)


def test_victims_are_evicted_together_with_notified_ones() -> None:
    async def play(world: World, _: Replica) -> None:
        evictions = times(world, "/eviction")
        job(world, 2, least=2, notice=1.0)
        world.queue("own", quota={"gpus": 4})
        world.gang("rigid", 1, labels={QUEUE: "guest"}, gpu=1)
        world.pod("single", labels={QUEUE: "guest"}, gpu=1)
        await is_bound(world, "train-1", 2)
        await is_bound(world, "rigid", 1)
        await until(lambda: "single" in world.bound())
        began = time.monotonic()
        preempt(world, 4)
        await is_bound(world, "preemptor", 4)
        assert evicted(world) == {"train-0", "train-1", "rigid-0", "single"}
        assert min(evictions) - began >= 1.0 + LATE

    played(World(4), play)


def test_elastic_jobs_are_not_asked_to_shrink_for_a_limit() -> None:
    """Who waits for a limit is not helped by GPUs that become free."""

    async def play(world: World, _: Replica) -> None:
        world.queue("tight", limit={"gpus": 2})
        terms = msgspec.json.encode(Terms(1, 60.0)).decode()
        for rank in range(2):
            notes = {GANG: "train-1", GANG_SIZE: "2", ELASTIC: terms}
            labels = {QUEUE: "tight", JOB: "train", JOB_RANK: str(rank)}
            world.pod(f"train-{rank}", gated=True, annotations=notes, labels=labels, gpu=1)
        await is_bound(world, "train-1", 2)
        world.gang("preemptor", 1, labels={QUEUE: "tight"}, gpu=1, spec={"priority": 9})
        await until(lambda: world.eviction_reason("train-1"))
        assert "can shrink" not in world.why("preemptor")

    played(World(4), play)


def worker(rank: int, text: str) -> Pod:
    one = make_pod(f"p{rank}", gpu=1, annotations={ELASTIC: text})
    labels = {JOB: "train", JOB_RANK: str(rank)}
    meta = msgspec.structs.replace(one.metadata, labels=labels)
    return msgspec.structs.replace(one, metadata=meta)


TIMES = st.floats(-1e9, 1e9)


@given(least=st.integers(-3, 6), notice=TIMES, grace=TIMES, ranks=st.permutations(range(5)))
def test_what_pods_say_of_elastic_jobs_is_bounded(
    least: int, notice: float, grace: float, ranks: list[int]
) -> None:
    text = msgspec.json.encode(Terms(least, notice, grace)).decode()
    pods = [worker(rank, text) for rank in ranks]
    assert 0 <= told_ahead(pods) <= elastic.LONGEST
    found = surpluses(pods)
    assert [one.job for one in found] == (["ns/train"] if least < 5 else [])
    for one in found:
        assert one.uids == tuple(f"uid-p{rank}" for rank in range(4, max(0, least) - 1, -1))
        assert 0 <= one.seconds <= elastic.LONGEST + elastic.MARGIN


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"least": "many"}', '{"notice": 3}', '{"least": 1}' + " " * 200]
)
def test_an_invalid_annotation_is_no_elastic_job(text: str) -> None:
    assert terms_of(worker(0, text)) is None
