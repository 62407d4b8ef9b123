"""GPUs and grants as the API shows them. What is not known is null, never 0."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aliquot.model import GrantState
from aliquot.pool.peers import user_name
from aliquot.slices.gpu_choice import free_bytes, free_percent
from aliquot.slices.grant_facts import command_of, state_of
from aliquot.slices.rates import key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.devices import Telemetry
    from aliquot.model import ComputeUse, Grant, Process, Slice, SliceUse
    from aliquot.slices import LocalMachine
    from aliquot.slices.arbiter_status import SharedGpu
    from aliquot.slices.rates import Key, Rates


def gpu_view(
    one: SharedGpu, grants: tuple[Grant, ...], telemetry: Mapping[str, Telemetry]
) -> dict[str, Any]:
    """A GPU: what it has, what is granted and used of it, and what the driver says of it."""
    gpu, known = one.gpu, telemetry.get(one.gpu.uuid)
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memory_bytes": gpu.memory_bytes,
        "used_bytes": gpu.used_bytes if one.answers else None,
        "granted_bytes": one.granted_bytes,
        "free_bytes": free_bytes(one),
        "free_percent": free_percent(one, grants),
        "healthy": one.answers,
        "contended": one.contended,
        "strength": gpu.strength or None,
        "context_bytes": one.context_bytes or None,
        "telemetry": None if known is None else asdict(known),
        "outside": [asdict(process) for process in one.strangers],
    }


def grant_view(machine: LocalMachine, grant: Grant, rates: Mapping[Key, Rates]) -> dict[str, Any]:
    """A grant with its slices and processes; of another user's only what this user may see."""
    hidden, parking = grant.is_hidden, grant.parking
    indexes = {one.gpu.uuid: one.gpu.index for one in machine.status.gpus}
    parts = zip(grant.slices, grant.use, grant.compute, strict=True)
    return {
        "name": None if hidden else grant.name,
        "id": f"{grant.name}@{grant.created:.3f}",
        "user": user_name(grant.owner_uid),
        "own": grant.owner_uid == os.geteuid(),
        "hidden": hidden,
        "state": state_of(grant),
        "created": grant.created,
        "command": None if hidden else command_of(grant) or None,
        "broken": grant.broken,
        "swappable": grant.is_swappable,
        "away_bytes": grant.away_bytes if grant.is_swappable and not hidden else None,
        "parked_seconds": None if parking is None else parking.for_seconds,
        "park_after_seconds": None if parking is None else parking.after_seconds,
        "parked_because": None if parking is None else parking.reason,
        "slices": [
            {
                "gpu_index": indexes.get(part.gpu_uuid),
                **_slice_view(grant, part, use, compute, rates),
            }
            for part, use, compute in parts
        ],
        "processes": [] if hidden else [_process_view(one) for one in grant.processes],
    }


def _slice_view(
    grant: Grant, part: Slice, use: SliceUse, compute: ComputeUse, rates: Mapping[Key, Rates]
) -> dict[str, Any]:
    now = rates.get(key(grant, part.gpu_uuid))
    active = grant.state is GrantState.ACTIVE
    return {
        "gpu": part.gpu_uuid,
        "memory_bytes": part.memory_bytes,
        "used_bytes": use.used_bytes,
        "compute_percent": part.compute_percent or None,
        "weight_percent": compute.weight_percent or None,
        "got_ratio": None if now is None else now.got_ratio,
        "policy": str(part.policy),
        "priority": str(part.priority),
        "turn": str(compute.turn),
        "shares_work": None if str(compute.gates) == "untried" else str(compute.gates) == "work",
        "idle_seconds": compute.idle_seconds if active else None,
        "wait_p99_seconds": compute.wait_p99_seconds,
    }


def _process_view(process: Process) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "name": process.name,
        "stopped": process.stopped,
        "used_bytes": sum(use.used_bytes for use in process.use),
        "ungated": process.ungated,
    }
