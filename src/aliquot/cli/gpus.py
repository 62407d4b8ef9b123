"""`aliquot gpus`."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aliquot import devices, slices
from aliquot.cli.tables import (
    NOTHING,
    Column,
    Output,
    is_terminal,
    laid_out,
    memory,
    print_json,
    print_sentence,
    print_text,
    short_uuid,
    show_rows,
    terminal_width,
)
from aliquot.model import format_bytes
from aliquot.model.errors import ArbiterError
from aliquot.model.strength import format_strength
from aliquot.slices import control
from aliquot.slices.tenant import is_inside_grant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.devices import Inventory, Shape
    from aliquot.model import Gpu
    from aliquot.slices import StateDirectory
    from aliquot.slices.arbiter_status import HostMemory, Status

COLUMNS = (
    Column("gpu", "GPU", right=True),
    Column("model", "Model", least=8),
    Column("strength", "Strength", drop=4, right=True),
    Column("memory", "Memory", right=True),
    Column("used", "Used", right=True),
    Column("granted", "Granted", drop=1, right=True),
    Column("pci", "PCI bus id", drop=3),
    Column("uuid", "UUID", drop=2, short=short_uuid),
    Column("driver", "Driver", only_named=True),
    Column("cuda", "CUDA", only_named=True),
)
_LINK = 6  # columns that a link takes


def show_gpus(simulate: str | None, output: Output) -> None:
    """Print the GPUs of this machine; inside a grant, its slices."""
    shape = devices.parse_shape(simulate) if simulate else None
    if is_inside_grant(os.environ):
        inventory, status = devices.read_inventory(devices.ambient_driver()), None
    else:
        state = slices.locate(shape)
        if shape is not None:
            slices.prepare(state)
        inventory, status = devices.read_inventory(state.driver()), _status(state)
    granted = {one.gpu.uuid: one.granted_bytes for one in status.gpus} if status else {}
    host = status.host_memory if status else None
    if output.json:
        print_json(_as_json(inventory, granted, host, shape))
        return
    if is_terminal() and output.template is None:
        kind = f"simulated {shape} · " if shape else ""
        print_sentence(f"{kind}driver {inventory.driver_version} · CUDA {_cuda(inventory)}")
        print_text("\n")
    show_rows(COLUMNS, [_row(gpu, inventory, granted) for gpu in inventory.gpus], output)
    if is_terminal() and output.template is None and any(gpu.links for gpu in inventory.gpus):
        for part in _parts(inventory.gpus, terminal_width()):
            _print_links(inventory.gpus, part)
    if is_terminal() and output.template is None and host is not None:
        print_text("\n")
        print_sentence(f"host memory for programs that leave a GPU (--swap): {host}")


def _status(state: StateDirectory) -> Status | None:
    """The arbiter's status; None without an arbiter."""
    try:
        slices.revive(state)
        return control.status(state.directory)
    except ArbiterError:
        return None


def _as_json(
    inventory: Inventory, granted: dict[str, int], host: HostMemory | None, shape: Shape | None
) -> dict[str, Any]:
    return {
        "simulated": None if shape is None else str(shape),
        "driver_version": inventory.driver_version,
        "cuda_version": _cuda(inventory),
        "host_memory": None if host is None else asdict(host),
        "gpus": [
            {
                **{key: value for key, value in asdict(gpu).items() if key != "gone"},
                "strength": gpu.strength or None,
                "granted_bytes": granted.get(gpu.uuid, 0),
            }
            for gpu in inventory.gpus
        ],
    }


def _cuda(inventory: Inventory) -> str:
    return ".".join(map(str, inventory.cuda_version))


def _row(gpu: Gpu, inventory: Inventory, granted: dict[str, int]) -> dict[str, str]:
    return {
        "gpu": str(gpu.index),
        "model": gpu.model,
        "strength": format_strength(gpu.strength) if gpu.strength else NOTHING,
        "memory": format_bytes(gpu.memory_bytes),
        "used": memory(gpu.used_bytes, gpu.memory_bytes),
        "granted": memory(granted.get(gpu.uuid, 0), gpu.memory_bytes),
        "pci": gpu.pci_bus_id,
        "uuid": gpu.uuid,
        "driver": inventory.driver_version,
        "cuda": _cuda(inventory),
    }


def _parts(gpus: tuple[Gpu, ...], width: int | None) -> Iterator[tuple[Gpu, ...]]:
    """The GPUs whose columns of links fit beside each other."""
    count = len(gpus) if width is None else max(1, (width - _LINK) // _LINK)
    yield from (gpus[first : first + count] for first in range(0, len(gpus), count))


def _print_links(gpus: tuple[Gpu, ...], part: tuple[Gpu, ...]) -> None:
    columns = [Column("gpu", "Links"), *(Column(str(to.index), f"{to.index}") for to in part)]
    rows = []
    for gpu in gpus:
        kinds = {str(link.index): link.kind for link in gpu.links}
        rows.append({"gpu": f"GPU {gpu.index}", str(gpu.index): "·", **kinds})
    lines = laid_out(columns, rows, None)
    print_text("".join(f"{line}\n" for line in ("", *lines)))
