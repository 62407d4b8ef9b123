"""A fake of the kubelet's device manager and PodResources, which behaves like the real ones.

It deletes the sockets in its folder when it starts, dials plugins with the authority
`localhost`, follows ListAndWatch, reuses the ids of init containers for a pod's other containers,
asks for a container's resources in any order, and forgets the ids of pods that have ended when it
next has to give some.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from aliquot.kubernetes.api.requests import quantity
from aliquot.kubernetes.kubelet import deviceplugin_pb2 as messages
from aliquot.kubernetes.kubelet import podresources_pb2 as resources
from aliquot.kubernetes.kubelet import wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.kubernetes.api.objects import Container, Pod

Response = messages.ContainerAllocateResponse


class AdmissionError(Exception):
    """The kubelet rejects a pod: UnexpectedAdmissionError."""


@dataclass
class Endpoint:
    """A plugin that has registered."""

    channel: Any
    options: messages.DevicePluginOptions
    follows: asyncio.Task[None]
    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    pushes: int = 0


@dataclass
class Given:
    """What a container got of one resource."""

    ids: list[str]
    response: Response


class FakeKubelet:
    """One kubelet; its allocations survive its restart, as those in a real checkpoint do."""

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        self.plugins = folder / "device-plugins"
        self.pod_resources = folder / "pod-resources"
        self.plugins.mkdir(parents=True)
        self.pod_resources.mkdir()
        self.endpoints: dict[str, Endpoint] = {}
        self.given: dict[str, dict[str, dict[str, Given]]] = {}  # pod, container, resource
        self.pods: dict[str, Pod] = {}
        self.has_get = True
        self._random = random.Random(seed)  # noqa: S311 - chance, not secrets
        self._servers: list[Any] = []

    # --- its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        for socket in self.plugins.glob("*.sock"):
            socket.unlink(missing_ok=True)
        registration = wire.server(wire.REGISTER.by(self._register))
        wire.listen(registration, self.plugins / "kubelet.sock")
        pods = [wire.LIST.by(self._list), *([wire.GET.by(self._get)] if self.has_get else [])]
        lister = wire.server(*pods)
        wire.listen(lister, self.pod_resources / "kubelet.sock")
        self._servers = [registration, lister]
        for server in self._servers:
            await server.start()

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(None)
        for endpoint in self.endpoints.values():
            await _hang_up(endpoint)
        self.endpoints = {}

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def until(self, predicate: Callable[[], object], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not predicate():
                await asyncio.sleep(0.002)

    async def until_registered(self, *names: str, seconds: float = 60.0) -> None:
        """Wait until these plugins have sent their ids."""
        await self.until(
            lambda: all(n in self.endpoints and self.endpoints[n].pushes for n in names), seconds
        )

    # --- pods -------------------------------------------------------------------------------------

    def allocatable(self) -> dict[str, int]:
        return {name: len(one.healthy) for name, one in self.endpoints.items()}

    async def admit(self, pod: Pod) -> dict[str, Response]:
        """What each container gets, merged over its resources."""
        self.pods[pod.metadata.uid] = pod
        reuse: dict[str, set[str]] = {}
        try:
            for one in pod.spec.init_containers:
                got = await self._allocate(pod, one, reuse)
                for name, ids in got.items():
                    kept = reuse.setdefault(name, set())
                    (kept.difference_update if one.restart_policy else kept.update)(ids)
            for one in pod.spec.containers:
                for name, ids in (await self._allocate(pod, one, reuse)).items():
                    reuse.get(name, set()).difference_update(ids)
        except (grpc.aio.AioRpcError, AdmissionError) as error:
            self.forget(pod)
            text = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            raise AdmissionError(text) from error
        return {name: self.response(pod, name) for name in self.given.get(pod.metadata.uid, {})}

    async def start_container(self, pod: Pod, container: str) -> None:
        """Call PreStartContainer, as before each start of a container."""
        given = list(self.given[pod.metadata.uid][container].items())
        self._random.shuffle(given)
        for name, one in given:
            endpoint = self.endpoints[name]
            if endpoint.options.pre_start_required:
                asked = messages.PreStartContainerRequest(devices_ids=one.ids)
                await wire.PRE_START.on(endpoint.channel)(asked, timeout=30)

    def forget(self, pod: Pod) -> None:
        """Forget a pod that has ended."""
        self.pods.pop(pod.metadata.uid, None)

    def response(self, pod: Pod, container: str) -> Response:
        merged = Response()
        for one in self.given[pod.metadata.uid][container].values():
            merged.MergeFrom(one.response)
        return merged

    def ids(self, pod: Pod, container: str = "main") -> dict[str, list[str]]:
        given = self.given[pod.metadata.uid][container]
        return {name: one.ids for name, one in given.items()}

    async def _allocate(
        self, pod: Pod, container: Container, reuse: dict[str, set[str]]
    ) -> dict[str, list[str]]:
        self.given = {uid: by for uid, by in self.given.items() if uid in self.pods}
        wanted = [
            (name, int(quantity(number)))
            for name, number in container.resources.limits.items()
            if name in self.endpoints
        ]
        self._random.shuffle(wanted)
        for name, number in wanted:
            ids = self._choose(name, number, reuse.get(name, set()))
            request = messages.ContainerAllocateRequest(devices_ids=ids)
            asked = messages.AllocateRequest(container_requests=[request])
            answer = await wire.ALLOCATE.on(self.endpoints[name].channel)(asked)
            by_container = self.given.setdefault(pod.metadata.uid, {})
            by_container.setdefault(container.name, {})[name] = Given(
                ids, answer.container_responses[0]
            )
        mine = self.given.get(pod.metadata.uid, {}).get(container.name, {})
        return {name: one.ids for name, one in mine.items()}

    def _choose(self, name: str, number: int, reuse: set[str]) -> list[str]:
        again = sorted(reuse)
        self._random.shuffle(again)
        ids = again[:number]
        used = {
            id_
            for by_container in self.given.values()
            for by_name in by_container.values()
            for id_ in by_name.get(name, Given([], Response())).ids
        }
        free = sorted(self.endpoints[name].healthy - used)
        if len(free) < number - len(ids):
            raise AdmissionError(f"requested number of devices unavailable for {name}")
        return ids + self._random.sample(free, number - len(ids))

    # --- what it serves ---------------------------------------------------------------------------

    async def _register(self, asked: messages.RegisterRequest, _: Any) -> messages.Empty:
        assert asked.version == wire.VERSION
        channel = wire.dial(self.plugins / asked.endpoint)
        options = await wire.OPTIONS.on(channel)(messages.Empty(), timeout=30)
        old = self.endpoints.get(asked.resource_name)
        if old:
            await _hang_up(old)
        follows = asyncio.create_task(self._follow(asked.resource_name, channel))
        self.endpoints[asked.resource_name] = Endpoint(channel, options, follows)
        return messages.Empty()

    async def _follow(self, name: str, channel: Any) -> None:
        with suppress(grpc.aio.AioRpcError):
            async for listing in wire.LIST_AND_WATCH.on(channel)(messages.Empty()):
                one = self.endpoints[name]
                listed = {device.ID for device in listing.devices}
                vanished = (one.healthy | one.unhealthy) - listed
                assert not vanished, "the kubelet dereferences a vanished id"
                one.healthy = {d.ID for d in listing.devices if d.health == wire.HEALTHY}
                one.unhealthy = listed - one.healthy
                one.pushes += 1
        one = self.endpoints[name]
        one.unhealthy |= one.healthy
        one.healthy = set()

    async def _list(self, _: Any, __: Any) -> resources.ListPodResourcesResponse:
        return resources.ListPodResourcesResponse(
            pod_resources=[self._report(pod) for pod in self.pods.values()]
        )

    async def _get(self, asked: Any, context: Any) -> resources.GetPodResourcesResponse:
        for pod in self.pods.values():
            if (pod.metadata.name, pod.metadata.namespace) == (asked.pod_name, asked.pod_namespace):
                return resources.GetPodResourcesResponse(pod_resources=self._report(pod))
        text = f"pod {asked.pod_name} in namespace {asked.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError

    def _report(self, pod: Pod) -> resources.PodResources:
        every = (
            *(one for one in pod.spec.init_containers if one.restart_policy),
            *pod.spec.containers,
        )
        given = self.given.get(pod.metadata.uid, {})
        return resources.PodResources(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            containers=[
                resources.ContainerResources(
                    name=one.name,
                    devices=[
                        resources.ContainerDevices(resource_name=name, device_ids=got.ids)
                        for name, got in given.get(one.name, {}).items()
                    ],
                )
                for one in every
            ],
        )


async def _hang_up(endpoint: Endpoint) -> None:
    endpoint.follows.cancel()
    await asyncio.wait([endpoint.follows])
    await endpoint.channel.close()
