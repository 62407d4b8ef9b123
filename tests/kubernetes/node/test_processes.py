"""Pods whose images have no driver, in tenants' file systems that may never answer."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from aliquot.kubernetes.api.objects import RuntimeContainer
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.node import processes
from aliquot.kubernetes.node.busy import BusyMonitor
from aliquot.kubernetes.node.grants.allocations import NodeAllocations
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint, SavedAllocations
from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants
from aliquot.kubernetes.node.idle import IdleMonitor
from aliquot.kubernetes.node.parked import ParkingMonitor
from aliquot.kubernetes.node.pods import ContainerRef, NodeEvents, NodePods
from aliquot.kubernetes.node.processes import ProcessMonitor
from aliquot.kubernetes.node.publish import status_of as published
from aliquot.model import ComputeUse, Grant, GrantState, Parking, ParkingStep, Slice
from aliquot.slices.arbiter_status import Status
from kubernetes.builders import make_pod
from kubernetes.node.builders import SGPU, make_grant, make_host_gpu

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.kubernetes.node.pods import GpuPod

MUSL = ("lib/ld-musl-x86_64.so.1", "run/aliquot/grant/limits")
UIDS = [f"0000000{number}-9388-4c99-9b7a-d63a82235347" for number in range(4)]
PATIENCE = 20.0


class Events(NodeEvents):
    """Events that stay here."""

    def __init__(self) -> None:
        self._events: list[tuple[str, str, str, bool]] = []

    @property
    def reasons(self) -> list[tuple[str, str]]:
        return [(uid, reason) for uid, reason, _, _ in self._events]

    def pod_event(self, pod: GpuPod, reason: str, message: str, *, warning: bool = True) -> None:
        self._events.append((pod.uid, reason, message, warning))


class Node:
    """Running pods, with processes in a /proc of their own."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.gpu = make_host_gpu(0)
        allocations = NodeAllocations([self.gpu], 16)
        self.saved = SavedAllocations(allocations, Checkpoint(folder / "node.json"))
        self.pods = NodePods([ALIQUOT], lambda: True)
        self.events = Events()
        self.monitor = ProcessMonitor(
            self.saved, self.pods, self.events, lambda _name, _owner: None
        )

    def run(self, uid: str, namespace: str = "ns", container_id: str = "") -> None:
        grant = make_grant("shared", [self.gpu], uid, units={SGPU: [f"s{uid}"]}, shares=16)
        pod = make_pod(uid, sgpu=1, uid=uid, phase="Running")
        owner = ContainerRef(uid, namespace, uid, pod.spec.containers[0].name)
        self.saved.allocations.add(msgspec.structs.replace(grant, owner=owner, confirmed=True))
        meta = msgspec.structs.replace(pod.metadata, namespace=namespace)
        containers = (RuntimeContainer(pod.spec.containers[0].name, container_id),)
        status = msgspec.structs.replace(pod.status, container_statuses=containers)
        self.pods.observe(None, msgspec.structs.replace(pod, metadata=meta, status=status))

    def add_process(self, pid: int, cgroup: str, *files: str) -> None:
        root = self.proc / str(pid) / "root"
        for file in files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).touch()
        root.mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(processes, "PROC", made.proc)
    return made


def test_a_musl_image_is_reported_once(node: Node) -> None:
    first, second, third = UIDS[:3]
    for uid in (first, second, third):
        node.run(uid)
    node.add_process(7, f"/kubepods/burstable/pod{first}/c1", *MUSL)
    node.add_process(8, f"/kubepods/pod{second}/c2", *MUSL, "lib64/ld-linux-x86-64.so.2")
    node.add_process(9, f"/kubepods/pod{third}/c3", MUSL[0])

    async def go() -> None:
        await node.monitor.check_images()
        await node.monitor.check_images()
        assert node.events.reasons == [(first, "MuslImage")]

    asyncio.run(go())


def test_one_process_of_each_container_is_inspected(node: Node) -> None:
    uid, under = UIDS[0], UIDS[0].replace("-", "_")
    slice_ = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice"
    node.add_process(12, f"{slice_}/cri-containerd-aa.scope")
    node.add_process(9, f"{slice_}/cri-containerd-aa.scope/deeper")
    node.add_process(30, f"{slice_}/cri-containerd-bb.scope")
    node.add_process(31, f"/kubepods/burstable/pod{UIDS[1]}/cc")
    node.add_process(32, "/user.slice")
    assert processes.first_processes() == {uid: [9, 30], UIDS[1]: [31]}


def test_a_file_system_that_never_answers_delays_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor asks it in a thread, once for its pod, and inspects other pods meanwhile."""
    stuck, other = UIDS[:2]
    node.run(stuck)
    node.add_process(7, f"/kubepods/pod{stuck}/c1", *MUSL)
    began, answer, asked = threading.Event(), threading.Event(), []
    really = processes.have_no_driver

    def dead(pids: list[int]) -> bool:
        asked.append(pids)
        if pids == [7]:
            began.set()
            answer.wait(PATIENCE)
        return really(pids)

    monkeypatch.setattr(processes, "have_no_driver", dead)

    async def go() -> None:
        look = asyncio.create_task(node.monitor.check_images())
        while not began.is_set():
            await asyncio.sleep(0.01)  # the loop goes on
        async with asyncio.timeout(PATIENCE / 2):
            await look
        node.run(other, "another")
        node.add_process(8, f"/kubepods/pod{other}/c2", *MUSL)
        await node.monitor.check_images()
        assert node.events.reasons == [(other, "MuslImage")]
        assert asked == [[7], [8]]

    try:
        asyncio.run(go())
    finally:
        answer.set()


class Told(ArbiterGrants):
    """An arbiter that writes down what it is told."""

    def __init__(self) -> None:
        self.cgroups: dict[str, str] = {}

    async def set_cgroup(self, name: str, path: str) -> None:
        self.cgroups[name] = path


def status_of(*names: str, pid: int = 1, told: bool = False) -> Status:
    grants = tuple(
        Grant(
            name=name,
            directory="",
            owner_pid=None,
            owner_alive=False,
            owner_uid=0,
            created=0,
            broken=None,
            slices=(),
            use=(),
            compute=(),
            processes=(),
            cgroup_is_told=told,
        )
        for name in names
    )
    return Status(pid=pid, gpus=(), grants=grants, answer={})


def test_a_container_is_reported_again_only_after_it_has_used_a_gpu(node: Node) -> None:
    idle = IdleMonitor(node.saved, node.pods, node.events, 60.0)
    uid = UIDS[0]
    node.run(uid)
    (name,) = node.saved.allocations.grants
    (known,) = status_of(name).grants
    part = (Slice(node.gpu.uuid, 1),)

    def check(seconds: float | None, state: GrantState = GrantState.ACTIVE) -> int:
        use = (ComputeUse(idle_seconds=seconds),)
        grant = replace(known, slices=part, compute=use, state=state)
        idle.check(replace(status_of(), grants=(grant,)))
        return node.events.reasons.count((uid, "Idle"))

    assert check(1e6, GrantState.PARKED) == check(None) == check(59.0) == 0
    assert check(60.0) == check(1e6) == 1
    assert check(0.0) == 1
    assert check(60.0) == 2
    idle = IdleMonitor(node.saved, node.pods, node.events, 0.0)
    assert check(1e6) == 2, "this one reports none"


def test_how_busy_containers_are_is_published_once_a_minute_and_only_if_it_changed(
    node: Node,
) -> None:
    node.run(UIDS[0])
    (name,) = node.saved.allocations.grants
    (known,) = status_of(name).grants
    changes: list[int] = []
    monitor = BusyMonitor(lambda: changes.append(1))

    def check(now: float, used: float, pid: int = 1) -> int:
        part = (Slice(node.gpu.uuid, 1),)
        grant = replace(known, slices=part, compute=(ComputeUse(used_seconds=used),))
        monitor.check(replace(status_of(pid=pid), grants=(grant,), now=now))
        (gpu,) = published(node.saved.allocations, {}, {}, "", "", busy=monitor.steps).gpus
        return gpu.grants[0].busy

    assert [check(0.0, 0.0), check(30.0, 30.0), check(59.0, 45.0)] == [0, 0, 0]
    assert [check(60.0, 46.0), len(changes)] == [6, 1]
    assert [check(120.0, 91.0), len(changes)] == [6, 1]
    assert [check(130.0, 0.0, pid=2), check(189.0, 0.1, pid=2), len(changes)] == [6, 6, 1]
    assert [check(190.0, 3.0, pid=2), len(changes)] == [0, 2], "less than a sixteenth is none"


def test_each_parking_and_each_return_of_a_container_is_reported(node: Node) -> None:
    monitor = ParkingMonitor(node.saved, node.pods, node.events)
    uid = UIDS[0]
    node.run(uid)
    (name,) = node.saved.allocations.grants
    (known,) = status_of(name).grants

    def check(times: int, *, away: bool = True) -> list[str]:
        step = ParkingStep.AWAY if away else ParkingStep.NONE
        state = GrantState.PARKED if away else GrantState.ACTIVE
        grant = replace(known, state=state, parking=Parking(600.0, step, times))
        before = len(node.events.reasons)
        monitor.check(replace(status_of(), grants=(grant,)))
        return [reason for _, reason in node.events.reasons[before:]]

    assert check(0, away=False) == []
    assert (check(1), check(1)) == (["Parked"], [])
    assert check(1, away=False) == ["Returned"]
    assert check(2) == ["Parked"]
    assert check(3) == ["Returned", "Parked"], "nobody looked while it was back"


@pytest.mark.parametrize(
    ("above", "last"),
    [("/kubepods/burstable/pod{}", "{}"), ("/k.slice/k-pod{}.slice", "cri-{}.scope")],
)
def test_the_arbiter_is_told_the_cgroups_of_containers(node: Node, above: str, last: str) -> None:
    uid = UIDS[0]
    node.run(uid, container_id="containerd://abc")
    (name,) = node.saved.allocations.grants
    path = f"{above.format(uid)}/{last.format('abc')}"
    node.add_process(7, f"{path}/made/by/the/container")
    node.add_process(8, f"{above.format(uid)}/{last.format('other')}/{last.format('abc')}")
    for one, namespace in (("self", "cgroup:[1]"), ("1", "cgroup:[1]"), ("2", "cgroup:[2]")):
        (node.proc / one / "ns").mkdir(parents=True)
        (node.proc / one / "ns" / "cgroup").symlink_to(namespace)

    def tell(status: Status) -> dict[str, str]:
        arbiter = Told()
        asyncio.run(node.monitor.tell_cgroups(status, arbiter))
        return arbiter.cgroups

    assert tell(status_of(name)) == {name: path}
    assert tell(status_of(name, pid=2)) == {}  # it would understand another cgroup by that path
    assert tell(status_of(name, told=True)) == {}
    assert tell(status_of("unknown")) == {}
