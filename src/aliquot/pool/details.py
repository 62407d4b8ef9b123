"""What `aliquot describe` shows of the workers that a job has: their GPUs, processes and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aliquot.pool import logs, processes, supervisor
from aliquot.pool.json_files import read_json
from aliquot.pool.workers import grant_name
from aliquot.slices.grant_facts import overcommit_of

if TYPE_CHECKING:
    from aliquot.model import Grant
    from aliquot.pool.directory import PoolDirectory
    from aliquot.pool.store import StoredJob
    from aliquot.slices.arbiter_status import Status


def worker_details(
    directory: PoolDirectory, stored: StoredJob, status: Status | None
) -> list[dict[str, Any]]:
    """One object for each worker, by rank; `status` is the arbiter's, if it is known."""
    folder = directory.job(stored.job.number)
    grants = {} if status is None else {grant.name: grant for grant in status.grants}
    indices = {} if status is None else {one.gpu.uuid: one.gpu.index for one in status.gpus}
    found = []
    for slot in stored.state.slots:
        grant = grants.get(grant_name(stored, slot))
        owner = read_json(folder / str(slot) / supervisor.OWNER) or {}
        found.append(
            {
                "rank": slot.rank,
                "generation": slot.generation,
                "gpus": [indices.get(part.gpu_uuid) for part in grant.slices] if grant else [],
                "grant": None if grant is None else grant.name,
                "memory": None if grant is None else _memory(grant, status),
                "pids": _pids(owner),
            }
        )
    return found


def _memory(grant: Grant, status: Status | None) -> dict[str, Any]:
    """What a worker may use of its GPUs and does use; `turns`: how it shares one in turns."""
    own = {part.gpu_uuid for part in grant.slices}
    gpus = () if status is None or grant.turns is None else status.gpus
    turns = (
        overcommit_of(one, () if status is None else status.grants)
        for one in gpus
        if one.gpu.uuid in own
    )
    return {
        "limit_bytes": sum(part.memory_bytes for part in grant.slices),
        "used_bytes": sum(use.used_bytes for use in grant.use),
        "away_bytes": grant.away_bytes,
        "turns": next(filter(None, turns), None),
    }


def log_details(directory: PoolDirectory, number: int) -> list[dict[str, Any]]:
    """The log of each rank that has one."""
    ranks = logs.ranks_of(directory.job(number))
    return [{"rank": rank, "file": str(directory.log(number, rank))} for rank in ranks]


def _pids(owner: dict[str, Any]) -> list[int]:
    """The processes of a worker, without its supervisor."""
    pid = owner.get("supervisor")
    if not isinstance(pid, int) or processes.started_at(pid) != owner.get("start"):
        return []
    return sorted(processes.descendants(pid))
