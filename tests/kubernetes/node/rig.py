"""A node for tests: a fake API server, a fake kubelet, and the agent as a program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from asyncio import TaskGroup
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import support
from aliquot.kubernetes.api.admission import RESIZING, AdmittedSize
from aliquot.kubernetes.api.names import ADMITTED_SIZE
from aliquot.kubernetes.api.objects import GPU_NODES, PODS, GpuNode
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.watch import Watch
from aliquot.kubernetes.extender.node_pods import NodePodsWriter
from aliquot.model.errors import ArbiterError
from aliquot.slices import control
from conftest import aliquot_command
from kubernetes.fake_api import FakeApi, as_json
from kubernetes.node.fake_kubelet import FakeKubelet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.model import Grant

NODE = "n1"
NAMES = tuple(f"aliquot.io/{name}" for name in ("gpu", "sgpu", "vcuda-core", "vcuda-memory"))


class Node:
    """One node, whose agent a test can start and kill."""

    def __init__(self, folder: Path, api: FakeApi, shape: str, shares: int) -> None:
        self.api = api
        self.kubelet = FakeKubelet(folder / "kubelet")
        self.folder = folder
        self.state = folder / "state"
        self.home = folder / "home"
        self.cdi = folder / "cdi"
        self.port = _free_port()
        self._shape = shape
        self._shares = shares
        self._agent: subprocess.Popen[bytes] | None = None
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.write_text(json.dumps(_kubeconfig(api.url)))

    # --- the agent --------------------------------------------------------------------------------

    def start_agent(self, *options: str) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(
                [
                    *(aliquot_command(), "node", "--node-name", NODE),
                    *("--simulate", self._shape, "--shares", str(self._shares)),
                    *("--state", str(self.state), "--home", str(self.home)),
                    *("--kubelet-dir", str(self.folder / "kubelet")),
                    *("--cdi-dir", str(self.cdi)),
                    *("--kubeconfig", str(self._kubeconfig)),
                    *("--host", "127.0.0.1", "--port", str(self.port)),
                    *options,
                ],
                env=support.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def ready(self) -> None:
        """Wait until the agent serves pods."""
        await self.until(lambda: self.page("/readyz") == "ok\n")
        await self.kubelet.until_registered(*NAMES)

    def kill_agent(self) -> None:
        assert self._agent
        self._agent.kill()
        self._agent.wait(60)
        self._agent = None

    async def end_agent(self) -> int:
        assert self._agent
        self._agent.terminate()
        return await self.agent_ends()

    async def agent_ends(self) -> int:
        """Wait for the end of the agent; its exit status."""
        assert self._agent
        code = await asyncio.to_thread(self._agent.wait, 60)
        self._agent = None
        return code

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def page(self, path: str) -> str | None:
        with suppress(OSError):
            url = f"http://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return str(answer.read().decode())
        return None

    def failed_checks(self) -> dict[str, str] | None:
        """The checks of /healthz that fail, and why; None: the agent does not answer."""
        url = f"http://127.0.0.1:{self.port}/healthz"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                code, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read().decode()
        except OSError:
            return None
        results = dict(line.split(": ", 1) for line in text.splitlines())
        failed = {name: why for name, why in results.items() if why != "ok"}
        assert code == (503 if failed else 200), text
        return failed

    # --- the driver -------------------------------------------------------------------------------

    def set_health(self, line: str) -> None:
        """Change the health of a simulated GPU: `INDEX lost` and the like."""
        machine = self.state / "machine"
        machine.mkdir(parents=True, exist_ok=True)
        with (machine / "health").open("a") as health:
            health.write(f"{line}\n")

    def install_driver(self, library: str, module: str) -> None:
        """Replace the simulated driver: its libraries, and its kernel module."""
        machine = self.state / "machine"
        machine.mkdir(parents=True, exist_ok=True)
        new = machine / "driver.new"
        new.write_text(f"library {library}\nmodule {module}\n")
        new.rename(machine / "driver")

    # --- pods -------------------------------------------------------------------------------------

    def bind(self, pod: Pod) -> None:
        """Put the pod into the API server, bound to this node."""
        one = as_json(PODS, pod)
        one["spec"]["nodeName"] = NODE
        self.api.put("pods", one)

    def annotate(self, pod: Pod, *, allowed: bool = True, **notes: str) -> None:
        """Annotate a pod. `allowed`: the scheduler lets it grow to what that says."""
        one = self.api.objects["pods", pod.metadata.namespace, pod.metadata.name]
        known = one["metadata"].setdefault("annotations", {})
        known.update({f"aliquot.io/{name}": value for name, value in notes.items()})
        if allowed:
            sizes = {name: known[name] for name in RESIZING if name in known}
            size = AdmittedSize(one["metadata"]["uid"], time.time() + 60, sizes)
            known[ADMITTED_SIZE] = size.encode()
        self.api.put("pods", one)

    def set_phase(self, pod: Pod, phase: str) -> None:
        one = self.api.objects["pods", pod.metadata.namespace, pod.metadata.name]
        self.api.put("pods", {**one, "metadata": {**one["metadata"]}, "status": {"phase": phase}})

    async def run(self, pod: Pod) -> None:
        """Bind and admit a pod, and start all its containers once, in their order."""
        self.bind(pod)
        await self.kubelet.admit(pod)
        for one in (*pod.spec.init_containers, *pod.spec.containers):
            await self.kubelet.start_container(pod, one.name)

    def end(self, pod: Pod) -> None:
        self.kubelet.forget(pod)
        self.api.delete("pods", pod.metadata.name, pod.metadata.namespace)

    # --- observed state ---------------------------------------------------------------------------

    async def until(self, predicate: Callable[[], object], seconds: float = 150.0) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not await asyncio.to_thread(predicate):
            late = asyncio.get_running_loop().time() > deadline
            assert not late, f"not true within {seconds} s: {predicate}\n{self.log()[-4000:]}"
            await asyncio.sleep(0.01)

    def counts(self) -> dict[str, int]:
        """Allocatable units as the kubelet has them, by short names."""
        found = self.kubelet.allocatable()
        return {name.partition("/")[2]: count for name, count in found.items()}

    def grants(self) -> dict[str, Grant]:
        return {grant.name: grant for grant in control.status(self.state).grants}

    @property
    def agent_pid(self) -> int:
        assert self._agent
        return self._agent.pid

    def arbiter_pid(self) -> int | None:
        with suppress(ArbiterError):
            return control.status(self.state).pid
        return None

    def gpunode(self) -> dict[str, Any]:
        one = self.api.objects.get(("gpunodes", "", NODE))
        return one.get("status", {}) if one else {}

    def gpunode_memory(self) -> int:
        """Bytes of its first GPU."""
        return int(control.status(self.state).gpus[0].gpu.memory_bytes)

    def holders(self) -> dict[str, list[tuple[int, int]]]:
        """By pod: index and bytes of its GPUs, from the GPUNode object."""
        found: dict[str, list[tuple[int, int]]] = {}
        for gpu in self.gpunode().get("gpus", ()):
            for part in gpu.get("grants", ()):
                found.setdefault(part["pod"], []).append((gpu["index"], part["memory"]))
        return found

    def events(self, pod: Pod | None = None) -> list[tuple[str, str]]:
        return [
            (one["reason"], one["message"])
            for one in self.api.all("events")
            if pod is None or one["involvedObject"]["name"] == pod.metadata.name
        ]

    def close(self) -> None:
        if self._agent:
            self._agent.kill()
            self._agent.wait(60)
        support.wait_until(self._arbiters_ended)

    def _arbiters_ended(self) -> bool:
        """End all arbiters; one may be waiting for the other to end before it serves."""
        ended = True
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended meanwhile
                if str(self.state).encode() in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGTERM)
                    ended = False
        return ended


@asynccontextmanager
async def a_node(
    folder: Path,
    shape: str = "t4:4",
    shares: int = 2,
    *,
    agent: bool = True,
    options: tuple[str, ...] = (),
) -> AsyncIterator[Node]:
    """A node with a running kubelet and, by default, an agent that serves pods."""
    api = FakeApi()
    api.put("nodes", {"metadata": {"name": NODE}})
    async with api.serving(), AsyncExitStack() as parts:
        node = Node(folder, api, shape, shares)
        await node.kubelet.start()
        if "--pods-by-gpunode" in options:
            api.faults.forbid = lambda who, path: bool(who) and path.endswith("/pods")
            await parts.enter_async_context(writing_pods(api))
        try:
            if agent:
                node.start_agent(*options)
                await node.ready()
            yield node
        finally:
            node.close()
            await node.kubelet.stop()


@asynccontextmanager
async def writing_pods(api: FakeApi) -> AsyncIterator[None]:
    """The scheduler's part that writes the pods of nodes into their GPUNodes."""
    async with api.client() as client, TaskGroup() as tasks:
        gpu_nodes = Watch(
            client,
            GPU_NODES,
            lambda before, now: writer.gpu_node_changed((now or before or GpuNode()).metadata.name),
        )
        writer = NodePodsWriter(client, (ALIQUOT,), gpu_nodes.get, lambda: True)
        running = [tasks.create_task(one) for one in (gpu_nodes.run(), writer.run())]
        yield
        for one in running:
            one.cancel()


def on_node(
    test: Callable[[Node], Coroutine[Any, Any, None]], folder: Path, **options: Any
) -> None:
    """Run a test on a node of its own."""

    async def run() -> None:
        async with a_node(folder, **options) as node:
            await test(node)

    asyncio.run(run())


def grant_of(node: Node, pod: Pod, name: str = "main") -> str:
    """The name of a container's grant, by what is mounted into it."""
    mounts = node.kubelet.response(pod, name).mounts
    (source,) = [str(one.host_path) for one in mounts if one.container_path == "/run/aliquot/grant"]
    return source.rpartition("/")[2]


@contextmanager
def at_work(program: str, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that has printed a line, and runs until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "agent"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
