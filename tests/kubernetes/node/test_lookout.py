"""Images that no driver can run in, in tenants' file systems that may never answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.node import processes
from aliquot.kubernetes.node.aside import Aside
from aliquot.kubernetes.node.books import Books
from aliquot.kubernetes.node.events import Events
from aliquot.kubernetes.node.lookout import Lookout
from aliquot.kubernetes.node.record import Record
from aliquot.kubernetes.node.roster import Roster
from aliquot.kubernetes.node.store import Store
from aliquot.kubernetes.node.units import offers_of
from kubernetes.builders import make_pod
from kubernetes.node.builders import SGPU, make_card, make_held

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.kubernetes.node.roster import Guest

MUSL = ("lib/ld-musl-x86_64.so.1", "run/aliquot/grant/limits")
UIDS = [f"0000000{number}-9388-4c99-9b7a-d63a82235347" for number in range(4)]
PATIENCE = 20.0


class Said(Events):
    """Kept here."""

    def __init__(self) -> None:
        self._said: list[tuple[str, str, str, bool]] = []

    @property
    def reasons(self) -> list[tuple[str, str]]:
        return [(uid, reason) for uid, reason, _, _ in self._said]

    def say(self, guest: Guest, reason: str, text: str, *, warning: bool = True) -> None:
        self._said.append((guest.uid, reason, text, warning))


class Node:
    """Pods that run, with processes in a /proc of their own."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.card = make_card(0)
        books = Books([self.card], offers_of([ALIQUOT]), 16)
        self.record = Record(books, Store(folder / "node.json"))
        self.roster = Roster([ALIQUOT], lambda: True)
        self.events = Said()
        self.lookout = Lookout(self.record, self.roster, self.events)

    def run(self, uid: str, namespace: str = "ns") -> None:
        held = make_held("shared", [self.card], uid, units={SGPU: [f"s{uid}"]}, shares=16)
        self.record.books.take(held)
        pod = make_pod(uid, sgpu=1, uid=uid, phase="Running")
        meta = msgspec.structs.replace(pod.metadata, namespace=namespace)
        self.roster.heard(None, msgspec.structs.replace(pod, metadata=meta))

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


def test_an_image_of_musl_is_told_of_once(node: Node) -> None:
    first, second, third = UIDS[:3]
    for uid in (first, second, third):
        node.run(uid)
    node.add_process(7, f"/kubepods/burstable/pod{first}/c1", *MUSL)
    node.add_process(8, f"/kubepods/pod{second}/c2", *MUSL, "lib64/ld-linux-x86-64.so.2")
    node.add_process(9, f"/kubepods/pod{third}/c3", MUSL[0])

    async def go() -> None:
        await node.lookout.look_at_images()
        await node.lookout.look_at_images()
        assert node.events.reasons == [(first, "MuslImage")]

    asyncio.run(go())


def test_of_a_container_one_process_is_looked_at(node: Node) -> None:
    uid, under = UIDS[0], UIDS[0].replace("-", "_")
    slice_ = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice"
    node.add_process(12, f"{slice_}/cri-containerd-aa.scope")
    node.add_process(9, f"{slice_}/cri-containerd-aa.scope/deeper")
    node.add_process(30, f"{slice_}/cri-containerd-bb.scope")
    node.add_process(31, f"/kubepods/burstable/pod{UIDS[1]}/cc")
    node.add_process(32, "/user.slice")
    assert processes.by_pod() == {uid: [9, 30], UIDS[1]: [31]}


def test_a_file_system_that_never_answers_stops_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked in a thread, once for its pod; others are looked at meanwhile."""
    stuck, other = UIDS[:2]
    node.run(stuck)
    node.add_process(7, f"/kubepods/pod{stuck}/c1", *MUSL)
    began, answer, asked = threading.Event(), threading.Event(), []
    really = processes.cannot_be_held

    def dead(pids: list[int]) -> bool:
        asked.append(pids)
        if pids == [7]:
            began.set()
            answer.wait(PATIENCE)
        return really(pids)

    monkeypatch.setattr(processes, "cannot_be_held", dead)

    async def go() -> None:
        look = asyncio.create_task(node.lookout.look_at_images())
        while not began.is_set():
            await asyncio.sleep(0.01)  # the loop goes on
        async with asyncio.timeout(PATIENCE / 2):
            await look
        node.run(other, "another")
        node.add_process(8, f"/kubepods/pod{other}/c2", *MUSL)
        await node.lookout.look_at_images()
        assert node.events.reasons == [(other, "MuslImage")]
        assert asked == [[7], [8]]

    try:
        asyncio.run(go())
    finally:
        answer.set()


def test_who_has_a_call_stuck_gets_no_other_and_takes_nobody_elses() -> None:
    never = threading.Event()
    ran: list[str] = []

    async def go() -> None:
        aside = Aside(seconds=0.01, places=2)

        async def call(owner: str, what: Callable[[], object]) -> object:
            return await aside.call(owner, what)

        assert await call("a", never.wait) is None
        assert await call("a", lambda: ran.append("a")) is None
        assert await call("b", never.wait) is None
        assert await call("c", lambda: ran.append("c")) is None, "there are places for two"
        assert ran == []
        assert threading.active_count() <= before + 2
        never.set()
        async with asyncio.timeout(PATIENCE):
            while await call("a", lambda: "again") != "again":
                await asyncio.sleep(0.01)

    before = threading.active_count()
    try:
        asyncio.run(go())
    finally:
        never.set()


def test_what_a_call_raises_is_the_callers() -> None:
    async def go() -> None:
        aside = Aside(seconds=PATIENCE)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await aside.call("a", lambda: 1 // 0)

    asyncio.run(go())


def test_a_program_ends_though_a_call_is_stuck() -> None:
    program = (
        "import asyncio, threading\n"
        "from aliquot.kubernetes.node.aside import Aside\n"
        "never = threading.Event()\n"
        "print(asyncio.run(Aside(seconds=0.01).call('a', never.wait)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
