"""Freezing and thawing the processes of a grant, by the driver's checkpoint API.

The driver (R570 or newer) moves the GPU memory of a process to the host and back, by pid. The
process does not notice; it blocks at its next driver call. A checkpoint that fails may destroy the
process, so everything that the driver cannot move is found before it is tried: then `freeze` raises
CannotFreezeError and the processes keep running.

The order of the steps makes it safe. To freeze a grant:

1. Set it to switching. Its gates open, because a stream that waits at a gate never drains, and new
   driver calls of its processes block (native/cuda/freeze_barrier.h), because a call that waits for
   the GPU would crash a process whose memory is moved.
2. Lock all its processes in the driver, and check them again, now that they cannot change anything.
3. Wait until none of their driver calls is in progress.
4. Move their memory to the host.

To thaw it, the grant must fit again, and the GPU must have that memory free, because the driver
loses a process that does not fit. Then its memory comes back, its processes are unlocked, and the
grant is active again. Both directions continue where an earlier call was interrupted: the state of
a process is what the driver says.
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
from aliquot.model import GrantState, format_bytes
from aliquot.model.errors import AliquotError, ArbiterError, NoCapacityError, NoSuchGrantError
from aliquot.slices import control, procfs
from aliquot.slices.gate_support import error_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from aliquot.devices import Driver
    from aliquot.model import Grant
    from aliquot.slices.arbiter_status import SharedGpu, Status

LOCK_SECONDS = 10.0
EXCLUSIVE_SECONDS = 600.0

_NOT_INITIALIZED = 3
_NOT_READY = 600
_POLL_SECONDS = 0.2
_TIES = {
    "managed": "it has used unified memory",
    "ipc": "it shares memory or events with other processes",
    "shared": "it has exported or imported memory",
    "host": "it has memory on the host (--spill)",
}


class CannotFreezeError(AliquotError):
    """The driver cannot freeze a process, or cannot bring a frozen one back."""


class RetryLaterError(AliquotError):
    """Not possible now, but it may be later; nothing has changed."""


class CheckpointState(IntEnum):
    """The state of a process in the driver's checkpoint API (CUprocessState)."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


def unsupported(driver: Driver) -> str | None:
    """Why freezing is unsupported on this machine; None if it is supported."""
    if driver.shape is None and platform.machine() != "x86_64":
        return f"freezing is not tested on {platform.machine()}"
    if "cuCheckpointProcessLock" not in elf.read_file(driver.cuda).exported():
        return "the driver cannot freeze processes: R570 or newer can"
    return None


class Checkpoints:
    """The checkpoint API. The calling process needs the driver's variables in its environment."""

    def __init__(self, driver: Driver) -> None:
        self._cuda = ctypes.CDLL(str(driver.cuda))

    def state(self, pid: int) -> CheckpointState | None:
        """The state of a process; None if the driver does not know it."""
        state = ctypes.c_int(0)
        code = self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state))
        if code == _NOT_INITIALIZED or (code != 0 and not procfs.is_alive(pid)):
            return None
        self._check(code, f"does not report the state of process {pid}")
        return CheckpointState(state.value)

    def lock(self, pid: int, seconds: float) -> None:
        """Block new work of a process, and wait until its GPU work is done."""
        arguments = (ctypes.c_uint * 16)(int(seconds * 1000))
        code = self._cuda.cuCheckpointProcessLock(pid, arguments)
        if code == _NOT_READY:
            raise CannotFreezeError(f"the GPU did not finish its work within {seconds:g} s")
        self._check(code, f"cannot lock process {pid}")

    def move_out(self, pid: int) -> None:
        """Move the GPU memory of a locked process to the host."""
        code = self._cuda.cuCheckpointProcessCheckpoint(pid, _no_arguments())
        self._check(code, f"cannot move the memory of process {pid} to the host")

    def move_back(self, pid: int) -> None:
        """Move it back. The driver loses a process that does not fit on the GPU."""
        code = self._cuda.cuCheckpointProcessRestore(pid, _no_arguments())
        self._check(code, f"cannot move the memory of process {pid} back to the GPU")

    def unlock(self, pid: int) -> None:
        """Let a process continue."""
        code = self._cuda.cuCheckpointProcessUnlock(pid, _no_arguments())
        self._check(code, f"cannot unlock process {pid}")

    def _check(self, code: int, what: str) -> None:
        if code != 0:
            raise CannotFreezeError(f"the driver {what}: {error_text(code)}")


def freeze(checkpoints: Checkpoints, state: Path, name: str) -> None:
    """Freeze all processes of a grant, or none.

    CannotFreezeError: they keep running. RetryLaterError: their state did not change; some may
    be frozen already.
    """
    if find_grant(state, name).state is GrantState.PARKED:
        return  # all its processes are frozen already
    try:
        with _exclusive(state), no_refusal():
            _check_all(checkpoints, state, name)
            control.set_state(state, name, GrantState.SWITCHING)
            _move_all_out(checkpoints, state, name)
    except CannotFreezeError:
        if find_grant(state, name).state is not GrantState.ACTIVE:
            with suppress(CannotFreezeError):
                thaw(checkpoints, state, name)
        raise


def thaw(checkpoints: Checkpoints, state: Path, name: str) -> None:
    """Let all processes of a grant continue where they were frozen.

    RetryLaterError: the grant does not fit, or the GPU has too little free memory; they stay
    frozen. CannotFreezeError: the driver has lost a process. Driver calls stay blocked until all
    processes are back.
    """
    with no_refusal():
        try:
            control.set_state(state, name, GrantState.SWITCHING)
        except NoCapacityError as error:
            raise RetryLaterError(error.message) from error
        while frozen := _frozen(checkpoints, state, name):
            _check_free_memory(control.status(state), frozen)
            checkpoints.move_back(frozen[0])
        for pid in _with(checkpoints, state, name, CheckpointState.LOCKED):
            checkpoints.unlock(pid)
        control.set_state(state, name, GrantState.ACTIVE)


def check(grant: Grant, frozen: Collection[int] = ()) -> None:
    """Raise CannotFreezeError if the driver cannot freeze all processes of a grant.

    The memory of processes in `frozen` is on the host already.
    """
    if len(grant.slices) > 1:
        raise CannotFreezeError("it has several GPUs")
    if not grant.processes:
        raise CannotFreezeError("none of its processes uses the GPU yet")
    for process in grant.processes:
        for tie in process.ties:
            raise CannotFreezeError(f"process {process.pid}: {_TIES.get(tie, tie)}")
    needed = _bytes(grant, [one.pid for one in grant.processes if one.pid not in frozen])
    free = min(procfs.free_memory(process.pid) for process in grant.processes)
    if needed > free:
        raise CannotFreezeError(
            f"it uses {format_bytes(needed)} of its GPU, and the host has only"
            f" {format_bytes(free)} free"
        )


def check_can_thaw(status: Status, names: Collection[str]) -> None:
    """Raise NoCapacityError if the GPUs lack free memory for these frozen grants.

    This is about memory that is in use now, whatever the limits of other grants are.
    """
    found = [grant for grant in status.grants if grant.name in names]
    pids = [process.pid for grant in found for process in grant.processes]
    try:
        _check_free_memory(status, pids)
    except RetryLaterError as error:
        raise NoCapacityError(error.message) from error


def _check_free_memory(status: Status, pids: Collection[int]) -> None:
    """Raise RetryLaterError if these processes do not fit: the driver would lose them."""
    for one in status.gpus:
        needed = sum(_bytes(grant, pids, one.gpu.uuid) for grant in status.grants)
        free = one.gpu.memory_bytes - one.gpu.used_bytes
        if needed > free:
            raise RetryLaterError(
                f"{one.gpu} has {format_bytes(max(0, free))} unused, and"
                f" {format_bytes(needed)} must come back{_strangers(one)}"
            )


def _bytes(grant: Grant, pids: Collection[int], gpu_uuid: str | None = None) -> int:
    """The memory that these processes of a grant use, on one GPU or in all.

    Of a swappable grant it is what is on the host: the rest never left the GPU.
    """
    return sum(
        use.used_bytes if process.moved is None else process.moved.away_bytes
        for process in grant.processes
        if process.pid in pids
        for use in process.use
        if gpu_uuid in {None, use.gpu_uuid}
    )


def _strangers(one: SharedGpu) -> str:
    names = ", ".join(f"{stranger.name} ({stranger.pid})" for stranger in one.strangers)
    return f"; outside all grants: {names}" if names else ""


@contextmanager
def _exclusive(state: Path) -> Iterator[None]:
    """Freeze one grant at a time, so that each sees the host memory that is really free."""
    with (state / "freezing").open("w", encoding="utf-8") as lock:
        deadline = time.monotonic() + EXCLUSIVE_SECONDS
        while not _locked(lock):
            if time.monotonic() > deadline:
                raise CannotFreezeError("another grant has been freezing for too long")
            time.sleep(_POLL_SECONDS)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def no_refusal() -> Iterator[None]:
    """Turn the arbiter's errors into ours: a refusal is final, a missing arbiter is not."""
    try:
        yield
    except control.NoArbiterError as error:
        raise RetryLaterError(error.message) from error
    except ArbiterError as error:
        raise CannotFreezeError(error.message) from error


def _move_all_out(checkpoints: Checkpoints, state: Path, name: str) -> None:
    """Freeze all processes of the grant: none can join while it is switching."""
    _await_started(checkpoints, state, name)
    _lock_all(checkpoints, state, name)
    _check_all(checkpoints, state, name)
    _await_no_calls(state, name)
    for pid in _with(checkpoints, state, name, CheckpointState.LOCKED):
        checkpoints.move_out(pid)


def _check_all(checkpoints: Checkpoints, state: Path, name: str) -> None:
    if stopped := find_stopped(find_grant(state, name)):
        raise CannotFreezeError(stopped)
    check(find_grant(state, name), _frozen(checkpoints, state, name))


def _await_started(checkpoints: Checkpoints, state: Path, name: str) -> None:
    """Wait for processes that have joined but not reached the driver yet."""
    deadline = time.monotonic() + LOCK_SECONDS
    while None in (states := _states(checkpoints, state, name)).values():
        if time.monotonic() > deadline:
            unknown = next(pid for pid, one in states.items() if one is None)
            raise CannotFreezeError(f"process {unknown} does not use its GPU yet")
        time.sleep(_POLL_SECONDS)


def _lock_all(checkpoints: Checkpoints, state: Path, name: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    for pid in _with(checkpoints, state, name, CheckpointState.RUNNING):
        checkpoints.lock(pid, max(_POLL_SECONDS, deadline - time.monotonic()))


def _await_no_calls(state: Path, name: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while inside := [one.pid for one in find_grant(state, name).processes if one.inside]:
        if time.monotonic() > deadline:
            raise CannotFreezeError(f"process {inside[0]} waits for its GPU, which has no work")
        time.sleep(_POLL_SECONDS)


def _frozen(checkpoints: Checkpoints, state: Path, name: str) -> list[int]:
    return _with(checkpoints, state, name, CheckpointState.CHECKPOINTED)


def _with(checkpoints: Checkpoints, state: Path, name: str, wanted: CheckpointState) -> list[int]:
    """The processes of a grant in that state."""
    states = _states(checkpoints, state, name)
    return [pid for pid, one in states.items() if one is wanted]


def _states(checkpoints: Checkpoints, state: Path, name: str) -> dict[int, CheckpointState | None]:
    """The states of all processes of a grant; None: the driver does not know it."""
    grant = find_grant(state, name)
    if stopped := find_stopped(grant):
        raise RetryLaterError(stopped)
    live = [one.pid for one in grant.processes if one.state == "live"]
    states = {pid: checkpoints.state(pid) for pid in live}
    if failed := [pid for pid, one in states.items() if one is CheckpointState.FAILED]:
        raise CannotFreezeError(f"the driver has lost process {failed[0]}")
    return {pid: one for pid, one in states.items() if one is not None or procfs.is_alive(pid)}


def find_stopped(grant: Grant) -> str | None:
    """Which process is stopped, if one is: the driver would wait for it without end."""
    stopped = [one.pid for one in grant.processes if procfs.is_stopped(one.pid)]
    return f"process {stopped[0]} is stopped, by a signal or a debugger" if stopped else None


def find_grant(state: Path, name: str) -> Grant:
    """The grant of that name, as it is now; NoSuchGrantError if there is none."""
    return grant_named(control.status(state), name)


def grant_named(status: Status, name: str) -> Grant:
    """The grant of that name in a status; NoSuchGrantError if there is none."""
    for grant in status.grants:
        if grant.name == name:
            return grant
    raise NoSuchGrantError(f"there is no grant named {name}")


def _no_arguments() -> ctypes.Array[ctypes.c_uint]:
    """An arguments structure that is all zero."""
    return (ctypes.c_uint * 16)()
