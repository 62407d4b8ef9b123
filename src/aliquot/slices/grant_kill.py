"""Ending the programs of a grant: SIGTERM, and SIGKILL for those that stay."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model import Isolation
from aliquot.model.errors import AliquotError, NotOwnerError
from aliquot.slices import control, mps

if TYPE_CHECKING:
    from aliquot.model import Grant
    from aliquot.slices.machines import LocalMachine

_LOOK_SECONDS = 0.2  # for programs that join meanwhile
_KILLED_SECONDS = 20.0  # for the kernel to end what was killed, and the arbiter to notice


@dataclass(frozen=True, slots=True)
class KillResult:
    """How many programs had to be ended, and how many of them only SIGKILL ended."""

    ended: int
    killed: int


def kill_grant(machine: LocalMachine, grant: Grant, grace_seconds: float) -> KillResult:
    """End all programs of a grant, and wait until it is gone; a kept grant stays without them.

    Programs that a signal has stopped are continued, so that they can save.
    """
    with ExitStack() as kept:
        programs = _Programs(machine, grant, kept)
        programs.send(signal.SIGTERM, signal.SIGCONT)
        left = programs.wait(grace_seconds, signal.SIGTERM)
        if left and grant.isolation is Isolation.MPS:
            mps.end_clients(sorted(left), machine.state.driver())
        programs.send(signal.SIGKILL)
        stuck = programs.wait(_KILLED_SECONDS if left else 0.0, signal.SIGKILL)
        if stuck:
            raise AliquotError(
                f"the kernel does not end {', '.join(map(str, sorted(stuck)))} of grant"
                f" {grant.name}",
                "It waits for a device or a file system: see the state in ps -o pid,stat,wchan.",
            )
        _wait_until_gone(machine, grant)
        return KillResult(len(programs.handles), len(left))


class _Programs:
    """The programs of a grant. A handle names one process for ever: pids are used again."""

    def __init__(self, machine: LocalMachine, grant: Grant, kept: ExitStack) -> None:
        self._machine, self._grant, self._kept = machine, grant, kept
        self.handles: dict[int, int] = {}
        self.find()

    def find(self) -> list[int]:
        """Open a handle for each new program; their pids."""
        opened: dict[int, int] = {}
        for pid in _pids(_fresh(self._machine, self._grant)) - self.handles.keys():
            with suppress(ProcessLookupError):
                opened[pid] = os.pidfd_open(pid)
                self._kept.callback(os.close, opened[pid])
        listed = _pids(_fresh(self._machine, self._grant)) if opened else set()
        found = {pid: handle for pid, handle in opened.items() if pid in listed}
        self.handles |= found  # the arbiter lists it still: the handle is not of a later process
        return list(found)

    def send(self, *numbers: signal.Signals, to: list[int] | None = None) -> None:
        for pid in self.handles if to is None else to:
            for number in numbers:
                try:
                    signal.pidfd_send_signal(self.handles[pid], number)
                except ProcessLookupError:
                    continue
                except PermissionError as error:
                    raise NotOwnerError(
                        f"process {pid} of grant {self._grant.name} belongs to another user",
                        "Only that user and root may end it.",
                    ) from error

    def wait(self, seconds: float, number: signal.Signals) -> set[int]:
        """Wait until all have ended, at most so long; the pids of those that have not."""
        deadline = time.monotonic() + seconds
        while live := self._live(0.0):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            self._live(min(_LOOK_SECONDS, remaining), any_change=True)
            self.send(number, to=self.find())
        return live

    def _live(self, seconds: float, *, any_change: bool = False) -> set[int]:
        """The pids of those that live; `any_change`: wait until one ends, at most so long."""
        poll = select.poll()
        live = dict(self.handles)
        for pid, handle in self.handles.items():
            one = select.poll()
            one.register(handle, select.POLLIN)
            if one.poll(0):
                del live[pid]
            else:
                poll.register(handle, select.POLLIN)
        if any_change and live:
            poll.poll(seconds * 1000)
        return set(live)


def _fresh(machine: LocalMachine, grant: Grant) -> Grant | None:
    """The grant as it is now; None: it is gone."""
    try:
        now = control.status(machine.state.directory).grants
    except control.NoArbiterError:
        return None
    same = (one for one in now if (one.name, one.created) == (grant.name, grant.created))
    return next(same, None)


def _pids(grant: Grant | None) -> set[int]:
    if grant is None:
        return set()
    owner = {grant.owner_pid} if grant.owner_pid and grant.owner_alive else set()
    joined = {one.pid for one in grant.processes if one.state == "live"}
    return owner | joined | {one.pid for one in grant.unjoined}


def _wait_until_gone(machine: LocalMachine, grant: Grant) -> None:
    if grant.owner_pid is None:
        return
    deadline = time.monotonic() + _KILLED_SECONDS
    while _fresh(machine, grant) is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS / 10)
