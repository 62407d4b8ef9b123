"""Allocate calls in any order: each container gets what it asked for itself."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, Mock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import requests_of
from aliquot.kubernetes.node.deviceplugin.allocate import Allocator, Starter
from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds, resources_of
from aliquot.kubernetes.node.deviceplugin.matching import guess
from aliquot.kubernetes.node.deviceplugin.matching.confirm import OwnerConfirmation
from aliquot.kubernetes.node.deviceplugin.matching.guess import AllocateRefusedError, Matcher
from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint, SavedAllocations
from aliquot.kubernetes.node.grants.swap import NodeSwap
from aliquot.kubernetes.node.pods import NodePods
from kubernetes.builders import container, make_pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aliquot.kubernetes.node.deviceplugin.matching.confirm import PodReport
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.kubernetes.node.pods import ContainerRef

GPUS = 4
UNITS = 60
SIZES = [
    {"sgpu": 1},
    {"gpu": 1},
    {"memory": 6},
    {"memory": 6, "core": 10},
    {"memory": 4, "core": 5},
]


@dataclass
class Kubelet:
    """The device manager's choice of ids, and its reports of pods."""

    seed: int
    given: dict[str, dict[str, dict[str, tuple[str, ...]]]] = field(default_factory=dict)
    answers: dict[tuple[str, str], ContainerGrant] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - chance, not secrets

    async def report(self, owner: ContainerRef) -> PodReport | None:
        pod = self.pods.get(owner.uid)
        mains = {one.name for one in pod.spec.containers} if pod else set()
        return {
            name: units for name, units in self.given.get(owner.uid, {}).items() if name in mains
        }

    async def admit(
        self, node: Node, pod: Pod, between: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        """Admit a pod. `between` runs between the answer to a call and the kubelet's note of it."""
        self.pods[pod.metadata.uid] = pod
        reusable: dict[str, set[str]] = {}
        try:
            for one in (*pod.spec.init_containers, *pod.spec.containers):
                init = one in pod.spec.init_containers
                wanted = [(name, int(count)) for name, count in one.resources.limits.items()]
                self.random.shuffle(wanted)
                for name, count in wanted:
                    ids = self._choose(node.ids, name, count, reusable.get(name, set()))
                    grant = await node.allocator.allocate(name, ids)
                    if between is not None:
                        await between()
                    of_pod = self.given.setdefault(pod.metadata.uid, {})
                    of_pod.setdefault(one.name, {})[name] = tuple(sorted(ids))
                    kept = reusable.setdefault(name, set())
                    (kept.update if init else kept.difference_update)(ids)
                    if grant is not None:
                        self.answers[pod.metadata.uid, one.name] = grant
        except AllocateRefusedError:
            self.forget(pod)
            return False
        return True

    def forget(self, pod: Pod) -> None:
        self.given.pop(pod.metadata.uid, None)
        self.pods.pop(pod.metadata.uid, None)

    def _choose(self, ids: DeviceIds, name: str, count: int, reusable: set[str]) -> tuple[str, ...]:
        again = sorted(reusable)
        self.random.shuffle(again)
        used = {
            id_
            for of_pod in self.given.values()
            for units in of_pod.values()
            for id_ in units.get(name, ())
        }
        free = [id_ for id_, healthy in ids.ids(name) if healthy and id_ not in used]
        more = count - len(again[:count])
        if len(free) < more:
            raise AllocateRefusedError("requested number of devices unavailable")
        return (*again[:count], *self.random.sample(free, more))


class Node:
    """The agent's parts that answer Allocate, with nothing around them."""

    def __init__(self, folder: Path, kubelet: Any, behind_seconds: float = 0.0) -> None:
        made = [support.make_gpu(index, UNITS * MEMORY_UNIT) for index in range(GPUS)]
        gpus = {gpu.uuid: gpu for gpu in made}
        host_gpus = [HostGpu(gpu.uuid, gpu.index, gpu.memory_bytes) for gpu in made]
        checkpoint = Checkpoint(folder / "node.json")
        allocations = NodeAllocations(host_gpus, 2, checkpoint.load().grants)
        self.saved = SavedAllocations(allocations, checkpoint)
        self.ids = DeviceIds(allocations, resources_of([ALIQUOT]))
        self.pods = NodePods([ALIQUOT], lambda: True, behind_seconds=behind_seconds)
        self.owners = OwnerConfirmation(self.saved, self.ids, self.pods, kubelet)
        self.messages: list[str] = []
        self.allocator = Allocator(
            self.saved,
            self.ids,
            self.pods,
            Matcher(self.ids, self.pods, self.owners),
            lambda: gpus,
            lambda _pod, _reason, message: self.messages.append(message),
            lambda: False,
            lambda grant: tuple(sorted(gpus[part.gpu].index for part in grant.allocated)),
            NodeSwap(),
        )
        nothing: Any = Mock()  # what is around the agent's matching of containers
        nothing.follow, nothing.make, nothing.end = AsyncMock(), AsyncMock(), AsyncMock()
        self.starter = Starter(
            self.saved,
            self.ids,
            self.pods,
            self.owners,
            arbiter=nothing,
            resizer=nothing,
            allocator=self.allocator,
            events=nothing,
            injection=nothing,
            swap=NodeSwap(),
        )


class BusyNode:
    """A node whose containers start while other pods are admitted."""

    def __init__(self, folder: Path, seed: int, made: list[Pod]) -> None:
        self.kubelet = Kubelet(seed)
        self.chance = self.kubelet.random
        self.node = Node(folder, self.kubelet)
        self.pods = made
        self.unheard = self.chance.sample(made, len(made))  # by the agent
        self.waiting: list[Pod] = []  # for their start
        self.running: list[Pod] = []

    async def admit(self, pod: Pod) -> None:
        at_once = pod in self.unheard and self.chance.random() < 0.5
        self._hear(len(self.unheard) if at_once else self.chance.randint(0, len(self.unheard)))
        admission = asyncio.create_task(self.kubelet.admit(self.node, pod, self._between_calls))
        await asyncio.sleep(0)
        if pod in self.unheard:
            self.unheard.remove(pod)
            self.node.pods.observe(None, pod)
        if await admission:
            self.running.append(pod)
            self.waiting.append(pod)
        else:
            self.node.pods.observe(pod, None)

    async def start(self, count: int) -> None:
        for _ in range(min(count, len(self.waiting))):
            pod = self.waiting.pop(self.chance.randrange(len(self.waiting)))
            for one in (*pod.spec.init_containers, *pod.spec.containers):
                given = list(self.kubelet.given[pod.metadata.uid][one.name].items())
                for name, ids in self.chance.sample(given, len(given)):
                    await self._start(name, ids)

    async def _start(self, name: str, ids: tuple[str, ...]) -> None:
        try:
            await self.node.starter.start(name, ids)
        except AllocateRefusedError as error:  # which the kubelet takes for a refused admission
            raise AssertionError(str(error)) from error

    async def _between_calls(self) -> None:
        again = self.chance.choice(self.pods)
        if self.node.pods.get(again.metadata.uid):
            self.node.pods.observe(again, again)
        await self.start(self.chance.randint(0, 2))

    def _hear(self, count: int) -> None:
        for _ in range(count):
            self.node.pods.observe(None, self.unheard.pop())


containers = st.sampled_from(SIZES)
pods = st.tuples(st.lists(containers, max_size=1), st.lists(containers, min_size=1, max_size=2))


def make_pods(shapes: list[Any]) -> list[Pod]:
    return [
        make_pod(
            f"p{number}",
            *(container(f"m{at}", **size) for at, size in enumerate(mains)),
            init=tuple(container(f"i{at}", **size) for at, size in enumerate(inits)),
        )
        for number, (inits, mains) in enumerate(shapes)
    ]


@given(shapes=st.lists(pods, min_size=1, max_size=6), seed=st.integers(0, 1 << 16))
@settings(max_examples=150, deadline=None)
def test_every_container_has_what_it_asked_for_once_it_is_confirmed(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[Any], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("node")
    made = make_pods(shapes)

    async def go() -> None:
        kubelet = Kubelet(seed)
        node = Node(folder, kubelet)
        for pod in made:
            node.pods.observe(None, pod)
        order = kubelet.random.sample(made, len(made))
        running = []
        for pod in order:
            if await kubelet.admit(node, pod):
                running.append(pod)
            else:
                node.pods.observe(pod, None)
        names = list(node.saved.allocations.grants)
        for name in kubelet.random.sample(names, len(names)):
            await node.owners.confirm(name)
        for pod in running:
            _check(node, kubelet, pod)

    asyncio.run(go())


@given(shapes=st.lists(pods, min_size=2, max_size=6), seed=st.integers(0, 1 << 16))
@settings(max_examples=80, deadline=None)
def test_containers_start_while_others_are_admitted_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[Any], seed: int
) -> None:
    """The agent hears of pods together, late, in another order than the kubelet, and twice."""
    folder = tmp_path_factory.mktemp("node")

    async def go() -> None:
        busy = BusyNode(folder, seed, make_pods(shapes))
        for pod in busy.chance.sample(busy.pods, len(busy.pods)):
            await busy.admit(pod)
        await busy.start(len(busy.waiting))
        for pod in busy.running:
            _check(busy.node, busy.kubelet, pod)

    with patch.object(guess, "WAIT_SECONDS", 0.01):  # for pods of which it hears in vain
        asyncio.run(go())


def _check(node: Node, kubelet: Kubelet, pod: Pod) -> None:
    uid = pod.metadata.uid
    allocations = node.saved.allocations
    for request in requests_of(pod):
        answer = kubelet.answers[uid, request.container]
        grant = allocations.grants.get(answer.name)
        assert grant is not None, "the answered grant is in the allocations"
        assert grant.kind == request.kind
        assert len(grant.allocated) == request.gpus
        assert {part.gpu for part in grant.allocated} == {part.gpu for part in answer.allocated}
        indexes = [allocations.gpus[part.gpu].index for part in grant.allocated]
        assert grant.minors == tuple(sorted(indexes)), "the device nodes that it was told"
        if request.init:
            continue  # the kubelet does not report it
        assert grant.owner.uid == uid
        assert grant.owner.container == request.container
        assert grant.confirmed
        assert grant.device_ids.items() >= kubelet.given[uid][request.container].items()
        assert grant.merged or grant.device_ids.keys() == dict(request.units).keys()
        if request.kind == "sliced":
            assert grant.allocated[0].memory >= request.memory
            assert grant.current.compute == request.compute or grant.merged
    for grant in allocations.of_pod(uid):
        assert grant.kind == "whole" or grant.device_ids
    for gpu in allocations.gpus.values():
        assert allocations.used(gpu.uuid).memory <= gpu.memory


def test_a_saved_grant_that_was_never_answered_can_be_replaced(tmp_path: Path) -> None:
    """The agent dies after it has saved the grant and before it answers."""

    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        pod = make_pod("a", memory=6, core=10)
        node.pods.observe(None, pod)
        await node.allocator.allocate(
            "aliquot.io/vcuda-memory", ("m0", "m1", "m2", "m3", "m4", "m5")
        )
        again = Node(tmp_path, kubelet)
        assert [grant.owner.pod for grant in again.saved.allocations.grants.values()] == ["a"]
        other = make_pod("b", memory=6, core=10)
        again.pods.observe(None, pod)
        again.pods.observe(None, other)
        assert await kubelet.admit(again, other)
        for name in list(again.saved.allocations.grants):
            await again.owners.confirm(name)
        assert [grant.confirmed for grant in again.saved.allocations.of_pod("uid-b")] == [True]

    asyncio.run(go())


def test_a_pod_without_a_plan_gets_only_gpus_that_it_may_use(tmp_path: Path) -> None:
    """The scheduler did not choose: it was created with its node."""

    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        last = list(node.saved.allocations.gpus)[-1]
        pod = make_pod("a", memory=6, annotations={"aliquot.io/gpu": last})
        other = make_pod("b", memory=7, annotations={"aliquot.io/not-gpu": last})
        for one in (pod, other):
            node.pods.observe(None, one)
            assert await kubelet.admit(node, one)
        mine, its = node.saved.allocations.grants.values()
        assert [part.gpu for part in mine.allocated] == [last]
        assert last not in {part.gpu for part in its.allocated}

    asyncio.run(go())


def test_a_call_waits_a_second_for_its_pod(tmp_path: Path) -> None:
    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        pod = make_pod("a", sgpu=1)
        call = asyncio.create_task(kubelet.admit(node, pod))
        await asyncio.sleep(0)
        node.pods.observe(None, pod)
        assert await call
        assert [grant.owner.pod for grant in node.saved.allocations.grants.values()] == ["a"]

    asyncio.run(go())


def test_a_call_waits_longer_where_pods_come_later(tmp_path: Path) -> None:
    """Through the GPUNode; without its plan the pod would get another GPU."""

    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet, behind_seconds=600.0)
        last = list(node.saved.allocations.gpus)[-1]
        plan = Plan({"main": ContainerPlan("sliced", (last,), 6 * MEMORY_UNIT)})
        pod = make_pod("a", memory=6, annotations={"aliquot.io/plan": plan.encode()})
        call = asyncio.create_task(kubelet.admit(node, pod))
        await asyncio.sleep(0)
        node.pods.observe(None, pod)
        assert await call
        (grant,) = node.saved.allocations.grants.values()
        assert [part.gpu for part in grant.allocated] == [last]

    with patch.object(guess, "WAIT_SECONDS", 0.0):
        asyncio.run(go())


@pytest.mark.parametrize("seed", range(6))  # the order of the calls for memory and compute
def test_ids_stay_healthy_between_the_calls_for_a_container(tmp_path: Path, seed: int) -> None:
    """Else the kubelet would count ids that it gave as lost, and reject the next pod."""
    core = "aliquot.io/vcuda-core"

    async def go() -> None:
        kubelet = Kubelet(seed)
        node = Node(tmp_path, kubelet)
        first = make_pod("first", memory=6, core=30)
        node.pods.observe(None, first)
        lists = [node.ids.ids(core)]

        async def between() -> None:
            lists.append(node.ids.ids(core))

        assert await kubelet.admit(node, first, between)
        assert [sum(healthy for _, healthy in one) for one in lists] == [GPUS * 100] * 3

    asyncio.run(go())


def test_a_corrected_grant_expects_no_more_calls(tmp_path: Path) -> None:
    core, memory = "aliquot.io/vcuda-core", "aliquot.io/vcuda-memory"

    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        guessed, right = make_pod("guessed", memory=6, core=30), make_pod("right", memory=6)
        node.pods.observe(None, guessed)
        assert await kubelet.admit(node, right)
        (grant,) = node.saved.allocations.grants.values()
        assert (grant.owner.pod, list(grant.device_ids)) == ("guessed", [memory])
        node.pods.observe(None, right)
        confirmed = await node.owners.confirm(grant.name)
        assert confirmed is not None
        assert confirmed.owner.pod == "right"
        assert node.ids.counts()[core] == GPUS * 100

    asyncio.run(go())


def test_ids_for_a_pod_rejected_between_its_calls_are_offered_once(tmp_path: Path) -> None:
    core, memory = "aliquot.io/vcuda-core", "aliquot.io/vcuda-memory"

    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        rejected, other = make_pod("rejected", memory=6, core=30), make_pod("other", memory=4)
        for pod in (rejected, other):
            node.pods.observe(None, pod)
        grant = await node.allocator.allocate(memory, tuple(f"m{at}" for at in range(6)))
        assert grant is not None
        assert node.ids.counts()[core] == GPUS * 100
        assert await kubelet.admit(node, other)
        assert node.ids.counts()[core] == GPUS * 100 - 30, "no call for it is under way any more"
        with node.saved.changing() as allocations:
            allocations.release(grant.name)
        assert node.ids.counts()[core] == GPUS * 100

    asyncio.run(go())


def test_a_failed_write_refuses_the_call_and_changes_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        pod = make_pod("a", sgpu=1)
        node.pods.observe(None, pod)
        (tmp_path / "node.new").mkdir()  # no file can be written there
        with pytest.raises(OSError, match="directory"):
            await kubelet.admit(node, pod)
        assert not node.saved.allocations.grants
        (tmp_path / "node.new").rmdir()
        assert await kubelet.admit(node, pod)

    asyncio.run(go())


def test_a_pod_with_a_grant_is_never_blamed_for_another_pods_call(tmp_path: Path) -> None:
    """The kubelet asks before the watch reports the pod; one of its size turned invalid."""

    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        served = make_pod("served", memory=6)
        node.pods.observe(None, served)
        assert await kubelet.admit(node, served)
        invalid = make_pod("served", memory=6, annotations={"aliquot.io/priority": "typo"})
        node.pods.observe(served, invalid)
        pod = make_pod("later", memory=6)
        call = asyncio.create_task(kubelet.admit(node, pod))
        await asyncio.sleep(0)
        node.pods.observe(None, pod)
        assert await call
        assert [grant.owner.pod for grant in node.saved.allocations.grants.values()] == [
            "served",
            "later",
        ]
        assert await kubelet.admit(node, make_pod("static", memory=6)), "the watch never reports it"
        assert node.messages == []

    asyncio.run(go())


def test_an_invalid_pod_is_refused_only_if_no_valid_one_fits(tmp_path: Path) -> None:
    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        invalid = make_pod("invalid", memory=6, annotations={"aliquot.io/priority": "typo"})
        node.pods.observe(None, invalid)
        pod = make_pod("good", memory=6)
        call = asyncio.create_task(kubelet.admit(node, pod))
        await asyncio.sleep(0)
        node.pods.observe(None, pod)
        assert await call
        assert not await kubelet.admit(node, invalid)
        (message,) = node.messages
        assert "'typo', which is invalid" in message

    asyncio.run(go())
