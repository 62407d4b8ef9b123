"""Bringing a pool up: its folder, its database, its door; then round after round until stopped."""

from __future__ import annotations

import os
import secrets
import signal
import tomllib
from typing import TYPE_CHECKING

from aliquot.model.errors import ArbiterError, InvalidValueError
from aliquot.placement.demand import WHOLE_MILLI
from aliquot.placement.queues import Bound, Queue
from aliquot.pool import api, place, processes
from aliquot.pool.service import Pool
from aliquot.pool.slots import write
from aliquot.pool.store import Store
from aliquot.pool.world import World, make_machine
from aliquot.slices import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aliquot.placement.elastic import Rules
    from aliquot.slices import StateDirectory

QUEUE_EXAMPLE = "A queue is written as: [queues.NAME] weight = 2.0, quota = 4 (GPUs), limit = 6"


def bring_up(
    state: StateDirectory, rules: Rules, queues: Mapping[str, Queue], say: Callable[[str], None]
) -> None:
    """Be the pool of this machine until SIGTERM or SIGINT; jobs run on after that."""
    if state.directory == state_directory.SYSTEM != state_directory.own_directory():
        raise ArbiterError(
            f"the arbiter of this machine, in {state.directory}, is root's",
            "Only root can bring up a pool here. Without one there is: aliquot run",
        )
    where = place.place_of(state)
    place.prepare(where)
    lock = place.lock(where)
    try:
        pool = Pool(
            where, Store(where.database), World(where, make_machine(where)), rules, queues, say
        )
        _serve(pool, say)
    finally:
        os.close(lock)


def _serve(pool: Pool, say: Callable[[str], None]) -> None:
    status = pool.world.status()
    token = secrets.token_urlsafe(32)
    server = api.serve(pool, token)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: pool.stop())
    pid = os.getpid()
    port = server.server_address[1]
    old = os.umask(0o077)
    try:
        words = {"port": port, "token": token, "pid": pid, "start": processes.started_at(pid)}
        write(pool.place.door, words)
    finally:
        os.umask(old)
    jobs = len(pool.store.all(unfinished=True))
    say(f"up on {pool.place}: {len(status.gpus)} GPUs, {jobs} jobs; {pool.place.directory}")
    try:
        pool.run()
    finally:
        server.shutdown()
        pool.place.door.unlink(missing_ok=True)
        left = [one for one in pool.store.all(unfinished=True) if one.record.slots]
        pool.store.close()
        if left:
            say(f"down; {len(left)} jobs run on: aliquot up takes them up again")


def read_queues(path: Path) -> dict[str, Queue]:
    """Queues from a TOML file; InvalidValueError where it cannot be understood."""
    try:
        tables = tomllib.loads(path.read_text("utf-8")).get("queues", {})
        return {name: _queue(name, dict(words)) for name, words in tables.items()}
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"{path} cannot be read as queues: {error}", QUEUE_EXAMPLE
        ) from error


def _queue(name: str, words: dict[str, float]) -> Queue:
    weight, quota, limit = (words.pop(key, None) for key in ("weight", "quota", "limit"))
    if words:
        raise ValueError(f"queue {name} has no {', '.join(words)}")
    return Queue(
        name,
        1.0 if weight is None else float(weight),
        Bound(0, 0) if quota is None else Bound(milli=int(quota * WHOLE_MILLI)),
        Bound() if limit is None else Bound(milli=int(limit * WHOLE_MILLI)),
    )
