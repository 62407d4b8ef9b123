"""A pool of simulated GPUs, and a console of it."""

from __future__ import annotations

import hmac
import http.client
import json
import resource
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from conftest import Cli, aliquot_command
from pool.conftest import SHAPE, PoolUp, down_pool
from pool.conftest import pool as pool_fixture
from support import wait_until

__all__ = ["down_pool", "pool_fixture"]

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


CHALLENGE = "0123456789abcdef" * 2


def signature(key: str, text: str) -> str:
    """As pages compute it."""
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the console."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Console:
    """A console that serves, and requests to it."""

    process: subprocess.Popen[str]
    link: str
    token: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.link.partition("#")[0]

    @property
    def host(self) -> str:
        return urlsplit(self.link).netloc

    @property
    def code(self) -> str:
        return self.link.partition("#code=")[2]

    def prove(self, name: str, **headers: str | None) -> Answer:
        """Ask for a proof, as a page does first."""
        body = {"name": name, "challenge": CHALLENGE}
        return self.ask("POST", "/api/v1/proof", body, authorization=None, **headers)

    def signed(self, name: str, key: str, host: str | None = None) -> dict[str, str | None]:
        """The headers of a page that knows this credential, after it has checked the proof."""
        named = self.host if host is None else host
        answer = self.prove(name, host=named)
        assert answer.status == 200, answer
        run = answer.json["run"]
        assert answer.json["proof"] == signature(key, f"console:{named}\n{run}\n{CHALLENGE}")
        signed = signature(key, f"page:{named}\n{run}")
        return {"authorization": None, "x_aliquot_key": f"{name} {signed}"}

    def open_session(self) -> dict[str, str | None]:
        """The headers of a page that has signed in by the token."""
        answer = self.ask("POST", "/api/v1/session", **self.signed("token", self.token))
        assert answer.status == 200, answer
        return self.signed(answer.json["name"], answer.json["key"])

    def ask(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        """Ask with the token; a header that is None is left out."""
        sent: dict[str, str | None] = {"Authorization": f"Bearer {self.token}", **self.headers}
        sent |= {name.replace("_", "-").title(): value for name, value in headers.items()}
        content = None
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            given = {name: value for name, value in sent.items() if value is not None}
            base = urlsplit(self.address).path.rstrip("/")
            connection.request(method, f"{base}{path}", content, given)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str | None) -> Any:
        answer = self.ask("GET", f"/api/v1{path}", **headers)
        assert answer.status == 200, answer
        return answer.json

    def problem(
        self, status: int, method: str, path: str, body: Any = None, **headers: str | None
    ) -> Any:
        """The problem document of a refused request."""
        answer = self.ask(method, path, body, **headers)
        assert answer.status == status, answer
        assert answer.headers["content-type"] == "application/problem+json"
        found = answer.json
        assert found.keys() == {"type", "title", "status", "detail", "hint"}
        assert found["status"] == status
        return found


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process can grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def quiet_port() -> int:
    """A free port that the kernel gives to no other program, so that it is free again later."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii")
    least = int(given.split()[0])
    while True:
        port = least // 2 + secrets.randbelow(least // 2)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def start_console(pool: PoolUp, env: dict[str, str], *options: str) -> Console:
    """`aliquot console`; it ends with the test."""
    listen = f"127.0.0.1:{quiet_port()}"
    process = subprocess.Popen(
        [aliquot_command(), "console", "--simulate", SHAPE, "--listen", listen, *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    if not link:
        raise AssertionError(process.communicate()[1])
    return Console(process, link, (pool.state / "console" / "token").read_text())


def end_console(console: Console) -> None:
    console.process.terminate()
    try:
        console.process.wait(60)
    finally:
        console.process.kill()
        console.process.communicate()


@pytest.fixture
def pool(pool_fixture: PoolUp) -> PoolUp:
    return pool_fixture


@pytest.fixture
def console(pool: PoolUp, cli_env: dict[str, str]) -> Iterator[Console]:
    found = start_console(pool, cli_env)
    yield found
    end_console(found)


@pytest.fixture
def sleeper(cli_env: dict[str, str], console: Console) -> Iterator[str]:
    """A program that has a slice of 8 GiB and 30 % of GPU 0."""
    options = ("--memory", "8GiB", "--compute", "30", "--name", "sleeper")
    command = [aliquot_command(), "run", "--simulate", SHAPE, *options, "--", *SLEEPS]
    with subprocess.Popen(command, env=cli_env) as process:
        try:
            wait_until(lambda: [one["name"] for one in console.get("/grants")["items"]])
            yield "sleeper"
        finally:
            process.kill()


__all__ += ["Cli"]
