"""The two sockets of a pool in the worst of times: defects, no descriptors, clients that leave."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from aliquot.model import Request
from aliquot.model.selection import GpuSelection
from aliquot.pool.admission import RunAdmission
from aliquot.pool.encoding import encode_request
from aliquot.pool.run_client import RunConnection
from aliquot.pool.runs import RunDesk, Waiting
from aliquot.pool.store import JobStore
from aliquot.slices.arbiter_status import Status
from support import make_shared, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aliquot.pool.peers import Peer
    from aliquot.pool.runs import RunRequest


ASKED = {
    "request": encode_request(Request()),
    "name": None,
    "command": "true",
    "visible": None,
    "wait": False,
}


def ask(path: Path, line: object) -> dict[str, object]:
    """Send a line; the answer."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(60)
        one.connect(str(path))
        one.sendall(json.dumps(line).encode() + b"\n")
        with one.makefile("rb") as answers:
            answer: dict[str, object] = json.loads(answers.readline())
            return answer


def test_a_defect_that_one_command_meets_ends_no_other(short_tmp: Path) -> None:
    defects = [RuntimeError("a surprise")]

    def admit(_peer: Peer, _queue: str) -> object:
        if defects:
            raise defects.pop()
        return None

    desk = RunDesk(short_tmp / "runs", 0o600, admit, lambda: None)
    desk.serve()
    try:
        assert "a surprise" in str(ask(short_tmp / "runs", ASKED)["error"])
        assert "invalid request" in str(ask(short_tmp / "runs", {})["error"])
    finally:
        desk.close()


def test_a_command_that_is_no_text_can_be_shown(short_tmp: Path) -> None:
    desk = RunDesk(short_tmp / "runs", 0o600, lambda _peer, _queue: None, lambda: None)
    desk.serve()
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(short_tmp / "runs"))
            asked = {**ASKED, "command": "file \udcff", "wait": True}
            one.sendall(json.dumps(asked).encode() + b"\n")
            wait_until(desk.requests)
            assert [run.command for run in desk.requests()] == ["file ?"]
    finally:
        desk.close()


NO_DESCRIPTORS = """
import os, resource, socket, sys, time
from http import HTTPStatus
from pathlib import Path
from aliquot.pool.runs import RunDesk
from aliquot.pool.server import HttpAnswer, SocketServer

path = Path(sys.argv[1])
if sys.argv[2] == "runs":
    desk = RunDesk(path, 0o600, lambda *_: None, lambda: None)
    desk.serve()
    asked = b"{}\\n"
else:
    SocketServer(path, 0o600, lambda *_: HttpAnswer.of(HTTPStatus.OK, {})).serve()
    asked = b"GET / HTTP/1.1\\r\\n\\r\\n"
client = socket.socket(socket.AF_UNIX)
free = os.dup(0)
os.close(free)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
client.connect(str(path))
client.sendall(asked)
used, begun = time.process_time(), time.monotonic()
client.settimeout(1.0)
try:
    print("answered", client.recv(1))
except TimeoutError:
    print((time.process_time() - used) / (time.monotonic() - begun))
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
client.settimeout(60.0)
print(len(client.recv(1)))
"""


@pytest.mark.parametrize("kind", ["runs", "socket"])
def test_without_descriptors_connections_wait_and_cost_nothing(short_tmp: Path, kind: str) -> None:
    command = [sys.executable, "-c", NO_DESCRIPTORS, str(short_tmp / kind), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    share, answered = done.stdout.split("\n")[:2]
    assert float(share) < 0.1, "of a core"
    assert answered == "1", "when there are some again"


@dataclass
class Asked:
    """A desk with one client that waits for an answer to `run`."""

    desk: RunDesk
    client: socket.socket
    run: RunRequest
    woken: threading.Event

    def leave(self) -> None:
        """Give the place up, and wait until the desk knows."""
        self.woken.clear()
        self.client.shutdown(socket.SHUT_WR)
        assert self.woken.wait(60)

    def answers(self) -> list[dict[str, object]]:
        """All answers until the desk ends the connection."""
        with self.client.makefile("rb") as lines:
            return [json.loads(line) for line in lines]


@pytest.fixture
def asked(short_tmp: Path) -> Iterator[Asked]:
    woken = threading.Event()
    desk = RunDesk(short_tmp / "runs", 0o600, lambda *_: None, woken.set)
    desk.serve()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(short_tmp / "runs"))
        client.sendall(json.dumps({**ASKED, "wait": True}).encode() + b"\n")
        assert woken.wait(60)
        (run,) = desk.requests()
        yield Asked(desk, client, run, woken)
    desk.close()


def test_a_client_that_leaves_while_its_grant_is_made_gets_the_grant(asked: Asked) -> None:
    with asked.desk.hold(asked.run) as here:
        asked.leave()
        asked.desk.grant(asked.run, "grants/1#2", "mine", [])
    assert here
    assert [one["name"] for one in asked.answers()] == ["mine"]


@contextmanager
def cancelling(asked: Asked) -> Iterator[list[bool]]:
    """Cancel it in another thread; what that returned, when the block has ended."""
    returned: list[bool] = []
    thread = threading.Thread(
        target=lambda: returned.append(asked.desk.cancel(asked.run, "alice")), daemon=True
    )
    with asked.desk.hold(asked.run):
        thread.start()
        yield returned
    thread.join(60)


def test_a_client_whose_grant_is_being_made_is_not_cancelled(asked: Asked) -> None:
    with cancelling(asked) as returned:
        asked.desk.grant(asked.run, "grants/1#2", "mine", [])
    assert returned == [False]
    assert [one["name"] for one in asked.answers()] == ["mine"]


def test_a_client_whose_grant_is_refused_after_all_is_cancelled(asked: Asked) -> None:
    with cancelling(asked) as returned:
        pass  # no GPU is free any more: it goes on waiting
    assert returned == [True]
    (answer,) = asked.answers()
    assert "cancelled by alice" in str(answer["error"])


def test_commands_of_one_process_wait_under_different_names(asked: Asked, short_tmp: Path) -> None:
    with socket.socket(socket.AF_UNIX) as second:
        second.connect(str(short_tmp / "runs"))
        second.sendall(json.dumps({**ASKED, "wait": True}).encode() + b"\n")
        wait_until(lambda: len(asked.desk.requests()) == 2)
        names = [run.shown_name for run in asked.desk.requests()]
        assert names == [f"true-{os.getpid()}", f"true-{os.getpid()}-2"]


def test_the_gpus_that_a_command_names_are_found_when_it_asks(short_tmp: Path) -> None:
    """After a restart of the driver another GPU may have their numbers."""
    desk = RunDesk(short_tmp / "runs", 0o600, lambda *_: None, lambda: None)
    desk.serve()
    admission = RunAdmission(desk, short_tmp, JobStore(short_tmp / "pool.sqlite"))
    named = Request(which=GpuSelection(named=("1",)))
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(short_tmp / "runs"))
            lines = {**ASKED, "request": encode_request(named), "wait": True, "visible": "1,0"}
            one.sendall(json.dumps(lines).encode() + b"\n")
            wait_until(desk.requests)
            before = make_shared(0), make_shared(1)
            swapped = tuple(
                replace(one, gpu=replace(one.gpu, index=1 - one.gpu.index)) for one in before
            )
            (first,) = admission.requests(Status(1, before, (), {}))
            (later,) = admission.requests(Status(1, swapped, (), {}))
            assert later.request == first.request
            assert first.request.which.named == (before[1].gpu.uuid,)
            gone = Status(1, (before[0],), (), {})
            assert admission.requests(gone) == []
            with one.makefile("rb") as answers:
                assert "GPU" in json.loads(answers.readline())["error"]
    finally:
        desk.close()


def test_a_client_that_is_cancelled_is_told_by_whom_and_gets_nothing(asked: Asked) -> None:
    assert asked.desk.cancel(asked.run, "alice")
    assert not asked.desk.cancel(asked.run, "alice")
    with asked.desk.hold(asked.run) as here:
        assert not here
    (answer,) = asked.answers()
    assert answer["kind"] == "CancelledError"
    assert "cancelled by alice" in str(answer["error"])


def test_a_command_with_many_open_files_hears_from_the_pool(asked: Asked) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip("this process may not open 2048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < 1024:
            opened.append(os.dup(0))
        with asked.client.dup() as high:
            assert high.fileno() >= 1024
            connection = RunConnection(shared=False, pool="it", _socket=high)
            assert connection.news(0.0) is None
            asked.desk.tell(asked.run, Waiting("it is full", 1, 1))
            assert connection.news(1e11) == Waiting("it is full", 1, 1)
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_nothing_is_made_for_a_client_that_has_left(asked: Asked) -> None:
    asked.leave()
    with asked.desk.hold(asked.run) as here:
        assert not here
    assert asked.answers() == []


def test_a_client_that_leaves_while_no_grant_can_be_made_loses_its_place(asked: Asked) -> None:
    with asked.desk.hold(asked.run):
        asked.leave()
    assert asked.desk.requests() == []
    assert asked.answers() == []
