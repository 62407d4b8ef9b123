"""Whatever the kubelet asks for in whatever order, each container gets what it asked for itself."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import requests_of
from aliquot.kubernetes.node.allocate import Allocator
from aliquot.kubernetes.node.books import Books
from aliquot.kubernetes.node.identity import Identity
from aliquot.kubernetes.node.record import Record
from aliquot.kubernetes.node.roster import Roster
from aliquot.kubernetes.node.store import Store
from aliquot.kubernetes.node.units import Card, offers_of
from aliquot.kubernetes.node.whose import RefusedError, Whose
from kubernetes.builders import container, make_pod

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.kubernetes.node.held import Held, Owner
    from aliquot.kubernetes.node.settle import Told

CARDS = 4
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
    """The device manager's choice of ids, and what it tells of pods."""

    seed: int
    given: dict[str, dict[str, dict[str, tuple[str, ...]]]] = field(default_factory=dict)
    answers: dict[tuple[str, str], Held] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - chance, not secrets

    async def told(self, owner: Owner) -> Told | None:
        pod = self.pods.get(owner.uid)
        mains = {one.name for one in pod.spec.containers} if pod else set()
        return {
            name: units for name, units in self.given.get(owner.uid, {}).items() if name in mains
        }

    async def admit(self, node: Node, pod: Pod) -> bool:
        self.pods[pod.metadata.uid] = pod
        given_on: dict[str, set[str]] = {}
        try:
            for one in (*pod.spec.init_containers, *pod.spec.containers):
                init = one in pod.spec.init_containers
                wanted = [(name, int(count)) for name, count in one.resources.limits.items()]
                self.random.shuffle(wanted)
                for name, count in wanted:
                    ids = self._choose(node.record.books, name, count, given_on.get(name, set()))
                    held = await node.allocator.allocate(name, ids)
                    of_pod = self.given.setdefault(pod.metadata.uid, {})
                    of_pod.setdefault(one.name, {})[name] = tuple(sorted(ids))
                    kept = given_on.setdefault(name, set())
                    (kept.update if init else kept.difference_update)(ids)
                    if held is not None:
                        self.answers[pod.metadata.uid, one.name] = held
        except RefusedError:
            self.forget(pod)
            return False
        return True

    def forget(self, pod: Pod) -> None:
        self.given.pop(pod.metadata.uid, None)
        self.pods.pop(pod.metadata.uid, None)

    def _choose(self, books: Books, name: str, count: int, given_on: set[str]) -> tuple[str, ...]:
        again = sorted(given_on)
        self.random.shuffle(again)
        used = {
            id_
            for of_pod in self.given.values()
            for units in of_pod.values()
            for id_ in units.get(name, ())
        }
        free = [id_ for id_, healthy in books.ids(name) if healthy and id_ not in used]
        more = count - len(again[:count])
        if len(free) < more:
            raise RefusedError("requested number of devices unavailable")
        return (*again[:count], *self.random.sample(free, more))


class Node:
    """The agent's parts that answer Allocate, with nothing around them."""

    def __init__(self, folder: Path, kubelet: Any) -> None:
        made = [support.make_gpu(index, UNITS * MEMORY_UNIT) for index in range(CARDS)]
        gpus = {gpu.uuid: gpu for gpu in made}
        cards = [Card(gpu.uuid, gpu.index, gpu.memory_bytes) for gpu in made]
        store = Store(folder / "node.json")
        self.record = Record(Books(cards, offers_of([ALIQUOT]), 2, store.load().held), store)
        self.roster = Roster([ALIQUOT], lambda: True)
        self.identity = Identity(self.record, self.roster, kubelet)
        self.said: list[str] = []
        self.allocator = Allocator(
            self.record,
            self.roster,
            Whose(self.record, self.roster, self.identity),
            lambda: gpus,
            lambda _guest, _reason, text: self.said.append(text),
        )


containers = st.sampled_from(SIZES)
pods = st.tuples(st.lists(containers, max_size=1), st.lists(containers, min_size=1, max_size=2))


@given(shapes=st.lists(pods, min_size=1, max_size=6), seed=st.integers(0, 1 << 16))
@settings(max_examples=150, deadline=None)
def test_every_container_has_what_it_asked_for_once_its_name_is_known(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[Any], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("node")
    made = [
        make_pod(
            f"p{number}",
            *(container(f"m{at}", **size) for at, size in enumerate(mains)),
            init=tuple(container(f"i{at}", **size) for at, size in enumerate(inits)),
        )
        for number, (inits, mains) in enumerate(shapes)
    ]

    async def go() -> None:
        kubelet = Kubelet(seed)
        node = Node(folder, kubelet)
        for pod in made:
            node.roster.heard(None, pod)
        order = kubelet.random.sample(made, len(made))
        running = []
        for pod in order:
            if await kubelet.admit(node, pod):
                running.append(pod)
            else:
                node.roster.heard(pod, None)
        names = list(node.record.books.held)
        for name in kubelet.random.sample(names, len(names)):
            await node.identity.confirm(name)
        for pod in running:
            _check(node, kubelet, pod)

    asyncio.run(go())


def _check(node: Node, kubelet: Kubelet, pod: Pod) -> None:
    uid = pod.metadata.uid
    books = node.record.books
    for request in requests_of(pod):
        answer = kubelet.answers[uid, request.container]
        held = books.held.get(answer.name)
        assert held is not None, "what was answered is in the books"
        assert held.kind == request.kind
        assert len(held.parts) == request.gpus
        assert {part.gpu for part in held.parts} == {part.gpu for part in answer.parts}
        if request.init:
            continue  # the kubelet does not tell of it
        assert held.owner.uid == uid
        assert held.owner.container == request.container
        assert held.sure
        assert held.units == kubelet.given[uid][request.container]
        if request.kind == "sliced":
            assert held.parts[0].memory >= request.memory
            assert held.now.compute == request.compute or held.joined
    assert not [held for held in books.of_pod(uid) if held.kind != "whole" and not held.units]
    for card in books.cards.values():
        assert books.used(card.uuid).memory <= card.memory


def test_what_was_kept_and_never_answered_is_released_with_its_pod(tmp_path: Path) -> None:
    """The agent dies between keeping and answering."""

    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        pod = make_pod("a", memory=6, core=10)
        node.roster.heard(None, pod)
        await node.allocator.allocate(
            "aliquot.io/vcuda-memory", ("m0", "m1", "m2", "m3", "m4", "m5")
        )
        again = Node(tmp_path, kubelet)
        assert [held.owner.pod for held in again.record.books.held.values()] == ["a"]
        other = make_pod("b", memory=6, core=10)
        again.roster.heard(None, pod)
        again.roster.heard(None, other)
        assert await kubelet.admit(again, other)
        for name in list(again.record.books.held):
            await again.identity.confirm(name)
        assert [held.sure for held in again.record.books.of_pod("uid-b")] == [True]

    asyncio.run(go())


def test_a_call_waits_a_second_for_its_pod(tmp_path: Path) -> None:
    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        pod = make_pod("a", sgpu=1)
        call = asyncio.create_task(kubelet.admit(node, pod))
        await asyncio.sleep(0)
        node.roster.heard(None, pod)
        assert await call
        assert [held.owner.pod for held in node.record.books.held.values()] == ["a"]

    asyncio.run(go())


def test_disk_that_is_full_refuses_and_changes_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        pod = make_pod("a", sgpu=1)
        node.roster.heard(None, pod)
        (tmp_path / "node.new").mkdir()  # no file can be written there
        with pytest.raises(OSError, match="directory"):
            await kubelet.admit(node, pod)
        assert not node.record.books.held
        (tmp_path / "node.new").rmdir()
        assert await kubelet.admit(node, pod)

    asyncio.run(go())


def test_a_pod_that_has_its_own_is_never_refused_for_another(tmp_path: Path) -> None:
    """The kubelet asks for a pod before the watch tells of it; one of its size turned bad."""

    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        served = make_pod("served", memory=6)
        node.roster.heard(None, served)
        assert await kubelet.admit(node, served)
        bad = make_pod("served", memory=6, annotations={"aliquot.io/priority": "typo"})
        node.roster.heard(served, bad)
        pod = make_pod("later", memory=6)
        call = asyncio.create_task(kubelet.admit(node, pod))
        await asyncio.sleep(0)
        node.roster.heard(None, pod)
        assert await call
        assert [held.owner.pod for held in node.record.books.held.values()] == ["served", "later"]
        assert await kubelet.admit(node, make_pod("static", memory=6)), "nobody ever tells of it"
        assert node.said == []

    asyncio.run(go())


def test_a_bad_pod_is_refused_only_when_nobody_else_has_come(tmp_path: Path) -> None:
    async def go() -> None:
        kubelet = Kubelet(0)
        node = Node(tmp_path, kubelet)
        bad = make_pod("bad", memory=6, annotations={"aliquot.io/priority": "typo"})
        node.roster.heard(None, bad)
        pod = make_pod("good", memory=6)
        call = asyncio.create_task(kubelet.admit(node, pod))
        await asyncio.sleep(0)
        node.roster.heard(None, pod)
        assert await call
        assert not await kubelet.admit(node, bad)
        (said,) = node.said
        assert "'typo', which is invalid" in said

    asyncio.run(go())
