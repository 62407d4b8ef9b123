"""The allocations and device ids of a node: a worked example, and invariants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.presets import ALIQUOT, NVIDIA, TENCENT
from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds, resources_of
from aliquot.kubernetes.node.grants.allocations import DoesNotFitError, NodeAllocations
from aliquot.kubernetes.node.grants.grant import ContainerGrant
from kubernetes.node.builders import CORE, GPU, MEMORY, SGPU, make_grant, make_host_gpu, make_ids

if TYPE_CHECKING:
    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.node.grants.allocations import HostGpu
    from aliquot.kubernetes.node.grants.grant import GpuAllocation


def healthy(ids: DeviceIds, resource: str) -> list[str]:
    return [id_ for id_, is_healthy in ids.ids(resource) if is_healthy]


def test_the_mixed_deployment_example_number_by_number() -> None:
    gpus = [make_host_gpu(index) for index in range(4)]
    device_ids = make_ids(gpus)
    allocations = device_ids.allocations

    def counts() -> tuple[int, int, int]:
        now = device_ids.counts()
        return now[GPU], now[SGPU], now[MEMORY]

    assert counts() == (4, 8, 344)
    allocations.add(make_grant("shared", gpus[:2], units={SGPU: ["s0", "s1"]}))
    assert counts() == (2, 8, 172)
    ids = healthy(device_ids, MEMORY)[:10]
    allocations.add(make_grant("sliced", gpus[2:3], memory=10, units={MEMORY: ids}))
    assert counts() == (1, 6, 172)
    ids = healthy(device_ids, GPU)[:1]
    allocations.add(make_grant("whole", gpus[3:], units={GPU: ids}))
    assert counts() == (1, 4, 86)
    for name in list(allocations.grants):
        allocations.release(name)
    assert counts() == (4, 8, 344)
    assert device_ids.counts()[CORE] == 400


def test_an_id_in_use_stays_healthy_when_its_gpu_turns_unhealthy() -> None:
    gpus = [make_host_gpu(0), make_host_gpu(1)]
    device_ids = make_ids(gpus)
    allocations = device_ids.allocations
    allocations.add(make_grant("sliced", gpus[:1], memory=3, units={MEMORY: ["m0", "m1", "m2"]}))
    assert allocations.set_health(gpus[0].uuid, "fell off the bus")
    assert device_ids.counts() == {GPU: 1, SGPU: 2, MEMORY: 86 + 3, CORE: 100}
    assert {"m0", "m1", "m2"} <= set(healthy(device_ids, MEMORY))
    assert not allocations.set_health(gpus[0].uuid, "fell off the bus")
    assert allocations.set_health(gpus[0].uuid, "")
    assert device_ids.counts()[MEMORY] == 172


def sized(grant: ContainerGrant, units: int) -> ContainerGrant:
    allocated = tuple(
        msgspec.structs.replace(one, memory=units * MEMORY_UNIT) for one in grant.allocated
    )
    return msgspec.structs.replace(grant, allocated=allocated)


def test_growth_leaves_the_counts_or_is_refused() -> None:
    gpu = make_host_gpu(0)
    device_ids = make_ids([gpu])
    allocations = device_ids.allocations
    grant = make_grant("sliced", [gpu], memory=40, core=10, units={MEMORY: _ids("m", 40)})
    allocations.add(grant)
    allocations.change(sized(grant, 80))
    assert device_ids.counts()[MEMORY] == 46, "40 ids in use, 6 free"
    with pytest.raises(DoesNotFitError, match=r"21.5 GiB of memory free, and 21.7 GiB"):
        allocations.change(sized(grant, 87))
    assert list(allocations.grants.values()) == [sized(grant, 80)]
    allocations.change(grant)
    assert device_ids.counts()[MEMORY] == 86


def test_an_init_containers_memory_is_free_for_the_containers_after_it() -> None:
    gpu = make_host_gpu(0)
    device_ids = make_ids([gpu])
    allocations = device_ids.allocations
    first = make_grant("sliced", [gpu], memory=60, units={MEMORY: _ids("m", 60)}, container="first")
    main = make_grant("sliced", [gpu], memory=80, units={MEMORY: _ids("m", 80)}, reuses=(first,))
    allocations.add(first)
    allocations.add(main)
    assert allocations.is_reused(first)
    assert not allocations.is_reused(main)
    assert allocations.never_together(main) == [first]
    assert allocations.used(gpu.uuid).memory == 80 * MEMORY_UNIT
    assert device_ids.counts()[MEMORY] == 86
    with pytest.raises(DoesNotFitError, match=r"1.5 GiB of memory free"):
        allocations.add(make_grant("sliced", [gpu], "b", memory=7, units={MEMORY: ["m80"]}))


def test_two_containers_that_reuse_an_init_containers_ids_add_up() -> None:
    gpu = make_host_gpu(0)
    device_ids = make_ids([gpu])
    allocations = device_ids.allocations
    first = make_grant("sliced", [gpu], memory=60, units={MEMORY: _ids("m", 60)})
    allocations.add(first)
    allocations.add(
        make_grant("sliced", [gpu], memory=30, units={MEMORY: _ids("m", 30)}, reuses=(first,))
    )
    allocations.add(
        make_grant("sliced", [gpu], memory=40, units={MEMORY: _ids("m", 70)[30:]}, reuses=(first,))
    )
    assert allocations.used(gpu.uuid).memory == 70 * MEMORY_UNIT


def test_memory_whose_ids_the_kubelet_gave_away_is_not_counted_as_free() -> None:
    gpu, other = make_host_gpu(0), make_host_gpu(1)
    device_ids = make_ids([gpu, other])
    allocations = device_ids.allocations
    old = make_grant("shared", [gpu], "old", units={SGPU: ["s0"]})
    allocations.add(old)
    device_ids.take_away(SGPU, ["s0"])
    new = make_grant("shared", [other], "new", units={SGPU: ["s0"]})
    allocations.add(new)
    assert device_ids.grant_with("s0") == new.name
    assert device_ids.counts()[SGPU] == 1 + 2, "the id in use, and what is free of both GPUs"
    allocations.release(old.name)
    assert device_ids.counts()[SGPU] == 4


def test_ids_are_unique_across_the_resources_of_all_presets() -> None:
    allocations = NodeAllocations([make_host_gpu(0)], 2)
    device_ids = DeviceIds(allocations, resources_of([ALIQUOT, TENCENT, NVIDIA]))
    every = [id_ for resource in device_ids.resources for id_, _ in device_ids.ids(resource)]
    assert len(every) == len(set(every))
    assert max(map(len, every)) <= 63


def test_whole_gpus_by_core_units_leave_the_counts_of_memory() -> None:
    gpus = [make_host_gpu(0), make_host_gpu(1)]
    allocations = NodeAllocations(gpus, 2)
    device_ids = DeviceIds(allocations, resources_of([TENCENT]))
    core, memory = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
    allocations.add(make_grant("whole", gpus[:1], units={core: _ids("c", 100)}))
    assert device_ids.counts() == {core: 200, memory: 86}
    assert device_ids.free(core) == 100


def test_ids_in_use_stay_listed_when_there_are_fewer_units() -> None:
    gpu = make_host_gpu(0)
    device_ids = make_ids([gpu], shares=4)
    allocations = device_ids.allocations
    allocations.add(make_grant("shared", [gpu], shares=4, units={SGPU: ["s3"]}))
    again = make_ids([gpu], shares=2, grants=allocations.saved())
    assert ("s3", True) in again.ids(SGPU)


def _ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def _some(things: list[Any], count: int, turn: int) -> list[Any]:
    """Some of them, in another order each turn."""
    start = turn * len(things) // 8
    return (things[start:] + things[:start])[:count]


@dataclass
class FakeKubelet:
    """Chooses ids as the kubelet's device manager does."""

    pods: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    reuse: dict[str, set[str]] = field(default_factory=dict)

    def in_use(self, resource: str) -> set[str]:
        return {id_ for by in self.pods.values() for id_ in by.get(resource, ())}

    def choose(self, device_ids: DeviceIds, resource: str, count: int, turn: int) -> list[str]:
        ids = sorted(self.reuse.get(resource, set()))[:count]
        free = sorted(set(healthy(device_ids, resource)) - self.in_use(resource))
        assert len(free) >= count - len(ids), (
            "the allocations have space, and the kubelet has no ids"
        )
        return [*ids, *_some(free, count - len(ids), turn)]

    def admit(self, uid: str, resource: str, ids: list[str], *, init: bool) -> None:
        self.pods.setdefault(uid, {}).setdefault(resource, set()).update(ids)
        reuse = self.reuse.setdefault(resource, set())
        (reuse.update if init else reuse.difference_update)(ids)


class AllocationsMachine(RuleBasedStateMachine):
    """Pods start, grow, end and linger; GPUs turn unhealthy and recover."""

    pods: Bundle[str] = Bundle("pods")

    @initialize(
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
        more=st.integers(0, MEMORY_UNIT - 1),
        shares=st.integers(1, 3),
    )
    def start(self, sizes: list[int], more: int, shares: int) -> None:
        self.gpus = [make_host_gpu(index, size, more=more) for index, size in enumerate(sizes)]
        self.shares = shares
        self.device_ids = make_ids(self.gpus, shares)
        self.allocations = self.device_ids.allocations
        self.kubelet = FakeKubelet()
        self.lingering: set[str] = set()
        self.inits: set[str] = set()
        self.grown = False
        self.number = 0

    @rule(target=pods, data=st.data(), count=st.integers(1, 3))
    def admit(self, data: st.DataObject, count: int) -> str:
        """Containers of a pod, init containers first, as many as fit."""
        self.number += 1
        uid = f"p{self.number}"
        self.kubelet.reuse = {}
        inits = data.draw(st.integers(0, count))
        for number in range(count):
            self._container(data, uid, init=number < inits)
        return uid

    def _container(self, data: st.DataObject, uid: str, *, init: bool) -> None:
        kind: Kind = data.draw(st.sampled_from(["whole", "shared", "sliced"]))
        memory, core = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 60))
        core = core if kind == "sliced" else 0
        gpus, turn = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 7))
        wanted = {
            "whole": {GPU: gpus},
            "shared": {SGPU: gpus},
            "sliced": {MEMORY: memory * gpus, CORE: core * gpus},
        }[kind]
        reused = {
            name: sorted(self.kubelet.reuse.get(name, ()))[:number]
            for name, number in wanted.items()
        }
        before = [grant for grant in self.allocations.of_pod(uid) if _reuses(grant, reused)]
        trial = {
            gpu.uuid: self._grant(kind, [gpu], memory, core, reused, before=before)
            for gpu in self.gpus
        }
        fit = [gpu for gpu in self.gpus if self.allocations.why_not(trial[gpu.uuid]) is None]
        if len(fit) < gpus:
            return
        own = {part.gpu for grant in before for part in grant.allocated}
        order = _some(fit, len(fit), turn)
        chosen = sorted(order, key=lambda gpu: gpu.uuid not in own)[:gpus]  # as `placement` does
        units = {}
        for resource, number in wanted.items():
            units[resource] = self.kubelet.choose(self.device_ids, resource, number, turn)
            self.kubelet.admit(uid, resource, units[resource], init=init)
            self.device_ids.take_away(resource, units[resource], keep=before)
        grant = self._grant(kind, chosen, memory, core, units, uid=uid, before=before)
        self.allocations.add(grant)
        if init:
            self.inits.add(grant.name)

    def _grant(
        self,
        kind: Kind,
        gpus: list[HostGpu],
        memory: int,
        core: int,
        units: dict[str, list[str]],
        *,
        before: list[ContainerGrant],
        uid: str = "",
    ) -> ContainerGrant:
        return make_grant(
            kind,
            gpus,
            uid,
            memory=memory,
            core=core,
            shares=self.shares,
            units=units,
            reuses=tuple(before),
        )

    @rule(uid=consumes(pods))
    def end(self, uid: str) -> None:
        for grant in self.allocations.of_pod(uid):
            self.allocations.release(grant.name)
        self.kubelet.pods.pop(uid, None)
        self.lingering.discard(uid)

    @rule(uid=pods)
    def end_for_the_kubelet_only(self, uid: str) -> None:
        if self.kubelet.pods.pop(uid, None):
            self.lingering.add(uid)

    @rule(uid=pods, more=st.integers(1, 30))
    def grow(self, uid: str, more: int) -> None:
        mains = [grant for grant in self.allocations.of_pod(uid) if grant.name not in self.inits]
        sliced = [grant for grant in mains if grant.kind == "sliced"]
        if not sliced:
            return
        grant = sliced[-1]
        allocated = tuple(
            msgspec.structs.replace(part, memory=part.memory + more * MEMORY_UNIT)
            for part in grant.allocated
        )
        before = (self.allocations.saved(), self.device_ids.counts())
        try:
            self.allocations.change(msgspec.structs.replace(grant, allocated=allocated))
            self.grown = True
        except DoesNotFitError:
            assert before == (self.allocations.saved(), self.device_ids.counts())

    @rule(index=st.integers(0, 3), problem=st.sampled_from(["", "lost"]))
    def change_health(self, index: int, problem: str) -> None:
        self.allocations.set_health(self.gpus[index % len(self.gpus)].uuid, problem)

    @rule()
    def restart_from_the_checkpoint(self) -> None:
        saved = msgspec.json.encode(self.allocations.saved())
        before = self.device_ids.counts()
        gpus = list(self.allocations.gpus.values())
        grants = msgspec.json.decode(saved, type=list[ContainerGrant])
        self.device_ids = make_ids(gpus, self.shares, grants)
        self.allocations = self.device_ids.allocations
        assert self.device_ids.counts() == before

    @invariant()
    def a_gpu_has_one_kind_and_is_never_overcommitted(self) -> None:
        for gpu in getattr(self, "gpus", ()):
            here = [one for one in self._moments(gpu) if one]
            kinds = {grant.kind for moment in here for grant, _ in moment}
            assert len(kinds) <= 1
            assert self.allocations.kind(gpu.uuid) == next(iter(kinds), None)
            for moment in here:
                assert sum(part.memory for _, part in moment) <= gpu.memory
                assert sum(part.reserved for _, part in moment) <= 100
                assert len(moment) <= (1 if kinds == {"whole"} else self.shares) or kinds == {
                    "sliced"
                }

    def _moments(self, gpu: HostGpu) -> list[list[tuple[ContainerGrant, GpuAllocation]]]:
        """The grants that may use a GPU together: an init container's with those of other pods."""
        every = [
            (grant, part)
            for grant in self.allocations.grants.values()
            for part in grant.allocated
            if part.gpu == gpu.uuid
        ]
        mains = [(grant, part) for grant, part in every if grant.name not in self.inits]
        return [
            mains,
            *(
                [one, *(other for other in mains if other[0].owner.uid != one[0].owner.uid)]
                for one in every
                if one[0].name in self.inits
            ),
        ]

    @invariant()
    def the_ids_of_a_pod_are_healthy_and_its_own(self) -> None:
        for uid, by_resource in (getattr(self, "kubelet", None) or FakeKubelet()).pods.items():
            for resource, ids in by_resource.items():
                assert ids <= set(healthy(self.device_ids, resource))
                names = {self.device_ids.grant_with(id_) for id_ in ids}
                assert {self.allocations.grants[name].owner.uid for name in names if name} <= {uid}

    @invariant()
    def counts_follow_the_kinds_of_the_gpus(self) -> None:
        """If no pod lingers or grew and all GPUs are healthy."""
        if not hasattr(self, "allocations") or self.lingering or self.grown or self.inits:
            return
        if not all(gpu.healthy for gpu in self.allocations.gpus.values()):
            return
        kinds = [(gpu, self.allocations.kind(gpu.uuid)) for gpu in self.gpus]
        assert self.device_ids.counts() == {
            GPU: sum(kind in {None, "whole"} for _, kind in kinds),
            SGPU: sum(self.shares for _, kind in kinds if kind in {None, "shared"}),
            MEMORY: sum(
                gpu.memory // MEMORY_UNIT for gpu, kind in kinds if kind in {None, "sliced"}
            ),
            CORE: sum(100 for _, kind in kinds if kind in {None, "sliced"}),
        }

    @invariant()
    def everything_is_free_without_grants(self) -> None:
        if not hasattr(self, "allocations") or self.allocations.grants:
            return
        usable = [gpu for gpu in self.allocations.gpus.values() if gpu.healthy]
        assert self.device_ids.counts() == {
            GPU: len(usable),
            SGPU: self.shares * len(usable),
            MEMORY: sum(gpu.memory // MEMORY_UNIT for gpu in usable),
            CORE: 100 * len(usable),
        }

    @invariant()
    def no_id_leaves_the_list(self) -> None:
        if hasattr(self, "allocations"):
            listed = [id_ for id_, _ in self.device_ids.ids(SGPU)]
            assert listed == [f"s{number}" for number in range(self.shares * len(self.gpus))]


def _reuses(grant: ContainerGrant, ids: dict[str, list[str]]) -> bool:
    return not set(ids.get(grant.carrier, ())).isdisjoint(grant.device_ids.get(grant.carrier, ()))


AllocationsMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None
)
TestAllocations = AllocationsMachine.TestCase
