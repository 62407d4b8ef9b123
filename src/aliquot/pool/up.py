"""Brings a pool up: its directory, database and API, then its controller until stopped."""

from __future__ import annotations

import os
import secrets
import signal
import tomllib
from typing import TYPE_CHECKING

from aliquot.model import format_count
from aliquot.model.errors import ArbiterError, InvalidValueError
from aliquot.placement.core.demand import WHOLE_MILLI
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.pool import api, processes
from aliquot.pool.controller import PoolController
from aliquot.pool.directory import directory_of, lock_directory, prepare
from aliquot.pool.json_files import write_json
from aliquot.pool.store import JobStore
from aliquot.pool.workers import LocalWorkers, prepare_runtime
from aliquot.slices import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aliquot.placement.elastic.resize import Rules
    from aliquot.slices import StateDirectory

QUEUE_EXAMPLE = "A queue is written as: [queues.NAME] weight = 2.0, quota = 4 (GPUs), limit = 6"


def bring_up(
    state: StateDirectory, rules: Rules, queues: Mapping[str, Queue], say: Callable[[str], None]
) -> None:
    """Run the pool of this machine until SIGTERM or SIGINT. Jobs keep running after that."""
    if state.directory == state_directory.SYSTEM != state_directory.own_directory():
        raise ArbiterError(
            f"the arbiter of this machine, in {state.directory}, belongs to root",
            "Only root can bring up a pool here. Without a pool use: aliquot run",
        )
    directory = directory_of(state)
    prepare(directory)
    lock = lock_directory(directory)
    try:
        pool = PoolController(
            directory,
            JobStore(directory.database),
            LocalWorkers(directory, prepare_runtime(directory)),
            rules,
            queues,
            say,
        )
        _serve(pool, say)
    finally:
        os.close(lock)


def _serve(pool: PoolController, say: Callable[[str], None]) -> None:
    status = pool.workers.arbiter_status()
    token = secrets.token_urlsafe(32)
    server = api.serve(pool, token)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pool.stop())
    pid = os.getpid()
    port = server.server_address[1]
    old = os.umask(0o077)
    try:
        fields = {"port": port, "token": token, "pid": pid, "start": processes.started_at(pid)}
        write_json(pool.directory.endpoint, fields)
    finally:
        os.umask(old)
    gpus = format_count(len(status.gpus), "GPU")
    jobs = format_count(len(pool.store.all(unfinished=True)), "job")
    say(f"up on {pool.directory}: {gpus}, {jobs}; {pool.directory.path}")
    try:
        pool.run()
    finally:
        server.shutdown()
        pool.directory.endpoint.unlink(missing_ok=True)
        left = [one for one in pool.store.all(unfinished=True) if one.state.slots]
        pool.store.close()
        if left:
            jobs = format_count(len(left), "job")
            say(f"down; still running: {jobs}; aliquot up continues them")


def read_queues(path: Path) -> dict[str, Queue]:
    """The queues in a TOML file; InvalidValueError if it is invalid."""
    try:
        tables = tomllib.loads(path.read_text("utf-8")).get("queues", {})
        return {name: _queue(name, dict(fields)) for name, fields in tables.items()}
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"{path} does not define valid queues: {error}", QUEUE_EXAMPLE
        ) from error


def _queue(name: str, fields: dict[str, float]) -> Queue:
    weight, quota, limit = (fields.pop(key, None) for key in ("weight", "quota", "limit"))
    if fields:
        raise ValueError(f"queue {name}: unknown field {', '.join(fields)}")
    return Queue(
        name,
        1.0 if weight is None else float(weight),
        Bound(0, 0) if quota is None else Bound(milli=int(quota * WHOLE_MILLI)),
        Bound() if limit is None else Bound(milli=int(limit * WHOLE_MILLI)),
    )
