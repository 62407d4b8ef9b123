"""Freezing the programs of a grant, by the driver's checkpoint API.

The driver moves what a process has on its GPU to the host and back, by pid, without the process's
knowledge: it stands still at its next call. Drivers from R570 on can. What it cannot move is found
out before it is tried, since a checkpoint that fails may ruin the process; `freeze` answers by
CannotFreezeError then, and the processes run on as before.

The order is what makes it safe. To freeze: the grant's gates are opened, since a stream that waits
at one never drains, and with that its door is closed (native/cuda/door.h), since a call that waits
for the GPU would crash a process whose memory is away; all its processes are locked, looked at
again, now that they can change nothing, and waited for until none of their calls is past the door;
then their memory is moved. To thaw, the grant must have its room again, and the card must have it,
since a process for which there is none is lost: memory comes back, then calls go on, then door and
gates work as before. Both begin where an earlier call was cut off: the truth about a process is the
driver's.
"""

from __future__ import annotations

import ctypes
import fcntl
import platform
import time
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import IO, TYPE_CHECKING

from aliquot.devices import elf
from aliquot.model import Hold, format_bytes
from aliquot.model.errors import AliquotError, ArbiterError, NoCapacityError, NoSuchGrantError
from aliquot.slices import control, host
from aliquot.slices.gates import driver_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from aliquot.devices import Driver
    from aliquot.model import Grant
    from aliquot.slices.control import SharedGpu, Status

LOCK_SECONDS = 10.0
ALONE_SECONDS = 600.0

_NOT_INITIALIZED = 3
_NOT_READY = 600
_PAUSE = 0.2
_TIES = {
    "managed": "it has used unified memory",
    "ipc": "it shares memory or events with other processes",
    "shared": "it has exported or imported memory",
}


class CannotFreezeError(AliquotError):
    """The driver cannot move what a program has, or a program that was moved does not come back."""


class NotYetError(AliquotError):
    """Nothing was changed, and it may be possible later."""


class Standing(IntEnum):
    """What the driver says of a process."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


def unsupported(driver: Driver) -> str | None:
    """Why nothing can be frozen on this machine; None where it can, as far as one can say."""
    if driver.shape is None and platform.machine() != "x86_64":
        return f"on {platform.machine()} it is not known to work"
    if "cuCheckpointProcessLock" not in elf.read_file(driver.cuda).exported():
        return "the driver cannot: R570 or newer can"
    return None


class Checkpoints:
    """The driver's API. A process that uses it needs the driver's variables in its environment."""

    def __init__(self, driver: Driver) -> None:
        self._cuda = ctypes.CDLL(str(driver.cuda))

    def standing(self, pid: int) -> Standing | None:
        """What the driver says of a process; None where it does not know it."""
        state = ctypes.c_int(0)
        code = self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state))
        if code == _NOT_INITIALIZED or (code != 0 and not host.is_alive(pid)):
            return None
        self._check(code, f"does not say how process {pid} stands")
        return Standing(state.value)

    def lock(self, pid: int, seconds: float) -> None:
        """Let a process begin nothing new, and wait until what it began is over."""
        arguments = (ctypes.c_uint * 16)(int(seconds * 1000))
        code = self._cuda.cuCheckpointProcessLock(pid, arguments)
        if code == _NOT_READY:
            raise CannotFreezeError(f"the GPU did not finish its work within {seconds:g} s")
        self._check(code, f"cannot hold process {pid}")

    def move_out(self, pid: int) -> None:
        """Move what a locked process has on its GPU to the host."""
        code = self._cuda.cuCheckpointProcessCheckpoint(pid, _nothing())
        self._check(code, f"cannot move the memory of process {pid} to the host")

    def move_back(self, pid: int) -> None:
        """Move it back. A process for which the GPU has no room is lost."""
        code = self._cuda.cuCheckpointProcessRestore(pid, _nothing())
        self._check(code, f"cannot move the memory of process {pid} back to the GPU")

    def unlock(self, pid: int) -> None:
        """Let a process go on."""
        code = self._cuda.cuCheckpointProcessUnlock(pid, _nothing())
        self._check(code, f"cannot let process {pid} go on")

    def _check(self, code: int, what: str) -> None:
        if code != 0:
            raise CannotFreezeError(f"the driver {what}: {driver_words(code)}")


def freeze(checkpoints: Checkpoints, state: Path, name: str) -> None:
    """Freeze all processes of a grant, or none: CannotFreezeError, and they run on.

    NotYetError: they are as they were, and some may be frozen.
    """
    if _grant(state, name).hold is Hold.PARKED:
        return  # it was frozen whole before
    try:
        with _alone(state), _no_refusal():
            _check_all(checkpoints, state, name)
            control.hold(state, name, Hold.OPEN)
            _move_all_out(checkpoints, state, name)
    except CannotFreezeError:
        if _grant(state, name).hold is not Hold.TAKEN:
            with suppress(CannotFreezeError):
                thaw(checkpoints, state, name)
        raise


def thaw(checkpoints: Checkpoints, state: Path, name: str) -> None:
    """Let all processes of a grant go on where they were frozen.

    NotYetError: there is no room for them, in the books or on the card, and they stay frozen.
    CannotFreezeError: one was given up by the driver. The door stays closed as long as one is away.
    """
    with _no_refusal():
        try:
            control.hold(state, name, Hold.OPEN)
        except NoCapacityError as error:
            raise NotYetError(error.message) from error
        while away := _away(checkpoints, state, name):
            _check_card(control.status(state), away)
            checkpoints.move_back(away[0])
        for pid in _with(checkpoints, state, name, Standing.LOCKED):
            checkpoints.unlock(pid)
        control.hold(state, name, Hold.TAKEN)


def check(grant: Grant, away: Collection[int] = ()) -> None:
    """Whether the driver could move all that the processes of a grant have; else why not.

    What those have that are `away` is with the host already.
    """
    if len(grant.slices) > 1:
        raise CannotFreezeError("it has several GPUs")
    if not grant.processes:
        raise CannotFreezeError("nothing of it has begun to use its GPU")
    for process in grant.processes:
        for tie in process.ties:
            raise CannotFreezeError(f"process {process.pid}: {_TIES.get(tie, tie)}")
    needed = _bytes(grant, [one.pid for one in grant.processes if one.pid not in away])
    there = min(host.memory_left(process.pid) for process in grant.processes)
    if needed > there:
        raise CannotFreezeError(
            f"it has {format_bytes(needed)} on its GPU, and the host has room for"
            f" {format_bytes(there)}"
        )


def check_room(status: Status, names: Collection[str]) -> None:
    """Whether the cards have room for these frozen grants' memory, whatever the books say."""
    found = [grant for grant in status.grants if grant.name in names]
    pids = [process.pid for grant in found for process in grant.processes]
    try:
        _check_card(status, pids)
    except NotYetError as error:
        raise NoCapacityError(error.message) from error


def _check_card(status: Status, pids: Collection[int]) -> None:
    """A process for which the card has no room is lost: that is found out before."""
    for one in status.gpus:
        needed = sum(_bytes(grant, pids, one.gpu.uuid) for grant in status.grants)
        there = one.gpu.memory_bytes - one.gpu.used_bytes
        if needed > there:
            raise NotYetError(
                f"{one.gpu} has {format_bytes(max(0, there))} that nobody uses, and"
                f" {format_bytes(needed)} must come back{_strangers(one)}"
            )


def _bytes(grant: Grant, pids: Collection[int], gpu_uuid: str | None = None) -> int:
    """What these processes of a grant have, on a GPU or in all."""
    return sum(
        use.used_bytes
        for process in grant.processes
        if process.pid in pids
        for use in process.use
        if gpu_uuid in {None, use.gpu_uuid}
    )


def _strangers(one: SharedGpu) -> str:
    names = ", ".join(f"{stranger.name} ({stranger.pid})" for stranger in one.strangers)
    return f"; outside every grant: {names}" if names else ""


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """One grant after the other: each is to find the host's memory that those before have left."""
    with (state / "freezing").open("w", encoding="utf-8") as lock:
        deadline = time.monotonic() + ALONE_SECONDS
        while not _locked(lock):
            if time.monotonic() > deadline:
                raise CannotFreezeError("another program has been on its way for too long")
            time.sleep(_PAUSE)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _no_refusal() -> Iterator[None]:
    """What the arbiter refuses cannot be (a broken grant); where it is away, it may be later."""
    try:
        yield
    except control.NoArbiterError as error:
        raise NotYetError(error.message) from error
    except ArbiterError as error:
        raise CannotFreezeError(error.message) from error


def _move_all_out(checkpoints: Checkpoints, state: Path, name: str) -> None:
    """All that are there: nobody joins a grant that is open."""
    _await_known(checkpoints, state, name)
    _lock_all(checkpoints, state, name)
    _check_all(checkpoints, state, name)
    _await_nobody_inside(state, name)
    for pid in _with(checkpoints, state, name, Standing.LOCKED):
        checkpoints.move_out(pid)


def _check_all(checkpoints: Checkpoints, state: Path, name: str) -> None:
    if stopped := _stopped(_grant(state, name)):
        raise CannotFreezeError(stopped)
    check(_grant(state, name), _away(checkpoints, state, name))


def _await_known(checkpoints: Checkpoints, state: Path, name: str) -> None:
    """A process may have joined, and not yet come to the driver."""
    deadline = time.monotonic() + LOCK_SECONDS
    while None in (standings := _standings(checkpoints, state, name)).values():
        if time.monotonic() > deadline:
            unknown = next(pid for pid, standing in standings.items() if standing is None)
            raise CannotFreezeError(f"process {unknown} has not begun to use its GPU")
        time.sleep(_PAUSE)


def _lock_all(checkpoints: Checkpoints, state: Path, name: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    for pid in _with(checkpoints, state, name, Standing.RUNNING):
        checkpoints.lock(pid, max(_PAUSE, deadline - time.monotonic()))


def _await_nobody_inside(state: Path, name: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while inside := [one.pid for one in _grant(state, name).processes if one.inside]:
        if time.monotonic() > deadline:
            raise CannotFreezeError(f"process {inside[0]} waits for its GPU, which has no work")
        time.sleep(_PAUSE)


def _away(checkpoints: Checkpoints, state: Path, name: str) -> list[int]:
    return _with(checkpoints, state, name, Standing.CHECKPOINTED)


def _with(checkpoints: Checkpoints, state: Path, name: str, wanted: Standing) -> list[int]:
    """The processes of a grant that stand so."""
    standings = _standings(checkpoints, state, name)
    return [pid for pid, standing in standings.items() if standing is wanted]


def _standings(checkpoints: Checkpoints, state: Path, name: str) -> dict[int, Standing | None]:
    """How all processes of a grant stand; None: the driver does not know of it."""
    grant = _grant(state, name)
    if stopped := _stopped(grant):
        raise NotYetError(stopped)
    live = [one.pid for one in grant.processes if one.state == "live"]
    standings = {pid: checkpoints.standing(pid) for pid in live}
    if failed := [pid for pid, standing in standings.items() if standing is Standing.FAILED]:
        raise CannotFreezeError(f"the driver has given process {failed[0]} up")
    return {pid: how for pid, how in standings.items() if how is not None or host.is_alive(pid)}


def _stopped(grant: Grant) -> str | None:
    """Which process is stopped: the driver would wait for it for ever."""
    stopped = [one.pid for one in grant.processes if host.is_stopped(one.pid)]
    return f"process {stopped[0]} is stopped, by a signal or a debugger" if stopped else None


def _grant(state: Path, name: str) -> Grant:
    for grant in control.status(state).grants:
        if grant.name == name:
            return grant
    raise NoSuchGrantError(f"there is no grant named {name}")


def _nothing() -> ctypes.Array[ctypes.c_uint]:
    """Arguments of which none is given."""
    return (ctypes.c_uint * 16)()
