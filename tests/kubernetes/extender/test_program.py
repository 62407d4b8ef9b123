"""`aliquot scheduler` as a program: it starts, serves, and gives its lease back at the end."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from conftest import Cli, aliquot_command
from kubernetes.builders import make_node
from kubernetes.extender.replica import put_node
from kubernetes.fake_api import FakeApi, until

OWN_AUTHORITY = ("--tls-secret=ca", "--tls-client-secret=client", "--tls-name=127.0.0.1")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def kubeconfig(folder: Path, url: str) -> Path:
    file = folder / "config"
    file.write_text(
        f"""
current-context: c
clusters: [{{name: k, cluster: {{server: "{url}"}}}}]
contexts: [{{name: c, context: {{cluster: k, user: u, namespace: home}}}}]
users: [{{name: u, user: {{token: secret}}}}]
"""
    )
    return file


@asynccontextmanager
async def program(
    api: FakeApi, folder: Path, *options: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        aliquot_command(),
        "scheduler",
        f"--kubeconfig={kubeconfig(folder, api.url)}",
        "--host=127.0.0.1",
        f"--port={port}",
        *options,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ready(url: str, trusting: ssl.SSLContext | None = None) -> None:
    async with httpx2.AsyncClient(verify=trusting or False, trust_env=False) as http:

        async def asked() -> bool:
            try:
                return (await http.get(f"{url}/readyz")).text == "leads"
            except httpx2.HTTPError:
                return False

        async with asyncio.timeout(60):
            while not await asked():
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_becomes_ready_and_gives_its_lease_back(tmp_path: Path, how: signal.Signals) -> None:
    async def play() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 2))
        async with api.serving(), program(api, tmp_path) as (process, port):
            await ready(f"http://127.0.0.1:{port}")
            lease = ("leases", "home", "aliquot-scheduler")
            assert api.objects[lease]["spec"]["holderIdentity"]
            process.send_signal(how)
            async with asyncio.timeout(30):
                assert await process.wait() == 0
            assert api.objects[lease]["spec"]["holderIdentity"] == ""

    asyncio.run(play())


def test_it_serves_over_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)

    async def play() -> None:
        api = FakeApi()
        options = (f"--tls-cert={cert}", f"--tls-key={key}")
        async with api.serving(), program(api, tmp_path, *options) as (_, port):
            trusting = ssl.create_default_context(cafile=str(cert))
            await ready(f"https://127.0.0.1:{port}", trusting)

    asyncio.run(play())


def test_only_callers_with_a_certificate_of_its_authority_get_through(tmp_path: Path) -> None:
    async def play() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        for name in ("ca", "client"):
            api.put("secrets", {"metadata": {"name": name, "namespace": "home"}})
        health = free_port()
        options = (*OWN_AUTHORITY, f"--health-port={health}")
        async with api.serving(), program(api, tmp_path, *options) as (_, port):
            await ready(f"http://127.0.0.1:{health}")
            await until(lambda: api.objects["secrets", "home", "client"].get("data"))
            data = api.objects["secrets", "home", "client"]["data"]
            files = {name: tmp_path / name for name in data}
            for name, file in files.items():
                file.write_bytes(b64decode(data[name]))
            trusting = ssl.create_default_context(cafile=str(files["ca.crt"]))
            async with httpx2.AsyncClient(verify=trusting, trust_env=False) as http:
                with pytest.raises(httpx2.TransportError):
                    await http.post(f"https://127.0.0.1:{port}/filter", content=b"{}")
            trusting.load_cert_chain(files["tls.crt"], files["tls.key"])
            async with httpx2.AsyncClient(verify=trusting, trust_env=False) as http:
                answer = await http.post(f"https://127.0.0.1:{port}/filter", content=b"{}")
                assert answer.status_code == 400  # it was read
            async with httpx2.AsyncClient(trust_env=False) as http:
                answer = await http.post(f"http://127.0.0.1:{health}/filter", content=b"{}")
                assert answer.status_code == 404  # no decisions there
                metrics = (await http.get(f"http://127.0.0.1:{health}/metrics")).text
                assert "aliquot_scheduler_authority_ends_seconds" in metrics

    asyncio.run(play())


def test_a_program_without_its_authority_takes_no_lease_and_ends_when_told(tmp_path: Path) -> None:
    async def play() -> None:
        api = FakeApi()  # it has no Secrets
        health = free_port()
        options = (*OWN_AUTHORITY, f"--health-port={health}")
        async with api.serving(), program(api, tmp_path, *options) as (process, _):
            asked = "GET", "/api/v1/namespaces/home/secrets/ca"
            await until(lambda: api.requests.count(asked) > 2, 60)
            assert not [path for method, path in api.requests if method == "POST"]  # no lease
            async with httpx2.AsyncClient(trust_env=False) as http:
                page = await http.get(f"http://127.0.0.1:{health}/readyz")
                assert page.status_code == 503
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                assert await process.wait() == 0

    asyncio.run(play())


def test_a_missing_api_server_is_reported_with_what_to_do(cli: Cli) -> None:
    done = cli("scheduler", "--kubeconfig=/nowhere")
    assert done.returncode == 1
    assert "Give --kubeconfig FILE" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-cert=x"], "go together"),
        (["--tls-client-ca=x"], "needs a certificate"),
        (["--tls-secret=x"], "go together"),
        (
            ["--tls-cert=x", "--tls-key=x", "--tls-secret=x"],
            "exclude each other",
        ),
        (["--service=x"], "needs the pod of this replica"),
        (["--names=amd"], "no preset 'amd'"),
        (["--names=nvidia,tuya"], "both use nvidia.com/gpu"),
        (["--strategy=best"], "no strategy 'best'"),
    ],
)
def test_invalid_options_are_named(cli: Cli, tmp_path: Path, options: list[str], said: str) -> None:
    config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    done = cli("scheduler", f"--kubeconfig={config}", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
