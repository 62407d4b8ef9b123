"""How GPUs are connected: by NVLink if they can, else by a path over PCIe.

The names are those of `nvidia-smi topo -m`. Two GPUs that are connected to NVSwitches have as many
links to each other as the one with fewer links.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from aliquot.model import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

_SWITCH = "a switch"
_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def read_links(nvml: Any, handles: Sequence[Any]) -> list[tuple[Link, ...]]:
    """The links of each GPU to all others."""
    if len(handles) == 1:
        return [()]
    bus_ids = [_bus_id(nvml.nvmlDeviceGetPciInfo(handle).busId) for handle in handles]
    remotes = [_remotes(nvml, handle) for handle in handles]
    return [
        tuple(
            Link(
                other,
                _kind(nvml, (handles[one], handles[other]), _nvlinks(one, other, bus_ids, remotes)),
            )
            for other in range(len(handles))
            if other != one
        )
        for one in range(len(handles))
    ]


def _nvlinks(one: int, other: int, bus_ids: Sequence[str], remotes: Sequence[Counter[str]]) -> int:
    direct = remotes[one][bus_ids[other]]
    return direct or min(remotes[one][_SWITCH], remotes[other][_SWITCH])


def _kind(nvml: Any, pair: tuple[Any, Any], nvlinks: int) -> str:
    if nvlinks:
        return f"NV{nvlinks}"
    try:
        return _PATHS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(*pair), "?")
    except nvml.NVMLError:
        return "?"


def _remotes(nvml: Any, handle: Any) -> Counter[str]:
    """The other ends of a GPU's active NVLinks: PCI bus ids, or a switch."""
    found: Counter[str] = Counter()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                found[_remote(nvml, handle, link)] += 1
        except nvml.NVMLError:
            break  # the GPU has no such link, and none after it
    return found


def _remote(nvml: Any, handle: Any, link: int) -> str:
    try:
        kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    except nvml.NVMLError:
        kind = nvml.NVML_NVLINK_DEVICE_TYPE_GPU
    if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return _SWITCH
    return _bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)


def _bus_id(value: str | bytes) -> str:
    """A PCI bus id in one form: NVML writes the domain with four or eight digits."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
