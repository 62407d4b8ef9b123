"""Claims prepared and unprepared in any order, with crashes, lost grants, lingering processes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import support
from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.dra import ResourceClaim
from aliquot.kubernetes.api.dra_parameters import InvalidClaimError
from aliquot.kubernetes.api.objects import PODS, Meta, Pod
from aliquot.kubernetes.node.dra import prepare
from aliquot.kubernetes.node.dra.prepare import ClaimGrants, ClaimRefusedError
from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint, SavedAllocations
from aliquot.kubernetes.node.pods import GpuPod
from aliquot.model.errors import AliquotError, ArbiterError
from kubernetes.node.dra_objects import NODE, claim, parameters, result
from support import GIB

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aliquot.kubernetes.node.grants.grant import ContainerGrant

Json = dict[str, Any]
A, B = support.uuid_of(0), support.uuid_of(1)


@dataclass
class FakeArbiter:
    """Grants by name; those with processes do not end. It may be away, or crash its caller."""

    grants: dict[str, ContainerGrant] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    away: bool = False
    made: int = 0
    together: set[str | None] = field(default_factory=set)

    async def make(self, grant: ContainerGrant, together: str | None) -> None:
        await self._answer()
        self.made += 1
        self.together.add(together)
        self.grants[grant.name] = grant

    async def end(self, name: str) -> bool:
        await self._answer()
        if name in self.busy:
            return False
        self.grants.pop(name, None)
        return True

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise ArbiterError("it does not answer")

    def status(self) -> Any:
        @dataclass
        class Status:
            grants: list[ContainerGrant]

        return Status(list(self.grants.values()))


class FakeInjection:
    """CDI specs by grant."""

    uses_cdi = True

    def prepare(self, grant: ContainerGrant) -> None:
        assert grant.cdi

    def cdi_devices(self, grant: ContainerGrant) -> tuple[str, ...]:
        return ("driver", grant.name)

    def minors(self, _: ContainerGrant) -> tuple[int, ...]:
        return ()


class FakeClaims:
    """The claims in the API server, and perhaps a pod."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.pod: Pod | None = None

    async def get(self, of: Any, name: str, namespace: str) -> ResourceClaim | Pod:
        await asyncio.sleep(0)
        if of is PODS and self.pod is not None:
            return self.pod
        if name not in self.objects:
            raise ApiError(404, "NotFound", f"{namespace}/{name} is not there")
        return msgspec.json.decode(msgspec.json.encode(self.objects[name]), type=ResourceClaim)


class FakePods:
    """The node's pods: most have no settings of their own."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.known: dict[str, GpuPod] = {}
        self.changes = Changes()

    def get(self, uid: str) -> GpuPod | None:
        return self.known.get(uid)

    async def wait_change(self, seconds: float) -> bool:
        return await self.changes.wait(seconds)

    def is_gone(self, uid: str) -> bool:
        return uid in self.gone


class FakeEvents:
    """Events on pods: name, reason and message."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    def pod_event(self, pod: GpuPod, reason: str, message: str, **_: Any) -> None:
        self.told.append((pod.object.metadata.name, reason, message))


class World:
    """One node: its claims in the API server, its arbiter, and an agent that can crash."""

    def __init__(self, folder: Path) -> None:
        self.claims, self.pods, self.events = FakeClaims(), FakePods(), FakeEvents()
        self.arbiter, self.injection = FakeArbiter(), FakeInjection()
        self._checkpoint = Checkpoint(folder / "node.json")
        self.restart()

    def restart(self, memory: int = 80 * GIB, **options: Any) -> None:
        """A new agent, which knows what the checkpoint has; GPUs may have other memory now."""
        data = self._checkpoint.load()
        gpus = [HostGpu(uuid, index, memory) for index, uuid in enumerate((A, B))]
        self.saved = SavedAllocations(NodeAllocations(gpus, 2, data.grants), self._checkpoint)
        client: Any = self.claims
        parts: dict[str, Any] = {
            "pods": self.pods,
            "arbiter": self.arbiter,
            "injection": self.injection,
            "events": self.events,
            **options,
        }
        self.driver = ClaimGrants(client, NODE, saved=self.saved, forgotten_seconds=0.0, **parts)

    def put(self, one: Json) -> Json:
        """Have this claim in the API server."""
        self.claims.objects[one["metadata"]["name"]] = one
        return one

    async def prepare(self, one: Json) -> tuple[Any, tuple[str, ...]]:
        meta = one["metadata"]
        return await self.driver.prepare(meta["namespace"], meta["name"], meta["uid"])

    async def unprepare(self, one: Json) -> None:
        await self.driver.unprepare(one["metadata"]["uid"])

    @property
    def granted(self) -> dict[str, str]:
        """The names of grants by their claims."""
        return {one.claim.name: one.name for one in self.saved.allocations.saved() if one.claim}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(prepare, "END_SECONDS", 0.02)
    monkeypatch.setattr(prepare, "LOOK_SECONDS", 0.001)
    return World(tmp_path)


def test_a_claim_that_is_prepared_again_has_the_same_grant_also_after_a_restart(
    world: World,
) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A)))
        first = await world.prepare(one)
        assert await world.prepare(one) == first
        world.restart()
        assert await world.prepare(one) == first
        assert list(world.arbiter.grants) == [world.granted["one"]]
        await world.unprepare(one)
        await world.unprepare(one)
        assert not world.granted
        assert not world.arbiter.grants

    asyncio.run(example())


def test_a_pod_that_the_agent_does_not_know_yet_holds_gpus_together_with_others(
    world: World,
) -> None:
    async def example() -> None:
        notes = {names.TOGETHER: "ring"}
        world.claims.pod = Pod(Meta(name="pod", namespace="default", uid="pod", annotations=notes))
        await world.prepare(world.put(claim("one", result(A))))
        assert world.arbiter.together == {GpuPod(world.claims.pod).together}
        world.claims.pod = Pod(Meta(name="pod", namespace="default", uid="new", annotations=notes))
        await world.prepare(world.put(claim("two", result(A))))
        assert None in world.arbiter.together, "another pod of that name"

    asyncio.run(example())


def test_without_a_right_to_pods_a_claim_waits_until_its_pod_is_known(world: World) -> None:
    async def example() -> None:
        notes = {names.TOGETHER: "ring"}
        world.claims.pod = Pod(Meta(name="pod", namespace="default", uid="pod", annotations=notes))
        one = world.put(claim("one", result(A)))
        world.restart(reads_pods=False, pod_seconds=0.01)
        with pytest.raises(ClaimRefusedError, match="not in the GPUNode"):
            await world.prepare(one)
        assert not world.arbiter.grants
        world.restart(reads_pods=False, pod_seconds=60.0)
        waiting = asyncio.create_task(world.prepare(one))
        await asyncio.sleep(0)
        world.pods.known["pod"] = GpuPod(world.claims.pod)
        while not waiting.done():
            world.pods.changes.notify()
            await asyncio.sleep(0)
        await waiting
        assert world.arbiter.together == {GpuPod(world.claims.pod).together}

    asyncio.run(example())


def test_an_overbooked_claim_is_refused_with_an_event_and_fits_later(world: World) -> None:
    async def example() -> None:
        before = world.put(claim("before", result(A, memory="60Gi")))
        late = world.put(claim("late", result(A, memory="60Gi"), pods=("p1", "p2")))
        await world.prepare(before)
        with pytest.raises(ClaimRefusedError, match="not free"):
            await world.prepare(late)
        assert {(pod, reason) for pod, reason, _ in world.events.told} == {
            ("p1", "ClaimNotPrepared"),
            ("p2", "ClaimNotPrepared"),
        }
        assert list(world.granted) == ["before"]
        await world.unprepare(before)
        await world.prepare(late)
        assert list(world.granted) == ["late"]

    asyncio.run(example())


def test_a_grant_with_processes_stays_allocated_until_they_have_ended(world: World) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A, "whole")))
        other = world.put(claim("other", result(A, "whole")))
        await world.prepare(one)
        name = world.granted["one"]
        world.arbiter.busy.add(name)
        with pytest.raises(ClaimRefusedError, match="processes still run"):
            await world.unprepare(one)
        with pytest.raises(ClaimRefusedError, match="not free"):
            await world.prepare(other)
        world.arbiter.busy.clear()
        await world.unprepare(one)
        await world.prepare(other)

    asyncio.run(example())


def test_a_claim_that_got_other_devices_meanwhile_gets_another_grant(world: World) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A, "whole")))
        await world.prepare(one)
        before = world.granted["one"]
        world.put(claim("one", result(B, "whole")))
        (device,), _ = await world.prepare(one)
        assert device.gpu == B
        assert world.granted["one"] != before
        assert list(world.arbiter.grants) == [world.granted["one"]]

    asyncio.run(example())


def test_another_claim_of_the_same_name_is_not_prepared(world: World) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A)))
        world.put({**one, "metadata": {**one["metadata"], "uid": "another"}})
        with pytest.raises(ClaimRefusedError, match="another one now"):
            await world.prepare(one)
        assert not world.granted

    asyncio.run(example())


def test_an_invalid_claim_is_told_on_its_pods(world: World) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A), config=(parameters(policy="x"),)))
        with pytest.raises(InvalidClaimError):
            await world.prepare(one)
        ((pod, reason, message),) = world.events.told
        assert (pod, reason) == ("pod", "InvalidClaim")
        assert "the parameters are invalid" in message

    asyncio.run(example())


def test_a_runtime_without_cdi_prepares_no_claim(world: World) -> None:
    async def example() -> None:
        world.injection.uses_cdi = False
        with pytest.raises(ClaimRefusedError, match="no CDI devices"):
            await world.prepare(world.put(claim("one", result(A))))
        assert not world.granted

    asyncio.run(example())


def test_grants_that_the_arbiter_lost_are_made_again(world: World) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A)))
        await world.prepare(one)
        lost, world.arbiter.grants = world.arbiter.grants, {}
        world.arbiter.away = True
        await world.driver.keep(world.arbiter.status())
        world.arbiter.away = False
        await world.driver.keep(world.arbiter.status())
        assert world.arbiter.grants == lost
        made = world.arbiter.made
        await world.driver.keep(world.arbiter.status())
        assert world.arbiter.made == made

    asyncio.run(example())


def test_a_claim_of_gone_pods_is_released_only_if_it_is_gone_itself(world: World) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A), pods=("a",)))
        await world.prepare(one)
        await world.driver.release_forgotten()
        assert world.granted
        world.pods.gone.add("a")
        await world.driver.release_forgotten()
        assert world.granted  # the claim still has its devices, for the next pod
        del world.claims.objects["one"]
        world.arbiter.busy.update(world.arbiter.grants)
        await world.driver.release_forgotten()
        assert world.granted  # processes of it still run
        world.arbiter.busy.clear()
        await world.driver.release_forgotten()
        assert not world.granted

    asyncio.run(example())


def test_a_claim_keeps_its_grant_for_its_next_pod_after_an_update_of_the_driver(
    world: World,
) -> None:
    """The driver may say another size for the same GPU, and a pod of the claim still runs."""

    async def example() -> None:
        one = world.put(claim("one", result(A, "whole"), pods=("a",)))
        await world.prepare(one)
        before = world.granted
        world.put(claim("one", result(A, "whole"), pods=("b",)))
        world.pods.gone.add("a")
        world.restart(79 * GIB)
        await world.driver.release_forgotten()
        assert world.granted == before
        assert set(world.arbiter.grants) == set(before.values())
        (grant,) = world.saved.allocations.saved()
        assert (grant.owner.pod, grant.claim and grant.claim.pods) == ("b", ("b",))

    asyncio.run(example())


def test_a_shared_claim_counts_for_a_pod_that_may_still_use_it(world: World) -> None:
    """Else its GPUs count for no queue once the pod is gone that came first."""

    async def example() -> None:
        one = world.put(claim("one", result(A), pods=("a", "b")))
        await world.prepare(one)
        before = world.granted
        world.pods.gone.add("a")
        (_, left) = one["status"]["reservedFor"]
        world.put({**one, "status": {**one["status"], "reservedFor": [left]}})
        await world.driver.release_forgotten()
        (grant,) = world.saved.allocations.saved()
        assert (grant.owner.pod, grant.claim and grant.claim.pods) == ("b", ("b",))
        assert world.granted == before

    asyncio.run(example())


def test_a_claim_that_is_gone_stays_while_one_of_its_pods_runs(world: World) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A), pods=("a", "b")))
        await world.prepare(one)
        world.claims.objects.clear()
        world.pods.gone.add("a")
        await world.driver.release_forgotten()
        assert world.granted
        world.pods.gone.add("b")
        await world.driver.release_forgotten()
        assert not world.granted

    asyncio.run(example())


def test_claims_whose_processes_do_not_end_keep_the_agent_from_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop that releases them also looks for programs that use a GPU past Aliquot."""
    monkeypatch.setattr(prepare, "END_SECONDS", 3600.0)

    async def example() -> None:
        one = world.put(claim("one", result(A), pods=("a",)))
        await world.prepare(one)
        world.claims.objects.clear()
        world.pods.gone.add("a")
        world.arbiter.busy.update(world.arbiter.grants)
        async with asyncio.timeout(60):
            await world.driver.release_forgotten()
        assert world.granted

    asyncio.run(example())


def test_a_claim_whose_allocation_was_removed_is_released_when_its_pods_are_gone(
    world: World,
) -> None:
    async def example() -> None:
        one = world.put(claim("one", result(A), pods=("a",)))
        await world.prepare(one)
        world.put({**one, "status": {}})
        world.pods.gone.add("a")
        await world.driver.release_forgotten()
        assert not world.granted

    asyncio.run(example())


class Storm:
    """Calls at the same time, crashes, lost grants and lingering processes, by chance."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)  # noqa: S311 - chance, not secrets
        names = [f"c{number}" for number in range(5)]
        self.claims = [world.put(self._any_claim(name)) for name in names]
        self.steps: list[Callable[[Json, Json], Awaitable[None]]] = [
            *[self._prepare] * 3,
            *[self._both] * 2,
            self._crash,
            self._linger,
            self._lose,
        ]

    def _any_claim(self, name: str) -> Json:
        gpu = self.chance.choice((A, B))
        kind = self.chance.choice(("whole", "shared", "sliced", "sliced"))
        size = self.chance.choice(("20Gi", "40Gi", "80Gi"))
        return claim(name, result(gpu, kind, self.chance.randrange(2), memory=size))

    async def tried(self, call: str, one: Json) -> bool:
        """Whether a call of the kubelet succeeds."""
        try:
            await getattr(self.world, call)(one)
        except AliquotError:
            return False
        return True

    async def step(self) -> None:
        await self.chance.choice(self.steps)(*self.chance.sample(self.claims, 2))
        await self.world.driver.keep(self.world.arbiter.status())

    async def _prepare(self, one: Json, other: Json) -> None:
        await asyncio.gather(self.tried("prepare", one), self.tried("prepare", other))

    async def _both(self, one: Json, other: Json) -> None:
        calls = ("unprepare", one), ("prepare", one), ("unprepare", other)
        await asyncio.gather(*(self.tried(*call) for call in calls))

    async def _crash(self, one: Json, _: Json) -> None:
        """The agent dies in the middle of a call."""
        under_way = asyncio.create_task(self.tried("prepare", one))
        for _turn in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)
        self.world.restart()

    async def _linger(self, *_: Json) -> None:
        names = sorted(self.world.arbiter.grants)
        self.world.arbiter.busy = set(self.chance.sample(names, len(names) // 2))

    async def _lose(self, *_: Json) -> None:
        arbiter = self.world.arbiter
        for name in self.chance.sample(sorted(arbiter.grants), min(1, len(arbiter.grants))):
            arbiter.busy.discard(name)
            del arbiter.grants[name]


def check(world: World) -> None:
    """No GPU has two kinds or too little memory, and the arbiter has what is allocated."""
    allocations = world.saved.allocations
    assert set(world.arbiter.grants) == set(world.granted.values())
    for uuid, gpu in allocations.gpus.items():
        kinds = {
            grant.kind
            for grant in allocations.saved()
            if any(part.gpu == uuid for part in grant.allocated)
        }
        assert len(kinds) <= 1
        assert allocations.used(uuid).memory <= gpu.memory


@pytest.mark.parametrize("seed", range(10))
def test_grants_are_those_of_prepared_claims_whatever_happens(world: World, seed: int) -> None:
    storm = Storm(world, seed)

    async def example() -> None:
        for _ in range(60):
            await storm.step()
            check(world)
        world.arbiter.busy.clear()
        for one in storm.claims:
            assert await storm.tried("unprepare", one)
        assert not world.granted
        assert not world.arbiter.grants
        for one in storm.claims:  # each fits alone on the empty node
            assert await storm.tried("prepare", one)
            assert await storm.tried("unprepare", one)

    asyncio.run(example())
