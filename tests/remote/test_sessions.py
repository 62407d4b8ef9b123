"""A session that does not start as it should gives its slice back. Needs no PyTorch."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from aliquot.remote import greeting
from aliquot.remote.server import ExecutorSettings, RemoteServer
from conftest import Cli
from support import wait_until

LEAVES = """#!{python}
import os, sys, time
os.write(2, b"aliquot: it leaves\\n")
os.close(int(sys.argv[3]))  # the socket of the session
time.sleep(1000)
"""


# With few descriptors: it serves, and its own end is by SIGTERM.
SERVES = """
import resource, signal, sys
from pathlib import Path
from aliquot.remote.server import ExecutorSettings, RemoteServer
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (32, most))
server = RemoteServer(Path(sys.argv[1]), ExecutorSettings(sys.executable, "cpu", None))
signal.signal(signal.SIGTERM, lambda *_: server.close())
server.serve()
"""


@contextmanager
def served(path: Path, settings: ExecutorSettings) -> Iterator[None]:
    server = RemoteServer(path, settings)
    serving = threading.Thread(target=server.serve)
    serving.start()
    try:
        yield
    finally:
        server.close()
        serving.join(30)
        assert not serving.is_alive()


def test_a_server_that_is_closed_accepts_nothing_more(short_tmp: Path) -> None:
    """A thread in accept() would take the clients of the next socket with that descriptor."""
    with served(short_tmp / "gpu", ExecutorSettings(sys.executable, "cpu", None)):
        assert (short_tmp / "gpu").is_socket()
    assert not (short_tmp / "gpu").exists()


def says_that_it_is_over(path: Path) -> bool:
    """Whether a server answers, about a session that is not there."""
    try:
        greeting.ask(path, {"attach": "0" * 32})
    except greeting.RemoteError as error:
        return "is over" in error.message
    return False


def test_clients_without_end_do_not_end_the_server(short_tmp: Path) -> None:
    path = short_tmp / "gpu"
    with subprocess.Popen([sys.executable, "-c", SERVES, str(path)]) as server:
        try:
            wait_until(lambda: says_that_it_is_over(path))
            with ExitStack() as clients:
                for _ in range(60):  # more than it has descriptors, fewer than can wait
                    client = clients.enter_context(socket.socket(socket.AF_UNIX))
                    client.connect(str(path))
            assert says_that_it_is_over(path)
        finally:
            server.terminate()
    assert server.returncode == 0


def test_a_session_that_leaves_without_ending_is_ended(
    cli: Cli, cli_env: dict[str, str], short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cli_env.items():
        monkeypatch.setenv(name, value)
    python = short_tmp / "python"
    python.write_text(LEAVES.format(python=sys.executable))
    python.chmod(0o700)
    with served(short_tmp / "gpu", ExecutorSettings(str(python), "cpu", "h100:1")):
        with pytest.raises(greeting.RemoteError, match="it leaves"):
            greeting.ask(short_tmp / "gpu", {"open": {"memory": "8GiB", "compute": 0}})

        def is_free() -> bool:
            return not json.loads(cli("ps", "--json", "--simulate", "h100:1").stdout)["grants"]

        wait_until(is_free, 60)
