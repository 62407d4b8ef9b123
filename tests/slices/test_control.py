"""The control client against an arbiter that is played: what it says, and how."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.model import Policy, Priority, Slice
from aliquot.model.errors import ArbiterError, NameInUseError, StateError
from aliquot.slices import control
from support import GIB, make_gpu

Play = Callable[[bytes], "Played"]


class Played:
    """An arbiter that gives one answer to every question, and keeps the questions."""

    def __init__(self, directory: Path, answer: bytes) -> None:
        self.questions: list[bytes] = []
        self._answer = answer
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(directory / "control"))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                self.questions.append(connection.makefile("rb").readline())
                connection.sendall(self._answer)

    def end(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def play(short_tmp: Path) -> Iterator[Play]:
    playing: list[Played] = []

    def start(answer: bytes) -> Played:
        playing.append(Played(short_tmp, answer))
        return playing[-1]

    yield start
    for one in playing:
        one.end()


def refusal(code: str) -> bytes:
    return json.dumps({"error": "the reason", "code": code}).encode() + b"\n"


def test_a_status_is_read(play: Play, short_tmp: Path) -> None:
    use = {"counted_bytes": 5, "driver_bytes": 7}
    answer = {
        "version": 1,
        "pid": 42,
        "state": str(short_tmp),
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-x",
                "name": "NVIDIA H100",
                "pci_bus_id": "0:0",
                "memory_bytes": 80 * GIB,
                "used_bytes": GIB,
                "granted_bytes": 8 * GIB,
                "strangers": [{"pid": 9, "name": "stray", "bytes": 3}],
            }
        ],
        "grants": [
            {
                "name": "a",
                "directory": "/d",
                "owner_pid": 1,
                "owner_alive": True,
                "owner_uid": 0,
                "created": 1,
                "broken": None,
                "slices": [
                    {
                        "gpu": "GPU-x",
                        "index": 0,
                        "memory_bytes": 8 * GIB,
                        "compute_percent": 30,
                        "policy": "hard",
                        "priority": "latency",
                        "headroom_bytes": 0,
                        **use,
                    }
                ],
                "processes": [
                    {
                        "pid": 2,
                        "inner_pid": 2,
                        "name": "python",
                        "state": "live",
                        "slices": [{"gpu": "GPU-x", **use}],
                    }
                ],
            }
        ],
    }
    play(json.dumps(answer).encode() + b"\n")
    seen = control.status(short_tmp)
    assert seen.answer == answer
    assert seen.gpus[0].strangers[0].name == "stray"
    grant = seen.grants[0]
    assert grant.slices == (Slice("GPU-x", 8 * GIB, 30, Policy.HARD, Priority.LATENCY),)
    assert grant.use[0].used_bytes == 12
    assert grant.processes[0].use[0].used_bytes == 12


def test_a_grant_is_asked_for_in_one_line(play: Play, short_tmp: Path) -> None:
    played = play(b'{"name":"a","directory":"/d","grant":"/d#5"}\n')
    parts = [Slice(make_gpu(0).uuid, GIB), Slice(make_gpu(1).uuid, GIB, 30, Policy.HARD)]
    assert control.make(short_tmp, "a", parts) == "/d#5"
    (question,) = played.questions
    assert question == (
        b"make name=a"
        b" slice=GPU-00000000-0000-0000-0000-000000000000,memory=1073741824,compute=0,"
        b"policy=elastic,priority=normal"
        b" slice=GPU-00000000-0000-0000-0000-000000000001,memory=1073741824,compute=30,"
        b"policy=hard,priority=normal\n"
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("name-in-use", NameInUseError),
        ("no-room", control.RoomTakenError),
        ("cannot-make", StateError),
        ("malformed", ArbiterError),
        ("never heard of", ArbiterError),
    ],
)
def test_a_refusal_is_the_error_it_is(
    play: Play, short_tmp: Path, code: str, kind: type[Exception]
) -> None:
    play(refusal(code))
    with pytest.raises(kind, match="the reason") as caught:
        control.make(short_tmp, "a", [])
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        b"no json\n",
        b"[]\n",
        b"{}\n",
        b'{"version":1}\n',
        b'{"version":1,"pid":0,"gpus":7}',
    ],
)
def test_an_answer_that_cannot_be_read(play: Play, short_tmp: Path, answer: bytes) -> None:
    play(answer)
    with pytest.raises(ArbiterError, match=str(short_tmp)):
        control.status(short_tmp)


def test_an_arbiter_of_another_version(play: Play, short_tmp: Path) -> None:
    play(b'{"version":2}\n')
    with pytest.raises(ArbiterError, match="version 2"):
        control.status(short_tmp)


def test_no_arbiter(short_tmp: Path) -> None:
    assert not control.answers(short_tmp)
    assert not control.answers(short_tmp / "nowhere")
    with pytest.raises(control.NoArbiterError, match=str(short_tmp)):
        control.status(short_tmp)


def test_a_directory_deeper_than_a_sockets_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.chdir(deep)
    played = Played(Path(), b'{"name":"a","directory":"/d","grant":"/d#5"}\n')
    try:
        assert control.make(deep, "a", []) == "/d#5"
    finally:
        played.end()
