"""Admits commands of `aliquot run`: makes the grants that the schedule allows, and tells places.

The grant belongs to the process that asked (`control.make` with its pid), so it ends with that
process, whatever becomes of the pool. The store keeps which user and queue each grant is charged
to, for the limits that the schedule holds: also the next pool counts the commands that run. That is
written before the grant is made, because the pool cannot end the grant of another process.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.model import Admission
from aliquot.model.errors import AliquotError, NameInUseError, NoCapacityError
from aliquot.model.job import DEFAULT_QUEUE
from aliquot.model.owner import Owner
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.decision_input import AdmittedGrant
from aliquot.pool.decision_names import run_name
from aliquot.pool.peers import user_name
from aliquot.pool.queue_defaults import with_swap_default
from aliquot.pool.runs import RunMode, Waiting
from aliquot.pool.store import RunGrant
from aliquot.slices import control
from aliquot.slices.grant_creation import name_in_use
from aliquot.slices.named_gpus import with_named_gpus
from aliquot.slices.visible_devices import visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aliquot.model import Slice
    from aliquot.model.request import SwapDefault
    from aliquot.pool.runs import RunDesk, RunRequest
    from aliquot.pool.schedule import PoolScheduler
    from aliquot.pool.store import JobStore
    from aliquot.slices.arbiter_status import Status

AT_ONCE = 4  # commands of a user that do not wait, in one round


@dataclass(frozen=True, slots=True)
class RunAdmission:
    """The commands that ask for grants of the arbiter in `state`, and those that have some.

    `swap_default` says what a queue adds to requests.
    """

    desk: RunDesk
    state: Path
    store: JobStore
    swap_default: Callable[[str], SwapDefault | None] = field(default=lambda _: None)

    def requests(self, status: Status) -> list[RunRequest]:
        """The commands to decide about. Those that could never start are refused."""
        found = []
        at_once: Counter[int] = Counter()
        for run in self.desk.requests():
            if run.mode is not RunMode.WAIT:
                at_once[run.owner.uid] += 1
                if at_once[run.owner.uid] > AT_ONCE:
                    continue  # each takes a decision: the next round has time for it
            try:
                found.append(self._accepted(run, status))
            except Exception as error:  # noqa: BLE001 - a defect that one meets is its own alone
                self.desk.refuse(run, _as_refusal(error))
        return found

    def _accepted(self, run: RunRequest, status: Status) -> RunRequest:
        """The run with the GPUs that it may have; AliquotError if it could never start.

        It keeps the GPUs that its words named when it asked, whatever they name later.
        """
        control.check_swap(status, run.request)
        if not run.accepted:
            run = _restricted(run, status)
            default = self.swap_default(run.queue)
            run = replace(run, request=with_swap_default(run.request, default, status))
            self.desk.accept(run)
        run = replace(run, request=run.request.of_owner(run.owner.uid, run.name))
        MachinePlan.of_empty(status).put(run.request, 1)
        return run

    def waiting(self) -> list[RunRequest]:
        """The commands that wait, in the order they came."""
        return [run for run in self.desk.requests() if run.mode is RunMode.WAIT]

    def accepted(self) -> list[RunRequest]:
        """The commands that wait and could start, as decisions have them."""
        return [
            replace(run, request=run.request.of_owner(run.owner.uid, run.name))
            for run in self.waiting()
            if run.accepted
        ]

    def charged(self, status: Status, *, forget: bool = True) -> list[AdmittedGrant]:
        """The grants of admitted commands that run. Those that have ended are forgotten.

        `forget` is for the pool's own loop: in a status that is older, a new grant is missing.

        Where only the pool admits, it has admitted all: an earlier release did not write to whom it
        charged them, so they count in the default queue. The pool's own user needs no admission.
        """
        grants = {
            (one.owner_uid, one.plain_name, one.owner_pid): one
            for one in status.grants
            if one.owner_pid is not None
        }
        found, ended = [], []
        for one in self.store.run_grants():
            grant = grants.pop((one.owner.uid, one.name, one.pid), None)
            if grant is not None:
                found.append(AdmittedGrant(grant, one.owner, one.queue))
            else:
                ended.append(one)
        if ended and forget:
            self.store.delete_run_grants(ended)
        if status.admission is Admission.POOL:
            found += [
                AdmittedGrant(grant, Owner(uid, uid, user_name(uid)), DEFAULT_QUEUE)
                for (uid, _, _), grant in grants.items()
                if uid != os.geteuid()
            ]
        return found

    def apply(self, scheduler: PoolScheduler, runs: Sequence[RunRequest]) -> None:
        """Carry a decision out, and tell those that wait where they are."""
        for run, slices in scheduler.admitted:
            with self.desk.hold(run) as here:
                if here:
                    self._grant(run, slices)
        for run, why in scheduler.refused:
            self.desk.refuse(run, NoCapacityError(why))
        for run, found in scheduler.previewed:
            if not isinstance(found, Waiting):
                self.desk.preview(run, [part.gpu_uuid for part in found])
            else:
                self.desk.preview(run, found)
        for run in runs:
            if (place := scheduler.waiting_of(run_name(run))) is not None:
                self.desk.tell(run, place)

    def _grant(self, run: RunRequest, slices: list[Slice]) -> None:
        try:
            name, marked = self._make(run, slices)
        except control.NoArbiterError:
            raise  # the next round asks again
        except control.CapacityRefusedError as error:
            if run.mode is RunMode.NOW:
                self.desk.refuse(run, error)
        except Exception as error:  # noqa: BLE001 - a defect that one meets is its own alone
            self.desk.refuse(run, _as_refusal(error))
        else:
            self.desk.grant(run, marked, name, [part.gpu_uuid for part in slices])

    def _make(self, run: RunRequest, slices: list[Slice]) -> tuple[str, str]:
        """The name and the mark of a new grant of the process."""
        for name in run.grant_names():
            if not self.store.add_run_grant(RunGrant(name, run.pid, run.owner, run.queue)):
                continue  # the process has a grant of this name, or had one a moment ago
            with suppress(NameInUseError):
                return name, control.make(
                    self.state,
                    name,
                    slices,
                    together=run.request.together,
                    neighbours=run.request.neighbours,
                    swap=bool(run.request.swap),
                    park_after=run.request.park_after,
                    swap_wait=run.request.swap_wait,
                    overcommit=run.request.overcommit,
                    spill=run.request.spill,
                    isolation=run.request.isolation,
                    owner=run.owner.uid,
                    pid=run.pid,
                    started=run.started,
                )
        raise name_in_use(name)


def _as_refusal(error: Exception) -> AliquotError:
    return error if isinstance(error, AliquotError) else AliquotError(f"a defect: {error!r}")


def _restricted(run: RunRequest, status: Status) -> RunRequest:
    """The run with the GPUs that its words name; AliquotError if they name none."""
    among = None
    if run.visible is not None:
        among = tuple(one.gpu.uuid for one in visible_gpus(status.gpus, run.visible))
    request = with_named_gpus(run.request, [one.gpu for one in status.gpus])
    return replace(run, request=replace(request, among=among), accepted=True)
