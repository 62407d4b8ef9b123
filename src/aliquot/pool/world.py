"""The machine as a job's controller sees it, and what the controller can do to it.

It keeps the promises that `model.lifecycle` relies on: a slot runs one worker at most, a closed one
stays closed, GPUs are held for all slots or for none. All that it does may be done again. What it
knows is on disk and in the arbiter; what it keeps in memory only saves doing things twice.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aliquot import slices as grants
from aliquot.model import Hold, Life
from aliquot.model.errors import ArbiterError, NameInUseError, NoRoomError
from aliquot.model.status import Seen, Slot, Verb
from aliquot.pool import freezer, keeper, processes
from aliquot.pool.capacity import Plan
from aliquot.pool.slots import GRANT, STILL, SlotFolder, folders, read, write
from aliquot.slices import arbiter, checkpoint, control

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.devices import Driver
    from aliquot.model import Grant
    from aliquot.model.job import Job
    from aliquot.model.status import Action, Record
    from aliquot.pool.place import Place
    from aliquot.pool.store import Stored
    from aliquot.slices.control import Status

_START_AGAIN_SECONDS = 2.0  # a process that ended without doing what it is for

_Begun = dict[tuple[int, Slot], tuple[subprocess.Popen[bytes], float]]  # since when


@dataclass(frozen=True, slots=True)
class Machine:
    """What is needed to run programs in grants here."""

    state: Path
    driver: Driver
    library: Path
    unfreezable: str | None = None  # why programs cannot be frozen by the driver


class World:
    """All slots of all jobs on this machine."""

    def __init__(self, place: Place, machine: Machine) -> None:
        self._place, self._machine = place, machine
        self._refused: dict[int, tuple[int, str]] = {}
        self._told: set[tuple[int, Slot, object]] = set()
        self._keepers: _Begun = {}
        self._freezers: _Begun = {}

    def status(self) -> Status:
        """What the arbiter knows; it is started again if it has died."""
        arbiter.ensure(self._machine.state, self._machine.driver)
        return control.status(self._machine.state)

    def seen(self, stored: Stored, status: Status) -> Seen:
        """What one job's controller sees."""
        job, record = stored.job, stored.record
        generation, refused = self._refused.get(job.number, (0, ""))
        sights = {
            slot: sight
            for slot, folder in folders(self._place.job(job.number)).items()
            if (sight := folder.sight(record.generation)) is not None
        }
        return Seen(
            slots=sights,
            held=frozenset(held_by(job, status)),
            parked=frozenset(parked_by(job, status)),
            refused=refused if generation == record.generation else None,
            unfreezable=self._machine.unfreezable,
        )

    def do(self, action: Action, stored: Stored) -> None:
        """Do one thing for a job."""
        if action.verb is Verb.RESERVE:
            self._reserve(stored.job, stored.record, action.slots)
            return
        deed = {
            Verb.START: self._start,
            Verb.NOTIFY: self._notify,
            Verb.TERM: self._term,
            Verb.KILL: self._kill,
            Verb.VOID: self._void,
            Verb.RELEASE: self._release,
            Verb.FREEZE: self._freeze,
            Verb.PARK: self._park,
            Verb.THAW: self._thaw,
        }[action.verb]
        for slot in action.slots:
            deed(stored, slot)

    def tell_size(self, stored: Stored) -> None:
        """Tell programs that change their size as they run what it is."""
        for slot in stored.record.slots:
            if self._once(stored.job, slot, stored.record.generation):
                words = {"generation": stored.record.generation, "size": stored.record.size}
                write(self._folder(stored.job, slot).worker / "size", words)

    def forget(self, number: int) -> None:
        """A job is over."""
        self._told = {key for key in self._told if key[0] != number}
        self._refused.pop(number, None)

    def reap(self) -> None:
        """Let go of processes of ours that have ended."""
        self._keepers = _at_work(self._keepers)
        self._freezers = _at_work(self._freezers)

    # --- deeds ---

    def _reserve(self, job: Job, record: Record, slots: tuple[Slot, ...]) -> None:
        if any(self._folder(job, slot).claimed for slot in slots):
            self._take_again(job, record, slots)
            return
        status = self.status()
        made: list[str] = []
        try:
            there = {grant.name for grant in status.grants}
            mine = {grant_name(job, slot) for slot in slots}
            plan = Plan.of(status).without(mine)  # those are half made
            placed = plan.put_beside_parked(job.request, len(slots))
            for slot, parts in zip(slots, placed, strict=True):
                name, folder = grant_name(job, slot), self._folder(job, slot)
                folder.make()
                if name in there:
                    control.end(self._machine.state, name)
                marked = control.make(self._machine.state, name, parts, kept=True)
                made.append(name)
                write(folder.path / GRANT, {"grant": marked})
        except (NoRoomError, NameInUseError) as error:
            self._refused[job.number] = record.generation, error.message
            self._end_all(made)
        except BaseException:
            self._end_all(made)
            raise

    def _take_again(self, job: Job, record: Record, slots: tuple[Slot, ...]) -> None:
        """The GPUs that frozen workers had, for all or for none."""
        state, names = self._machine.state, [grant_name(job, slot) for slot in slots]
        try:
            for name in names:
                control.hold(state, name, Hold.OPEN)
            checkpoint.check_room(control.status(state), names)
        except control.NoArbiterError:
            raise
        except (NoRoomError, ArbiterError) as error:
            self._refused[job.number] = record.generation, error.message
            for name in names:
                with suppress(ArbiterError):  # one that is broken, or gone, holds nothing
                    control.hold(state, name, Hold.PARKED)

    def _start(self, stored: Stored, slot: Slot) -> None:
        job, folder = stored.job, self._folder(stored.job, slot)
        granted = read(folder.path / GRANT)
        if granted is None:  # the pool died while it was made
            control.end(self._machine.state, grant_name(job, slot))
            return
        if (job.number, slot) in self._keepers:
            return
        write(folder.path / keeper.ORDER, self._order(stored, slot, granted["grant"]))
        self._keepers[job.number, slot] = self._begin(keeper.__name__, job, slot), time.monotonic()

    def _begin(self, program: str, job: Job, slot: Slot) -> subprocess.Popen[bytes]:
        """A process for one slot that outlives the pool; what goes wrong is in the rank's log."""
        with self._place.log(job.number, slot.rank).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", program, str(self._folder(job, slot).path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={**os.environ, **self._machine.driver.variables},
            )

    def _order(self, stored: Stored, slot: Slot, grant: str) -> dict[str, Any]:
        job, machine = stored.job, self._machine
        own = {**stored.submission.environment, **self._variables(stored, slot)}
        return {
            "program": stored.submission.program,
            "command": list(job.command),
            "directory": stored.submission.directory,
            "environment": grants.tenant_environment(own, machine.library, machine.driver, grant),
            "state": str(machine.state),
            "grant": grant_name(job, slot),
            "driver": {"cuda": str(machine.driver.cuda), "nvml": str(machine.driver.nvml)},
        }

    def _variables(self, stored: Stored, slot: Slot) -> dict[str, str]:
        job, record = stored.job, stored.record
        return {
            "RANK": str(slot.rank),
            "WORLD_SIZE": str(record.size),
            "LOCAL_RANK": "0",  # a worker sees its own GPUs and no others
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(slot.rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port(job, record.slots[0].generation)),
            "ALIQUOT_JOB": job.name,
            "ALIQUOT_JOB_NUMBER": str(job.number),
            "ALIQUOT_GENERATION": str(slot.generation),
            "ALIQUOT_WORKER": str(self._folder(job, slot).worker),
        }

    def _port(self, job: Job, generation: int) -> int:
        """A port that was free when the generation began; the same for all its workers."""
        path = self._place.job(job.number) / f"port-{generation}"
        if (told := read(path)) is not None:
            return int(told["port"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        write(path, {"port": port})
        return port

    def _notify(self, stored: Stored, slot: Slot) -> None:
        record, leaving = stored.record, stored.record.leaving
        if leaving is None or not self._once(stored.job, slot, ("notice", record.generation)):
            return
        words = {
            "generation": record.generation,
            "kind": record.state.notice,
            "size": leaving.size,
            "deadline": leaving.until,
        }
        write(self._folder(stored.job, slot).worker / "notice", words)

    def _term(self, stored: Stored, slot: Slot) -> None:
        if self._once(stored.job, slot, Verb.TERM):
            self._folder(stored.job, slot).tell(signal.SIGTERM)

    def _kill(self, stored: Stored, slot: Slot) -> None:
        """Its keeper kills all of it; a keeper that does not (it is stopped) is killed with it."""
        folder = self._folder(stored.job, slot)
        if self._once(stored.job, slot, Verb.KILL):
            folder.tell(signal.SIGUSR1)
        elif self._is_overdue(stored):
            folder.tell(signal.SIGKILL)

    def _void(self, stored: Stored, slot: Slot) -> None:
        self._folder(stored.job, slot).void()

    def _release(self, stored: Stored, slot: Slot) -> None:
        """No process joins any more; those that are left in it belong to nobody."""
        name = grant_name(stored.job, slot)
        if control.end(self._machine.state, name):
            return
        found = (one for one in control.status(self._machine.state).grants if one.name == name)
        for process in (process for grant in found for process in grant.processes):
            if (start := processes.started_at(process.pid)) is not None:
                processes.tell(process.pid, start, signal.SIGKILL)

    def _freeze(self, stored: Stored, slot: Slot) -> None:
        self._let_stand(stored, slot, frozen=True)

    def _thaw(self, stored: Stored, slot: Slot) -> None:
        self._let_stand(stored, slot, frozen=False)

    def _let_stand(self, stored: Stored, slot: Slot, *, frozen: bool) -> None:
        key, folder = (stored.job.number, slot), self._folder(stored.job, slot)
        asked = {"generation": stored.record.generation, "frozen": frozen}
        if read(folder.path / STILL) != asked:
            write(folder.path / STILL, asked)
        if key not in self._freezers:
            begun = self._begin(freezer.__name__, stored.job, slot)
            self._freezers[key] = begun, time.monotonic()

    def _park(self, stored: Stored, slot: Slot) -> None:
        control.hold(self._machine.state, grant_name(stored.job, slot), Hold.PARKED)

    # --- parts ---

    def _is_overdue(self, stored: Stored) -> bool:
        leaving = stored.record.leaving
        return leaving is not None and time.time() >= leaving.until + stored.job.grace_seconds

    def _end_all(self, names: list[str]) -> None:
        for name in names:
            with suppress(ArbiterError):
                control.end(self._machine.state, name)

    def _folder(self, job: Job, slot: Slot) -> SlotFolder:
        return SlotFolder(self._place.job(job.number) / str(slot))

    def _once(self, job: Job, slot: Slot, what: object) -> bool:
        """Whether this was not done before, as far as this pool remembers."""
        key = (job.number, slot, what)
        if key in self._told:
            return False
        self._told.add(key)
        return True


def grant_name(job: Job, slot: Slot) -> str:
    """The name of the grant of one worker."""
    return f"{job.name}.{job.number}.{slot}"


def held_by(job: Job, status: Status) -> list[Slot]:
    """The slots for which a job holds GPUs."""
    found = _grants_of(job, status).items()
    return [slot for slot, grant in found if grant.hold is not Hold.PARKED]


def parked_by(job: Job, status: Status) -> dict[Slot, Grant]:
    """The slots whose frozen workers have given their GPUs back, and what they had."""
    found = _grants_of(job, status).items()
    return {slot: grant for slot, grant in found if grant.hold is Hold.PARKED}


def _grants_of(job: Job, status: Status) -> dict[Slot, Grant]:
    prefix = f"{job.name}.{job.number}."
    found = {}
    for grant in status.grants:
        if grant.name.startswith(prefix) and grant.life is not Life.OWNED:
            generation, _, rank = grant.name.removeprefix(prefix).partition(".")
            if generation.isdecimal() and rank.isdecimal():
                found[Slot(int(generation), int(rank))] = grant
    return found


def _at_work(begun: _Begun) -> _Begun:
    """Less those that have ended, after a pause: what did not come about is tried again then."""
    over = time.monotonic() - _START_AGAIN_SECONDS
    return {key: one for key, one in begun.items() if one[0].poll() is None or one[1] > over}


def make_machine(place: Place) -> Machine:
    """Prepare what is needed to run programs in grants on this machine."""
    state = place.state
    driver = state.driver()
    grants.prepare(state)
    library = grants.prepare_library(driver)
    return Machine(state.directory, driver, library, checkpoint.unsupported(driver))


__all__ = ["Machine", "World", "grant_name", "held_by", "make_machine", "parked_by"]
