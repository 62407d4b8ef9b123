"""Instances of GPUs (MIG) for requests with --isolation hardware: made, adopted and destroyed.

    instances.json   an entry for each instance that Aliquot has made, or is about to make
    instances.lock   held while instances are chosen, made and destroyed

Each step is such that a crash before or after it is put right by the next request. An entry is on
disk before its instance is made, and goes after the instance is destroyed. An instance is
needed while its process is about to make a grant of it, and then while a grant or a program uses
it; the next request destroys those that nobody needs.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

from aliquot.devices.inventory import nvml_session
from aliquot.model.errors import (
    AliquotError,
    DriverError,
    InstanceError,
    NoCapacityError,
    StateError,
)
from aliquot.model.grant import Isolation
from aliquot.model.instance import Place
from aliquot.model.selection import GpuSelection
from aliquot.slices import arbiter_process, control, procfs
from aliquot.slices.instance_plan import Entry, choose, instance_at, lost, unknown
from aliquot.slices.visible_devices import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from aliquot.devices import Driver
    from aliquot.model import Request
    from aliquot.model.instance import DividedGpu
    from aliquot.slices.state_directory import StateDirectory

UNKNOWN = "ALIQUOT_UNKNOWN_INSTANCES"
INSTEAD = "Or ask for a whole GPU, which nobody else gets: leave out --isolation and the amounts."

_FILE, _LOCK = "instances.json", "instances.lock"
_VERSION = 1
_LISTED_SECONDS = 60.0  # until the arbiter knows a new instance
_POLL_SECONDS = 0.05


class InstanceMaker(Protocol):
    """What makes and destroys instances (`devices.mig.NvmlInstances`)."""

    def read(self) -> list[DividedGpu]:
        """The GPUs in MIG mode, with their instances as they are now."""
        ...

    def make(self, place: Place) -> None:
        """Make a GPU instance exactly there."""
        ...

    def divide(self, place: Place) -> None:
        """Make the compute instance that has all of it."""
        ...

    def undivide(self, place: Place) -> None:
        """Destroy the compute instances there; an error if a program uses one."""
        ...

    def destroy(self, place: Place) -> None:
        """Destroy the GPU instance there, which has no compute instance."""
        ...


class OwnInstances:
    """The instances of the requests of one state directory.

    `used` are the UUIDs of MIG devices that grants have; `adopts`: instances that somebody else has
    made, and that nobody uses, may answer requests.
    """

    def __init__(
        self,
        folder: Path,
        gpus: InstanceMaker,
        used: Callable[[], Collection[str]],
        is_alive: Callable[[Entry], bool],
        *,
        adopts: bool,
    ) -> None:
        self._folder, self._gpus, self._used = folder, gpus, used
        self._is_alive, self._adopts = is_alive, adopts

    def acquire(self, request: Request, pid: int, started: int) -> str:
        """The MIG device for a request of that process; NoCapacityError if there is no place."""
        with self._locked():
            self._clean()
            entries, gpus = self._entries(), self._read()
            candidates = unknown(entries, gpus) if self._adopts else []
            allowed = [one for one in gpus if _allows(request, one)]
            if not allowed:
                raise _no_gpu(gpus)
            chosen = choose(request, allowed, [one.place for one in entries], candidates)
            if chosen is None:
                raise _no_place(request, allowed)
            adopted = chosen.instance is not None
            entry = Entry(chosen.place, pid, started, adopted)
            self._store([*entries, entry])
            if not adopted:
                self._make(entry)
            made = instance_at(entry.place, self._read())
            if made is None or made.device is None:
                raise InstanceError(f"the new instance at {_where(entry.place)} is gone", INSTEAD)
            return made.device

    def release(self, pid: int, started: int) -> None:
        """Give back what that process has acquired, unless something uses it."""
        with self._locked():
            self._clean(ended=(pid, started))

    def confirm(self, pid: int, started: int) -> None:
        """A grant has what that process has acquired: it is needed as long as the grant uses it."""
        with self._locked():
            entries = self._entries()
            granted = [
                replace(one, granted=True) if (one.pid, one.started) == (pid, started) else one
                for one in entries
            ]
            if granted != entries:
                self._store(granted)

    def clean(self) -> None:
        """Destroy the instances that nobody needs any more."""
        with self._locked():
            self._clean()

    def _make(self, entry: Entry) -> None:
        """Make what the entry reserves; if that fails, the entry goes and nothing is left."""
        try:
            self._gpus.make(entry.place)
            self._gpus.divide(entry.place)
        except Exception:
            self._drop(entry)
            raise

    def _clean(self, ended: tuple[int, int] | None = None) -> None:
        """Drop the entries that nobody needs. What cannot be destroyed now keeps its entry."""

        def needs(entry: Entry) -> bool:
            return (entry.pid, entry.started) != ended and self._is_alive(entry)

        for entry in lost(self._entries(), self._read(), needs):
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        gpus = self._read()
        if all(one.uuid != entry.place.gpu for one in gpus):
            return  # it does not answer: the next request looks
        if not entry.adopted and instance_at(entry.place, gpus) is not None:
            try:
                self._gpus.undivide(entry.place)
                self._gpus.destroy(entry.place)
            except Exception:  # noqa: BLE001 - NVML says that it is in use: the next request looks
                return
        self._store([one for one in self._entries() if one != entry])

    def _read(self) -> list[DividedGpu]:
        used = self._used()
        return [
            replace(
                divided,
                instances=tuple(
                    replace(one, is_used=one.is_used or one.device in used)
                    for one in divided.instances
                ),
            )
            for divided in self._gpus.read()
        ]

    # --- the file ---

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"{self._folder / _LOCK} cannot be opened: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _entries(self) -> list[Entry]:
        path = self._folder / _FILE
        try:
            stored = json.loads(path.read_text("utf-8"))
            if stored["version"] != _VERSION:
                raise ValueError(f"it is of version {stored['version']}")  # noqa: TRY301
            return [Entry(**{**one, "place": Place(**one["place"])}) for one in stored["entries"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"the list of instances {path} cannot be read: {error}",
                "Correct or remove the file: instances that it named are then not Aliquot's.",
            ) from error

    def _store(self, entries: Sequence[Entry]) -> None:
        new = self._folder / f".{_FILE}.new"
        content = {"version": _VERSION, "entries": [asdict(one) for one in entries]}
        try:
            with new.open("w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._folder / _FILE)
        except OSError as error:
            raise StateError(
                f"the list of instances {self._folder / _FILE} cannot be written: {error}"
            ) from error


def _allows(request: Request, divided: DividedGpu) -> bool:
    """Whether --gpu and --not-gpu allow instances of the GPU, which they name by UUID."""
    which = request.which

    def means(word: str) -> bool:
        return divided.uuid.startswith(word)

    if any(map(means, which.excluded)):
        return False
    return not which.named or any(map(means, which.named))


def _no_gpu(gpus: Sequence[DividedGpu]) -> InstanceError:
    if gpus:
        there = ", ".join(one.uuid for one in gpus)
        return InstanceError(
            f"--gpu and --not-gpu leave no GPU in MIG mode; in MIG mode: {there}",
            f"Name one by its UUID or the beginning of its UUID. {INSTEAD}",
        )
    return InstanceError(
        "--isolation hardware: no GPU of this machine is in MIG mode",
        "Aliquot does not switch it. While nothing uses the GPU: sudo nvidia-smi -i GPU -mig 1. "
        + INSTEAD,
    )


def _no_place(request: Request, gpus: Sequence[DividedGpu]) -> NoCapacityError:
    asked = "all of it" if request.amount is None else str(request.amount)
    compute = f" and {request.compute_percent}%" if request.compute_percent else ""
    lines = (
        f"  {divided.uuid}: "
        + (", ".join(_of_profile(divided, one.place) for one in divided.instances) or "no instance")
        for divided in gpus
    )
    return NoCapacityError(
        "\n".join(
            [f"no GPU in MIG mode has a place for {asked}{compute}; instances there:", *lines]
        ),
        f"Request less, or wait until others have ended. {INSTEAD}",
    )


def _of_profile(divided: DividedGpu, place: Place) -> str:
    names = {one.id: one.name.removeprefix("MIG ") for one in divided.profiles}
    return f"{names.get(place.profile, 'another profile')} at {place.start}"


def _where(place: Place) -> str:
    return f"memory slice {place.start} of {place.gpu}"


def is_alive(entry: Entry) -> bool:
    """Whether the process of an entry lives."""
    return procfs.started_at(entry.pid) == entry.started


def adopts_unknown() -> bool:
    """Whether instances that somebody else has made may answer requests."""
    given = os.environ.get(UNKNOWN, "leave")
    if given not in {"adopt", "leave"}:
        raise InstanceError(f"{UNKNOWN} is {given!r}", "Set it to adopt or leave.")
    return given == "adopt"


@contextmanager
def instance_for(state: StateDirectory, driver: Driver, request: Request) -> Iterator[Request]:
    """The request for all of a new instance; given back if the caller fails to make its grant.

    The caller makes the grant inside this context.
    """
    _check(driver)
    arbiter_process.ensure(state.directory, driver)
    pid = threading.get_native_id()  # not the process's: its other threads may make grants too
    started = procfs.started_at(pid)
    assert started is not None  # noqa: S101 - this thread lives
    try:
        with _own_instances(state, driver) as own:
            device = own.acquire(request, pid, started)
        _await_listed(state, device)
        yield replace(
            request,
            memory=None,
            compute_percent=0,
            isolation=Isolation.SOFT,
            which=GpuSelection(named=(device,)),
            min_strength=0.0,
        )
        with _own_instances(state, driver) as own:
            own.confirm(pid, started)
    except BaseException:
        with suppress(AliquotError), _own_instances(state, driver) as own:
            own.release(pid, started)
        raise


@contextmanager
def _own_instances(state: StateDirectory, driver: Driver) -> Iterator[OwnInstances]:
    """The own of a state directory, while a session with NVML lasts."""
    from aliquot.devices.mig import NvmlInstances  # noqa: PLC0415 - imported when needed

    def used() -> frozenset[str]:
        grants = control.status(state.directory).grants
        return frozenset(part.gpu_uuid for grant in grants for part in grant.slices)

    try:
        with nvml_session(driver) as nvml:
            yield OwnInstances(
                state.directory, NvmlInstances(nvml), used, is_alive, adopts=adopts_unknown()
            )
    except DriverError as error:
        raise InstanceError(f"no instance can be made: {error.message}", INSTEAD) from error


def _check(driver: Driver) -> None:
    if os.environ.get(VISIBLE) is not None:
        raise InstanceError(
            f"--isolation hardware chooses the GPU itself, and {VISIBLE} is set",
            f"Unset {VISIBLE}; --gpu UUID names the GPU to take an instance of.",
        )
    if driver.shape is None and os.geteuid() != 0:
        raise InstanceError(
            "--isolation hardware: only root can make instances of a GPU",
            f"Run it as root. {INSTEAD}",
        )


def _await_listed(state: StateDirectory, device: str) -> None:
    """Wait until the arbiter knows the instance."""
    deadline = time.monotonic() + _LISTED_SECONDS
    while all(one.gpu.uuid != device for one in control.status(state.directory).gpus):
        if time.monotonic() > deadline:
            raise InstanceError(f"the arbiter does not find the instance {device}", INSTEAD)
        time.sleep(_POLL_SECONDS)
