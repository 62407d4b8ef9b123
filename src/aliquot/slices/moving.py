"""Freezing and thawing a swappable grant: its programs move their memory to the host and back.

The driver's checkpoint is not used (`checkpoint` has it, for other grants). The arbiter says where
the memory of a grant shall be (`control.move`), its programs move it, and the arbiter's status says
how far they are. To freeze a grant:

1. Set it to switching: its gates open, so that its GPU work ends.
2. Say that its memory shall be on the host, and wait until every process has dealt with that.

The caller then parks it. If a process fails, does not react or is wanted again, all memory comes
back, the programs go on, and CannotFreezeError says why. To thaw it, it must fit again: then it is
switching, its memory comes back, and it is active. Only a copy that is gone is final.

Both directions continue where an earlier call was interrupted.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from aliquot.model import GrantState, Residence
from aliquot.model.errors import NoCapacityError
from aliquot.slices import control, procfs
from aliquot.slices.checkpoint import (
    CannotFreezeError,
    RetryLaterError,
    find_grant,
    find_stopped,
    grant_named,
    no_refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.model import Grant, Process
    from aliquot.slices.arbiter_status import Status

PATIENCE_SECONDS = 60.0  # without progress: the host may have to make room first
QUIET_SECONDS = 10.0  # the same before the first memory leaves: the program must get quiet for that
STOPPED_SECONDS = 10.0  # the same for a process that a signal has stopped
FAILING_SECONDS = 1.0  # the same until it is told why memory does not come back
SILENT_SECONDS = 4  # of the process that copies memory: it reports twice a second

_POLL_SECONDS = 0.01


def freeze(state: Path, name: str, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Move the memory of all processes of a grant to the host, or of none.

    CannotFreezeError: they keep running, also because it was not wanted any more. If a copy is lost
    on the way back, the grant is frozen: `thaw` then says that it is lost.
    """
    grant = find_grant(state, name)
    if grant.is_idle_parked or (grant.turns is not None and grant.turns.is_off):
        # From now on it does not return by itself.
        control.move(state, name, Residence.HOST)
        grant = find_grant(state, name)
    if grant.state is GrantState.PARKED:
        return
    if stopped := find_stopped(grant):
        raise CannotFreezeError(stopped)
    try:
        with no_refusal():
            control.set_state(state, name, GrantState.SWITCHING)
            try:
                control.move(state, name, Residence.HOST)
            except control.NoHostMemoryError as error:
                raise CannotFreezeError(error.message) from error
            _await(state, name, _has_left, partial(_check_leaving, is_wanted))
    except CannotFreezeError:
        if _call_off(state, name):
            raise


def reserve(state: Path, name: str) -> bool:
    """Have a parked grant get its slice back; NoCapacityError.

    False: it takes turns with memory, which comes back by itself when it has its turn.
    """
    takes_turns = find_grant(state, name).turns is not None
    control.set_state(state, name, GrantState.ACTIVE if takes_turns else GrantState.SWITCHING)
    return not takes_turns


def thaw(state: Path, name: str) -> None:
    """Bring the memory of all processes of a grant back to its GPU, and let them continue.

    RetryLaterError: the grant does not fit, or some memory is not back yet. CannotFreezeError: a
    copy is lost.
    """
    with no_refusal():
        try:
            if not reserve(state, name):
                return
        except NoCapacityError as error:
            raise RetryLaterError(error.message) from error
        control.move(state, name, Residence.GPU)
        _await(state, name, _has_returned, partial(_check_returning, FAILING_SECONDS))
        control.set_state(state, name, GrantState.ACTIVE)


def _call_off(state: Path, name: str) -> bool:
    """Let all programs go on, also those whose memory is still on its way back.

    False: a copy is lost, so that one cannot go on. All memory is to leave again.
    """
    with no_refusal():
        control.move(state, name, Residence.GPU)
        try:
            with suppress(RetryLaterError):
                _await(state, name, _is_back_or_stopped, _check_called_off)
        except CannotFreezeError:
            control.move(state, name, Residence.HOST)
            return False
        control.set_state(state, name, GrantState.ACTIVE)
    return True


def _await(
    state: Path,
    name: str,
    is_done: Callable[[Process], bool],
    check: Callable[[list[Process], float], None],
) -> None:
    """Wait until that is so of every process.

    `check` is told which are left, and for how many seconds nothing has changed. It raises to end
    the wait.
    """
    before: object = None
    since = time.monotonic()
    while True:
        status = control.status(state)
        grant = grant_named(status, name)
        try:
            left = [one for one in _live(grant) if not is_done(one)]
            if not left:
                return
            room = _host_memory(status) if grant.residence is Residence.HOST else []
            if before != (before := ([one.moved for one in left], room)):
                since = time.monotonic()
            check(left, time.monotonic() - since)
        except (CannotFreezeError, RetryLaterError) as error:
            raise type(error)(error.message + _mover_hangs(status, grant)) from error
        time.sleep(_POLL_SECONDS)


def _mover_hangs(status: Status, grant: Grant) -> str:
    """That the process which copies the grant's memory hangs, as the end of a sentence."""
    uuids = {part.gpu_uuid for part in grant.slices}
    movers = [one.mover for one in status.gpus if one.gpu.uuid in uuids and one.mover is not None]
    silent = max((one.silent_seconds for one in movers), default=0)
    if silent >= SILENT_SECONDS:
        return f": the process that copies memory has made no progress for {silent} s"
    hangs = sum(one.hangs for one in movers)
    unreached = any(one.moved.failed == "no-mover" for one in _live(grant) if one.moved)
    return f": it has hung {hangs} times" if unreached and hangs else ""


def _host_memory(status: Status) -> list[object]:
    """What changes while the host makes room, and while copies come and go."""
    movers = (one.mover for one in status.gpus)
    return [(one.host_bytes, one.held_bytes) for one in movers if one is not None]


def _check_leaving(is_wanted: Callable[[], bool], left: list[Process], seconds: float) -> None:
    """Raise CannotFreezeError if memory need not leave any more, or will not."""
    if not is_wanted():
        raise CannotFreezeError("its memory had not left yet")
    begun = any(one.moved.away_bytes for one in left if one.moved)
    patience = PATIENCE_SECONDS if begun else QUIET_SECONDS
    if seconds > _patience(left, patience):
        raise CannotFreezeError(_why_not_done(left, patience))


def _check_returning(failing_seconds: float, left: list[Process], seconds: float) -> None:
    """Raise CannotFreezeError if a copy is lost, RetryLaterError if memory does not come back."""
    for one in left:
        if one.moved is not None and one.moved.is_lost:
            raise CannotFreezeError(f"process {one.pid}: {one.moved.why_failed}")
    failing = any(one.moved.failed for one in left if one.moved)
    patience = _patience(left, PATIENCE_SECONDS)
    if seconds > (min(patience, failing_seconds) if failing else patience):
        raise RetryLaterError(_why_not_done(left, patience))


def _check_called_off(left: list[Process], seconds: float) -> None:
    """As for a return; but who has all memory and still waits for its GPU goes on by itself."""
    if seconds > FAILING_SECONDS and not any(one.moved.away_bytes for one in left if one.moved):
        raise RetryLaterError(_why_not_done(left, seconds))
    _check_returning(PATIENCE_SECONDS, left, seconds)


def _patience(left: list[Process], seconds: float) -> float:
    stopped = any(procfs.is_stopped(one.pid) for one in left)
    return min(seconds, STOPPED_SECONDS) if stopped else seconds


def _live(grant: Grant) -> list[Process]:
    """Its processes that can move memory."""
    return [one for one in grant.processes if one.state == "live" and one.moved is not None]


def _has_left(process: Process) -> bool:
    """Whether its memory is on the host; CannotFreezeError if it will not leave."""
    moved = process.moved
    if moved is None or not moved.settled:
        return False
    if moved.failed is not None:
        raise CannotFreezeError(f"process {process.pid}: {moved.why_failed}")
    return True


def _has_returned(process: Process) -> bool:
    return process.moved is not None and process.moved.settled


def _is_back_or_stopped(process: Process) -> bool:
    return _has_returned(process) or procfs.is_stopped(process.pid)


def _why_not_done(left: list[Process], seconds: float) -> str:
    stopped = [one for one in left if procfs.is_stopped(one.pid)]
    if stopped:
        return f"process {stopped[0].pid} is stopped, by a signal or a debugger"
    for one in left:
        if one.moved is not None and one.moved.failed is not None:
            return f"process {one.pid}: {one.moved.why_failed}"
    return f"process {left[0].pid} did not react within {seconds:g} s"
