"""`aliquot slice`: what its commands do and print."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.install import check_source, trusted_uids
from aliquot.cli.run import describe_slices
from aliquot.cli.tables import NOTHING, Column, print_json, print_text, show_rows
from aliquot.containers import publishing
from aliquot.containers.cdi import CdiSpecs
from aliquot.devices import parse_shape
from aliquot.model import format_bytes, format_count, format_share
from aliquot.model.errors import AliquotError, InstallationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.cli.tables import Output
    from aliquot.containers.published import PublishedSize, PublishedSlice
    from aliquot.containers.publishing import ListedSize, ListedSlice
    from aliquot.devices import Shape
    from aliquot.model import Request

COLUMNS = (
    Column("name", "Name", least=8),
    Column("kind", "Kind", drop=4),
    Column("memory", "Memory"),
    Column("compute", "Compute"),
    Column("gpus", "GPUs", drop=2),
    Column("processes", "Processes", drop=1),
    Column("state", "State"),
    Column("device", "Device", drop=3),
    Column("spec", "Spec", only_named=True),
)

_NO_SPEC = "without CDI spec: run aliquot slice restore"


def create_slice(request: Request, name: str, cdi_dir: Path, simulate: str | None) -> None:
    """Make and publish a slice, and say how a container gets it."""
    host = publishing.open_host(_shape(simulate))
    one, made = publishing.create(host, request, name, cdi_dir)
    gpus = [found.gpu for found in made.gpus]
    text = describe_slices(request, gpus, simulated=host.state.shape is not None)
    print_text(
        f"slice {name}: {text}\n"
        f"  docker run --device {publishing.device_of(name)} IMAGE    (podman, nerdctl: the same)\n"
        f"  its CDI spec: {_spec(one)}\n"
    )


def publish_size(request: Request, name: str, cdi_dir: Path, simulate: str | None) -> None:
    """Publish a size, and say how a container gets a slice of it."""
    one = publishing.publish(publishing.open_host(_shape(simulate)), request, name, cdi_dir)
    if os.geteuid() == 0:
        _warn_of_code_of_others()
    print_text(
        f"size {name}: {_size_text(one)} for each container\n"
        f"  docker run --device {publishing.device_of(name)} IMAGE    (podman, nerdctl: the same)\n"
        f"  its CDI spec: {_spec(one)}\n"
    )


def _warn_of_code_of_others() -> None:
    """The hook runs as root at each start of a container, long after this command."""
    code = [Path(sys.executable), Path(sys.executable).resolve(), Path(publishing.__file__)]
    try:
        check_source(code, trusted_uids())
    except InstallationError as error:
        sys.stderr.write(
            f"aliquot: warning: {error.message}, whenever a container of this size starts\n"
            "  Install Aliquot for all users, and publish with that: sudo aliquot install\n"
        )


def show_slices(simulate: str | None, output: Output) -> None:
    """Print the published slices and sizes."""
    made, sizes = publishing.listed(slices.locate(_shape(simulate)))
    if output.json:
        print_json(
            {"slices": [_json(one) for one in made], "sizes": [_size_json(one) for one in sizes]}
        )
    elif made or sizes or output.template is not None:
        show_rows(COLUMNS, [*map(_row, made), *map(_size_row, sizes)], output)
    else:
        print_text("There are no slices for containers; make one with: aliquot slice create\n")


def delete_slices(names: Sequence[str], simulate: str | None) -> int:
    """Delete slices; the exit code. If one is refused, the others are still deleted."""
    host = publishing.open_host(_shape(simulate))
    failed = 0
    for name in dict.fromkeys(names):
        try:
            ended = publishing.delete(host, name)
        except AliquotError as error:
            sys.stderr.write(f"aliquot: {error}\n")
            failed = 1
            continue
        rest = "" if ended else "; it is free when the programs that still use it have ended"
        print_text(f"slice {name} deleted{rest}\n")
    return failed


def restore_slices(simulate: str | None, wait_seconds: float) -> int:
    """Restore all slices; the exit code."""
    failed = publishing.restore(publishing.open_host(_shape(simulate)), wait_seconds)
    for name, error in failed.items():
        sys.stderr.write(f"aliquot: slice {name} is not restored: {error}\n")
    return 1 if failed else 0


def _row(listed: ListedSlice) -> dict[str, str]:
    one, grant = listed.slice, listed.grant
    first = one.slices[0] if grant is None else grant.slices[0]
    count = len(grant.processes) if grant else 0
    return {
        "name": one.name,
        "kind": "slice",
        "memory": format_bytes(first.memory_bytes),
        "compute": format_share(first.compute_percent),
        "gpus": format_count(len(one.slices), "GPU"),
        "processes": str(count or NOTHING),
        "state": _state(listed),
        "device": publishing.device_of(one.name),
        "spec": _spec(one),
    }


def _size_row(listed: ListedSize) -> dict[str, str]:
    one, request = listed.size, listed.size.request
    running = format_count(len(listed.grants), "container")
    has_spec = CdiSpecs(one.cdi_dir).has(publishing.KIND, one.name)
    return {
        "name": one.name,
        "kind": "size",
        "memory": "whole" if request.amount is None else str(request.amount),
        "compute": format_share(request.compute_percent),
        "gpus": format_count(request.gpus, "GPU"),
        "processes": NOTHING,
        "state": running if has_spec else _NO_SPEC,
        "device": publishing.device_of(one.name),
        "spec": _spec(one),
    }


def _size_json(listed: ListedSize) -> dict[str, object]:
    one, request = listed.size, listed.size.request
    return {
        "name": one.name,
        "device": publishing.device_of(one.name),
        "spec": _spec(one),
        "gpus": request.gpus,
        "memory": None if request.amount is None else str(request.amount),
        "compute_percent": request.compute_percent,
        "policy": str(request.policy),
        "priority": str(request.priority),
        "grants": [grant.name for grant in listed.grants],
    }


def _size_text(one: PublishedSize) -> str:
    request = one.request
    memory = "a whole GPU" if request.amount is None else f"{request.amount} of a GPU"
    share = f" and {request.compute_percent}% of its compute time"
    several = f", of {request.gpus} GPUs each" if request.gpus > 1 else ""
    return f"{memory}{share if request.compute_percent else ''}{several}"


def _spec(one: PublishedSlice | PublishedSize) -> str:
    return str(CdiSpecs(one.cdi_dir).path(publishing.KIND, one.name))


def _json(listed: ListedSlice) -> dict[str, object]:
    one, grant = listed.slice, listed.grant
    parts = one.slices if grant is None else grant.slices
    return {
        "name": one.name,
        "device": publishing.device_of(one.name),
        "spec": _spec(one),
        "state": _state(listed),
        "slices": [
            {
                "gpu": part.gpu_uuid,
                "memory_bytes": part.memory_bytes,
                "compute_percent": part.compute_percent,
                "policy": str(part.policy),
                "priority": str(part.priority),
            }
            for part in parts
        ],
        "processes": [] if grant is None else [process.pid for process in grant.processes],
    }


def _state(listed: ListedSlice) -> str:
    if listed.grant is None:
        return "missing: run aliquot slice restore"
    if not CdiSpecs(listed.slice.cdi_dir).has(publishing.KIND, listed.slice.name):
        return _NO_SPEC
    return str(listed.grant.state)


def _shape(simulate: str | None) -> Shape | None:
    return parse_shape(simulate) if simulate else None
