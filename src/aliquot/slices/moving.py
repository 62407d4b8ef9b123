"""Freezing and thawing a swappable grant: its programs move their memory to the host and back.

The driver's checkpoint is not used (`checkpoint` has it, for other grants). The arbiter says where
the memory of a grant shall be (`control.move`), its programs move it, and the arbiter's status says
how far they are. To freeze a grant:

1. Set it to switching: its gates open, so that its GPU work ends.
2. Say that its memory shall be on the host, and wait until every process has dealt with that.

The caller then parks it. If a process fails or does not react, all memory comes back, the programs
go on, and CannotFreezeError says why. To thaw it, it must fit again: then it is switching, its
memory comes back, and it is active.

Both directions continue where an earlier call was interrupted.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot.model import GrantState, Residence, format_bytes
from aliquot.model.errors import NoCapacityError
from aliquot.slices import control, procfs
from aliquot.slices.checkpoint import (
    CannotFreezeError,
    RetryLaterError,
    find_grant,
    find_stopped,
    no_refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.model import Grant, Process

PATIENCE_SECONDS = 60.0  # without progress: the host may have to make room first
STOPPED_SECONDS = 10.0  # the same for a process that a signal has stopped

_POLL_SECONDS = 0.01


def freeze(state: Path, name: str) -> None:
    """Move the memory of all processes of a grant to the host, or of none.

    CannotFreezeError: they keep running.
    """
    grant = find_grant(state, name)
    if grant.state is GrantState.PARKED:
        return
    if stopped := find_stopped(grant):
        raise CannotFreezeError(stopped)
    try:
        with no_refusal():
            control.set_state(state, name, GrantState.SWITCHING)
            control.move(state, name, Residence.HOST)
            _await(state, name, _has_left)
    except CannotFreezeError:
        _call_off(state, name)
        raise


def thaw(state: Path, name: str) -> None:
    """Bring the memory of all processes of a grant back to its GPU, and let them continue.

    RetryLaterError: the grant does not fit, or some memory is not back yet.
    """
    with no_refusal():
        try:
            control.set_state(state, name, GrantState.SWITCHING)
        except NoCapacityError as error:
            raise RetryLaterError(error.message) from error
        control.move(state, name, Residence.GPU)
        try:
            _await(state, name, _has_returned)
        except CannotFreezeError as error:  # the programs try again without end
            raise RetryLaterError(error.message) from error
        control.set_state(state, name, GrantState.ACTIVE)


def _call_off(state: Path, name: str) -> None:
    """Let all programs go on, also those whose memory is still on its way back."""
    with no_refusal():
        control.move(state, name, Residence.GPU)
        with suppress(CannotFreezeError):
            _await(state, name, lambda one: _has_returned(one) or procfs.is_stopped(one.pid))
        control.set_state(state, name, GrantState.ACTIVE)


def _await(state: Path, name: str, is_done: Callable[[Process], bool]) -> None:
    """Wait until that is so of every process; CannotFreezeError if one does nothing for long."""
    before: list[object] = []
    since = time.monotonic()
    while left := [one for one in _live(find_grant(state, name)) if not is_done(one)]:
        if before != (before := [one.moved for one in left]):
            since = time.monotonic()
        stopped = any(procfs.is_stopped(one.pid) for one in left)
        if time.monotonic() - since > (STOPPED_SECONDS if stopped else PATIENCE_SECONDS):
            raise CannotFreezeError(_why_not_done(left))
        time.sleep(_POLL_SECONDS)


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


def _why_not_done(left: list[Process]) -> str:
    stopped = [one for one in left if procfs.is_stopped(one.pid)]
    if stopped:
        return f"process {stopped[0].pid} is stopped, by a signal or a debugger"
    process = left[0]
    moved = process.moved
    if moved is not None and moved.failed is not None:
        away = format_bytes(moved.away_bytes)
        return f"process {process.pid}: {moved.why_failed}; {away} are on the host"
    return f"process {process.pid} did not react within {PATIENCE_SECONDS:g} s"
