"""`aliquot gpus`."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aliquot import devices, slices
from aliquot.cli.tables import console, memory, new_table, print_json
from aliquot.model import format_bytes
from aliquot.model.errors import ArbiterError
from aliquot.slices import control
from aliquot.slices.tenant import is_inside_grant

if TYPE_CHECKING:
    from rich.table import Table

    from aliquot.devices import Inventory, Shape
    from aliquot.model import Gpu
    from aliquot.slices import StateDirectory


def show_gpus(simulate: str | None, *, json: bool) -> None:
    """Print the GPUs of this machine; inside a grant, its slices."""
    shape = devices.parse_shape(simulate) if simulate else None
    if is_inside_grant(os.environ):
        inventory, granted = devices.read_inventory(devices.ambient_driver()), {}
    else:
        state = slices.locate(shape)
        if shape is not None:
            slices.prepare(state)
        inventory, granted = devices.read_inventory(state.driver()), _granted(state)
    if json:
        print_json(_as_json(inventory, granted, shape))
        return
    console().print(_table(inventory, granted, shape))
    if any(gpu.links for gpu in inventory.gpus):
        console().print(_links(inventory.gpus))


def _granted(state: StateDirectory) -> dict[str, int]:
    """The granted memory of each GPU; empty without an arbiter."""
    try:
        slices.revive(state)
        found = control.status(state.directory).gpus
    except ArbiterError:
        return {}
    return {one.gpu.uuid: one.granted_bytes for one in found}


def _as_json(inventory: Inventory, granted: dict[str, int], shape: Shape | None) -> dict[str, Any]:
    return {
        "simulated": None if shape is None else str(shape),
        "driver_version": inventory.driver_version,
        "cuda_version": ".".join(map(str, inventory.cuda_version)),
        "gpus": [
            {**asdict(gpu), "granted_bytes": granted.get(gpu.uuid, 0)} for gpu in inventory.gpus
        ],
    }


def _table(inventory: Inventory, granted: dict[str, int], shape: Shape | None) -> Table:
    kind = f"simulated {shape} · " if shape else ""
    cuda = ".".join(map(str, inventory.cuda_version))
    table = new_table(
        "GPU", "Model", "Memory", "Used", "Granted", "PCI bus id", "UUID",
        title=f"{kind}driver {inventory.driver_version} · CUDA {cuda}",
    )  # fmt: skip
    for gpu in inventory.gpus:
        table.add_row(
            str(gpu.index),
            gpu.model,
            format_bytes(gpu.memory_bytes),
            memory(gpu.used_bytes, gpu.memory_bytes),
            memory(granted.get(gpu.uuid, 0), gpu.memory_bytes),
            gpu.pci_bus_id,
            gpu.uuid,
        )
    return table


def _links(gpus: tuple[Gpu, ...]) -> Table:
    table = new_table("Links", *(f"GPU {gpu.index}" for gpu in gpus))
    for gpu in gpus:
        kinds = {link.index: link.kind for link in gpu.links}
        table.add_row(f"GPU {gpu.index}", *(kinds.get(other.index, "·") for other in gpus))
    return table
