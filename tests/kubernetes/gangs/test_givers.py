"""Claims to what elastic jobs have: they are asked to give back, then told, and evicted at last."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kubernetes.api.names import ELASTIC, GANG, GANG_SIZE, JOB, JOB_RANK
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.cluster import elastic
from aliquot.kubernetes.cluster.elastic import Terms, surpluses, terms_of, told_ahead
from aliquot.kubernetes.gangs import state
from aliquot.kubernetes.gangs.messages import stamp
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


def claim(world: World, size: int) -> None:
    world.gang("claimant", size, labels={QUEUE: "own"}, gpu=1)


def evicted(world: World) -> set[str]:
    paths = (path.split("/") for _, path in world.api.requests if path.endswith("/eviction"))
    return {path[-2] for path in paths}


def test_a_job_that_gives_back_enough_is_not_ended() -> None:
    async def play(world: World, _: Replica) -> None:
        job(world, 4, notice=60.0)
        await is_bound(world, "train-1", 4)
        claim(world, 2)
        await until(lambda: "ns/train can give back enough, and is waited" in world.why("claimant"))
        assert world.phase("claimant") == "Waiting"
        world.delete("train-2", "train-3")  # as its controller does
        await is_bound(world, "claimant", 2)
        assert set(world.bound("train-1")) == {"train-0", "train-1"}
        assert not evicted(world)

    played(World(4), play)


def test_a_job_that_gives_nothing_back_in_time_is_told_and_then_ended() -> None:
    async def play(world: World, _: Replica) -> None:
        written, evictions = times(world, "/gangs/train-1/status"), times(world, "/eviction")
        job(world, 4, notice=1.0)
        await is_bound(world, "train-1", 4)
        began = time.monotonic()
        claim(world, 2)
        await until(lambda: world.leaving("train-1"))
        found = world.status("train-1")
        assert found is not None
        assert found.status.leaves_at
        await is_bound(world, "claimant", 2)
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
    return f"preempted for ns/claimant: {why}; it is told, and has {seconds:.0f} s"


@pytest.mark.parametrize(("least", "size"), [(4, 2), (3, 2)], ids=["nothing", "too little"])
def test_a_job_that_cannot_give_back_enough_is_told_at_once(least: int, size: int) -> None:
    async def play(world: World, _: Replica) -> None:
        job(world, 4, least=least, notice=60.0)
        await is_bound(world, "train-1", 4)
        claim(world, size)
        await until(lambda: world.leaving("train-1"))
        assert "can give back" not in world.why("claimant")
        world.delete("train-0", "train-1", "train-2", "train-3")  # they were told, and have ended
        await is_bound(world, "claimant", size)
        assert not evicted(world)

    played(World(4), play)


@pytest.mark.parametrize("gone", [["train-1"], []], ids=["one has gone", "none has"])
def test_a_new_leader_goes_on_with_a_claim_and_nobody_has_more_time_than_it_was_told(
    gone: list[str],
) -> None:
    async def run(world: World) -> None:
        async with world.api.serving():
            async with led(world):
                names = job(world, 2, least=2, notice=60.0)
                await is_bound(world, "train-1", 2)
                claim(world, 2)
                await until(lambda: world.leaving("train-1"))
                assert world.api.objects["gangs", "ns", "claimant"]["status"]["makingRoom"]
            world.delete(*gone)
            found = world.api.objects["gangs", "ns", "train-1"]
            status = {**found["status"], "leavesAt": stamp(time.time())}
            world.api.put("gangs", {**found, "status": status})
            async with led(world):
                await is_bound(world, "claimant", 2)
        assert evicted(world) == {*names} - {*gone}

    asyncio.run(run(World(2)))


def test_a_claim_that_is_given_up_ends_nobody() -> None:
    async def play(world: World, _: Replica) -> None:
        names = job(world, 2, least=2, notice=60.0)
        await is_bound(world, "train-1", 2)
        claim(world, 2)
        await until(lambda: world.leaving("train-1"))
        world.delete("claimant-0", "claimant-1")
        await until(lambda: not world.leaving("train-1"))
        assert world.staying("train-1") == {*names}
        assert not evicted(world)

    played(World(2), play)


def test_who_ends_together_with_workers_that_are_told_ends_when_they_do() -> None:
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
        claim(world, 4)
        await is_bound(world, "claimant", 4)
        assert evicted(world) == {"train-0", "train-1", "rigid-0", "single"}
        assert min(evictions) - began >= 1.0 + LATE

    played(World(4), play)


def test_limits_of_a_queue_are_not_waited_for() -> None:
    """Who waits for a limit is not helped by GPUs that become free."""

    async def play(world: World, _: Replica) -> None:
        world.queue("tight", limit={"gpus": 2})
        terms = msgspec.json.encode(Terms(1, 60.0)).decode()
        for rank in range(2):
            notes = {GANG: "train-1", GANG_SIZE: "2", ELASTIC: terms}
            labels = {QUEUE: "tight", JOB: "train", JOB_RANK: str(rank)}
            world.pod(f"train-{rank}", gated=True, annotations=notes, labels=labels, gpu=1)
        await is_bound(world, "train-1", 2)
        world.gang("claimant", 1, labels={QUEUE: "tight"}, gpu=1, spec={"priority": 9})
        await until(lambda: world.leaving("train-1"))
        assert "can give back" not in world.why("claimant")

    played(World(4), play)


def worker(rank: int, text: str) -> Pod:
    one = make_pod(f"p{rank}", gpu=1, annotations={ELASTIC: text})
    labels = {JOB: "train", JOB_RANK: str(rank)}
    meta = msgspec.structs.replace(one.metadata, labels=labels)
    return msgspec.structs.replace(one, metadata=meta)


TIMES = st.floats(-1e9, 1e9)


@given(least=st.integers(-3, 6), notice=TIMES, grace=TIMES, ranks=st.permutations(range(5)))
def test_what_pods_say_is_bounded(
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
def test_what_makes_no_sense_is_no_elastic_job(text: str) -> None:
    assert terms_of(worker(0, text)) is None
