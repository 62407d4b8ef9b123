"""One view of the machine and its jobs, read once for all pages, and what slices used lately.

A reading takes at most a twentieth of the time: if the pool or the arbiter needs long to answer,
it is asked less often. Nothing here waits for a page.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.console.deltas import difference
from aliquot.console.history_store import now_and_steady
from aliquot.console.job_view import job_view, run_view
from aliquot.console.machine_view import gpu_view, grant_view
from aliquot.console.recorder import gpu_history, samples_of, slice_history, uses_of
from aliquot.devices import Sensors
from aliquot.model.errors import AliquotError, NoSuchGpuError
from aliquot.pool.client import NoPoolError, PoolClient
from aliquot.pool.directory import directory_of
from aliquot.pool.peers import this_user
from aliquot.slices import control
from aliquot.slices.grant_facts import notes, telemetry
from aliquot.slices.rates import Key, key, slice_rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.console.history_store import HistoryStore
    from aliquot.slices import LocalMachine, StateDirectory
    from aliquot.slices.arbiter_status import Status
    from aliquot.slices.rates import Rates

WATCHED_SECONDS = 1.0  # between two readings while a page is open
ALONE_SECONDS = 5.0  # else, so that a page that opens has the last minutes
WORK_RATIO = 0.05
RECENT_SECONDS = 3600.0  # finished jobs that the live list has
HISTORY_SECONDS = 600.0
MOST_HISTORIES = 4096
MOST_JOBS = 500  # in the live list; the API has all

_TIMEOUT = 10.0
_UNREADABLE = "the console cannot read the machine now"


@dataclass(frozen=True, slots=True)
class ConsoleSnapshot:
    """What is known at one time; `machine` and `jobs` are sent to pages as they are."""

    at: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, Any] = field(default_factory=dict)
    found: LocalMachine | None = None

    def since(self, before: ConsoleSnapshot) -> dict[str, bytes | None]:
        """The differences since an earlier one, by the names of events; None: all is new."""
        found: dict[str, bytes | None] = {}
        for name, old, new in (
            ("machine", before.machine, self.machine),
            ("jobs", before.jobs, self.jobs),
        ):
            delta = difference(old, new) if old else None
            found[name] = None if delta is None else _json(delta) if any(delta.values()) else b""
        return found

    def whole(self) -> dict[str, bytes]:
        """All of it, by the names of events."""
        return {"machine": _json(self.machine), "jobs": _json(self.jobs)}


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


@dataclass(slots=True)
class History:
    """What one slice used and got, in the last minutes."""

    points: deque[tuple[float, int, float | None]] = field(default_factory=deque)

    def add(self, at: float, used_bytes: int, got_ratio: float | None) -> None:
        """Add a point, and forget those that are too old.

        And those of the future: the clock was set back, and they would not grow old for long.
        """
        while self.points and self.points[-1][0] > at:
            self.points.pop()
        self.points.append((at, used_bytes, got_ratio))
        while self.points[0][0] < at - HISTORY_SECONDS:
            self.points.popleft()


class Machine:
    """Reads one machine: its arbiter, its pool and its driver, with this user's rights."""

    def __init__(self, state: StateDirectory, store: HistoryStore) -> None:
        self.state, self.store = state, store
        self.pool = PoolClient(directory_of(state), _TIMEOUT)
        self._sensors = Sensors()
        self._before: Status | None = None
        self._histories: dict[Key, History] = {}

    @property
    def name(self) -> str:
        """The machine's name for people."""
        return str(self.pool.directory)

    def find(self) -> LocalMachine:
        """The machine with the arbiter's status of now; NoArbiterError if there is none."""
        slices.revive(self.state)
        return slices.LocalMachine(self.state, control.status(self.state.directory, _TIMEOUT))

    def read(self) -> ConsoleSnapshot:
        """Read everything once. What does not answer is missing, and `problems` says why."""
        at, problems = time.time(), []
        found = None
        try:
            found = self.find()
        except control.SilentArbiterError as error:
            problems.append(error.one_line)
        except AliquotError:
            pass  # no arbiter runs: nothing is granted
        rates = {} if found is None else slice_rates(self._before, found.status)
        self._before = None if found is None else found.status
        if found is not None:
            self._remember(at, found, rates)
        jobs, is_up = self._jobs(problems)
        problems += [] if self.store.problem is None else [self.store.problem]
        view = self._view(at, found, rates, problems, pool_is_up=is_up)
        self.store.add(*now_and_steady(), samples_of(view), uses_of(view, jobs))
        return ConsoleSnapshot(at, view, jobs, found)

    def gpu_history(self, index: int, span: str) -> dict[str, Any]:
        """What a GPU used in a day or a month."""
        for gpu in self.find().status.gpus:
            if gpu.gpu.index == index:
                return gpu_history(self.store, gpu.gpu.uuid, span, time.time())
        raise NoSuchGpuError(f"there is no GPU {index}", "See them with: aliquot gpus")

    def history(self, found: LocalMachine | None, name: str, span: str | None) -> dict[str, Any]:
        """What the slices of a grant used and got: lately, or as the store has it."""
        checked = slices.check_address(name)
        if span is not None:
            own = [] if found is None else [one for one in found.status.grants if one.name == name]
            past = f"{own[0].name}@{own[0].created:.3f}" if own else None
            past = past or self.store.last_named(f"{name}@")
            if past is not None:
                return slice_history(self.store, past, span, time.time())
        if found is None:
            raise control.NoArbiterError("no arbiter runs here, so there are no grants")
        _, grant = slices.find_grant([found], checked)
        histories = [
            (part.gpu_uuid, list(self._histories.get(key(grant, part.gpu_uuid), History()).points))
            for part in grant.slices
        ]
        return {
            "step": int(ALONE_SECONDS),
            "since": time.time() - HISTORY_SECONDS,
            "slices": [
                {
                    "gpu": uuid,
                    "times": [point[0] for point in points],
                    "part_bytes": [None for _ in points],
                    "used_bytes": [point[1] for point in points],
                    "got_ratio": [point[2] for point in points],
                }
                for uuid, points in histories
            ],
        }

    def _remember(self, at: float, found: LocalMachine, rates: Mapping[Key, Rates]) -> None:
        kept: dict[Key, History] = {}
        for grant in found.status.grants:
            for part, use in zip(grant.slices, grant.use, strict=True):
                which = key(grant, part.gpu_uuid)
                kept[which] = self._histories.get(which, History())
                kept[which].add(at, use.used_bytes, rates[which].got_ratio)
                if len(kept) == MOST_HISTORIES:
                    break
        self._histories = kept

    def _jobs(self, problems: list[str]) -> tuple[dict[str, Any], bool]:
        """The live list of jobs, and whether a pool is up."""
        try:
            listing = self.pool.listing(recent=RECENT_SECONDS)
        except NoPoolError:
            return {"up": False, "items": [], "left_out": 0}, False
        except AliquotError as error:
            problems.append(error.one_line)
            return {"up": True, "items": [], "left_out": 0}, True
        jobs = [*map(run_view, listing.runs), *map(job_view, reversed(listing.jobs))]
        left_out = max(0, len(jobs) - MOST_JOBS)
        return {"up": True, "items": jobs[:MOST_JOBS], "left_out": left_out}, True

    def _view(
        self,
        at: float,
        found: LocalMachine | None,
        rates: Mapping[Key, Rates],
        problems: list[str],
        *,
        pool_is_up: bool,
    ) -> dict[str, Any]:
        shape = self.state.shape
        view: dict[str, Any] = {
            "time": at,
            "name": self.name,
            "simulated": None if shape is None else str(shape),
            "user": this_user().name,
            "arbiter_is_up": found is not None,
            "pool_is_up": pool_is_up,
            "driver_version": None,
            "notes": problems,
            "gpus": [],
            "grants": [],
        }
        if found is None:
            return view
        status, now = found.status, telemetry(found, self._sensors)
        return {
            **view,
            "driver_version": status.driver_version or None,
            "notes": [*problems, *notes((found,))],
            "gpus": [gpu_view(one, status.grants, now) for one in status.gpus],
            "grants": [
                grant_view(found, grant, rates)
                for grant in sorted(status.grants, key=lambda one: (one.created, one.name))
            ],
        }


class LiveSnapshots:
    """The newest snapshot of a machine. `watch` waits for the next one."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.newest = ConsoleSnapshot()
        self.number = 0
        self.deltas: dict[str, bytes | None] = {}
        self.watchers = 0
        self.ended = False
        self._whole: dict[str, bytes] | None = None
        self._reading = asyncio.Lock()
        self._next = asyncio.Event()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Read on and on, also after a reading that failed: a disk may be full for a while."""
        while True:
            begun = time.monotonic()
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001 - the next reading may succeed
                self._note(error)
            took = time.monotonic() - begun
            pause = WATCHED_SECONDS if self.watchers else ALONE_SECONDS
            self._wake.clear()
            try:
                async with asyncio.timeout(max(pause - took, took / WORK_RATIO)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def refresh(self) -> None:
        """Read now, and send it to all pages."""
        async with self._reading:
            before, watched = self.newest, self.watchers > 0

            def read() -> tuple[ConsoleSnapshot, dict[str, bytes | None]]:
                found = self.machine.read()
                return found, found.since(before) if watched else {}

            self.newest, self.deltas = await asyncio.to_thread(read)
            self.number += 1
            self._whole = None
        self._tell()

    def _note(self, error: Exception) -> None:
        """Say beside what was read before that the machine cannot be read now."""
        view = self.newest.machine
        if view:
            notes = [one for one in view["notes"] if not one.startswith(_UNREADABLE)]
            view = {**view, "notes": [*notes, f"{_UNREADABLE}: {error}"]}
            self.newest, self.deltas = replace(self.newest, machine=view), {}
            self.number += 1
            self._whole = None
            self._tell()

    def event_bytes(self, last: int) -> list[tuple[bytes, bytes]]:
        """Events for a page that has got the snapshot `last`: their names and contents."""
        found = []
        for name in ("machine", "jobs"):
            delta = self.deltas.get(name) if last == self.number - 1 else None
            if delta is None:
                self._whole = self._whole or self.newest.whole()
                found.append((name.encode(), self._whole[name]))
            elif delta:
                found.append((f"{name}-delta".encode(), delta))
        return found

    async def fresh(self) -> ConsoleSnapshot:
        """A snapshot that is not older than a page's, for requests of programs."""
        if time.time() - self.newest.at > WATCHED_SECONDS:
            await self.refresh()
        return self.newest

    def end(self) -> None:
        """End all streams."""
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        arrived, self._next = self._next, asyncio.Event()
        arrived.set()

    async def next(self) -> None:
        """Wait for the next snapshot."""
        await self._next.wait()

    def watch(self) -> None:
        """Count a page that has opened; the first one is not kept waiting."""
        self.watchers += 1
        if self.watchers == 1:
            self._wake.set()

    def unwatch(self) -> None:
        """Count a page that has closed."""
        self.watchers -= 1
