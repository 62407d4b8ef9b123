"""What other users of the machine can do to a console: they reach its port without the token."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
import tracemalloc
from contextlib import ExitStack
from pathlib import Path

import pytest

from aliquot.cli import console_child
from aliquot.slices import StateDirectory
from console.conftest import Console
from support import wait_until

MIB = 1 << 20


def test_a_session_that_signed_out_is_over(console: Console) -> None:
    own, other = console.open_session(), console.open_session()
    ended = console.ask("DELETE", "/api/v1/session", **own)
    assert ended.status == 204
    console.problem(401, "GET", "/api/v1/gpus", **own)
    assert console.prove(str(own["x_aliquot_key"]).partition(" ")[0]).status == 401
    assert console.get("/gpus", **other)


BEGUN = "POST /api/v1/proof HTTP/1.1\r\nHost: {}\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize("said", ["", BEGUN], ids=["nothing", "half a request"])
def test_an_open_page_is_answered_while_others_fill_the_port(console: Console, said: str) -> None:
    host, _, port = console.host.partition(":")
    headers = {"Authorization": f"Bearer {console.token}"}
    page = http.client.HTTPConnection(console.host, timeout=60)
    with ExitStack() as silent:
        silent.callback(page.close)
        page.request("GET", "/api/v1/session", headers=headers)
        page.getresponse().read()
        # It begins to ask now: a connection that asks nothing for 5 s ends, and a busy machine may
        # need longer for the others.
        asks = f"GET /api/v1/events HTTP/1.1\r\nHost: {console.host}\r\n"
        page.sock.sendall(f"{asks}Authorization: {headers['Authorization']}\r\n".encode())
        for _ in range(300):
            other = silent.enter_context(socket.create_connection((host, int(port))))
            other.sendall(said.format(console.host).encode())
        page.sock.sendall(b"\r\n")
        answer = silent.enter_context(http.client.HTTPResponse(page.sock))
        answer.begin()
        assert answer.status == 200

        def new_pages_open() -> bool:
            try:
                return console.ask("GET", "/").status == 200
            except (ConnectionError, http.client.RemoteDisconnected):
                return False

        wait_until(new_pages_open)  # those who ask nothing, or not all, are cut off


@pytest.mark.parametrize("directory", ["/" + 300 * "x", "/" + 300 * "x/", "/dev/null/x"])
def test_an_impossible_folder_is_refused(console: Console, directory: str) -> None:
    body = {"command": "true", "directory": directory}
    assert "not a folder" in console.problem(400, "POST", "/api/v1/jobs", body)["detail"]


def test_a_console_that_writes_much_costs_the_pool_no_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = f"('x' * 99 + '\\n') * {MIB // 5}"
    program = f"import os, sys; os.close(1); sys.stderr.write({lines}); sys.exit('the end')"
    monkeypatch.setattr(console_child, "python_module", lambda *_: [sys.executable, "-c", program])
    said: list[str] = []
    has_ended = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        has_ended.set()

    tracemalloc.start()
    try:
        child = console_child.ConsoleChild("x", StateDirectory(tmp_path), say)
        child.start()
        assert has_ended.wait(60)
        child.stop()
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert said == ["no console: the end"]
