"""Resource claims as kube-scheduler allocates them, and the kubelet's calls about them."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.api.dra_devices import device_name
from aliquot.kubernetes.kubelet import dra_health_pb2, wire
from aliquot.kubernetes.kubelet import dra_pb2 as messages
from aliquot.kubernetes.kubelet import pluginregistration_pb2 as registration

Json = dict[str, Any]
NODE = "n1"

_shares = itertools.count(1)


def result(
    uuid: str,
    kind: str = "sliced",
    number: int = 0,
    *,
    memory: str = "10Gi",
    compute: str = "0",
    request: str = "gpu",
    **more: Any,
) -> Json:
    """A device that a claim got."""
    one: Json = {
        "request": request,
        "driver": DRIVER,
        "pool": NODE,
        "device": device_name(uuid, kind, number),  # type: ignore[arg-type] # tests give wrong ones
    }
    if kind == "sliced":
        one["shareID"] = f"00000000-0000-4000-8000-{next(_shares):012x}"
        one["consumedCapacity"] = {"memory": memory, "compute": compute}
    return one | more


def parameters(*requests: str, of_class: bool = False, **settings: Any) -> Json:
    """Opaque parameters, as an allocation has them."""
    written = {"apiVersion": "aliquot.io/v1alpha1", "kind": "SliceParameters", **settings}
    return {
        "source": "FromClass" if of_class else "FromClaim",
        "requests": list(requests),
        "opaque": {"driver": DRIVER, "parameters": written},
    }


def claim(
    name: str, *results: Json, pods: tuple[str, ...] = ("pod",), config: tuple[Json, ...] = ()
) -> Json:
    """An allocated claim that these pods may use; the UID of each is its name."""
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(config)}},
            "reservedFor": [{"resource": "pods", "name": one, "uid": one} for one in pods],
        },
    }


@dataclass
class FakeDraKubelet:
    """What a kubelet does with a DRA driver in its folder."""

    folder: Path
    info: registration.PluginInfo = field(default_factory=registration.PluginInfo)

    def __post_init__(self) -> None:
        for name in ("plugins_registry", "plugins"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def socket(self) -> Path:
        return self.folder / "plugins_registry" / f"{DRIVER}-reg.sock"

    async def register(self) -> None:
        """Find the driver and register it, as a kubelet that starts does."""
        async with asyncio.timeout(150):
            while not self.socket.exists():
                await asyncio.sleep(0.01)
            channel = wire.dial(self.socket)
            self.info = await wire.GET_INFO.on(channel)(
                registration.InfoRequest(), wait_for_ready=True
            )
            await wire.NOTIFY_REGISTRATION.on(channel)(
                registration.RegistrationStatus(plugin_registered=True)
            )
            await channel.close()

    async def prepare(self, *claims: Json) -> dict[str, Any]:
        """The answer for each claim, by its name."""
        asked = messages.NodePrepareResourcesRequest(claims=map(_reference, claims))
        return await self._call(wire.PREPARE, asked, claims)

    async def unprepare(self, *claims: Json) -> dict[str, Any]:
        asked = messages.NodeUnprepareResourcesRequest(claims=map(_reference, claims))
        return await self._call(wire.UNPREPARE, asked, claims)

    async def health(self) -> dict[str, str]:
        """The problem of each device, by its name."""
        channel = wire.dial(Path(self.info.endpoint))
        stream = wire.WATCH_HEALTH.on(channel)(dra_health_pb2.NodeWatchResourcesRequest())
        said = await stream.read()
        await channel.close()
        for one in said.devices:
            assert (one.health == dra_health_pb2.HEALTHY) is not bool(one.message)
        return {one.device.device_name: one.message for one in said.devices}

    async def _call(self, method: Any, asked: Any, claims: tuple[Json, ...]) -> dict[str, Any]:
        channel = wire.dial(Path(self.info.endpoint))
        answer = await method.on(channel)(asked, timeout=150, wait_for_ready=True)
        await channel.close()
        return {one["metadata"]["name"]: answer.claims[one["metadata"]["uid"]] for one in claims}


def _reference(one: Json) -> messages.Claim:
    meta = one["metadata"]
    return messages.Claim(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
