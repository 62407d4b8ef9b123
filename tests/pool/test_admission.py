"""Which user and queue pay for the grant of a command, without processes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from aliquot.model import Admission, Life, Request
from aliquot.model.errors import NameInUseError
from aliquot.model.owner import Owner
from aliquot.pool.admission import RunAdmission
from aliquot.pool.runs import RunMode, RunRequest
from aliquot.pool.schedule import PoolScheduler
from aliquot.pool.store import JobStore, StoreError
from aliquot.slices import control
from aliquot.slices.arbiter_status import Status
from support import GIB, make_grant, make_shared

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.model import Grant

BOB = Owner(4002, 4002, "bob")
PID = 7


def run(queue: str, name: str | None = "mine") -> RunRequest:
    return RunRequest(1, BOB, PID, 1, Request(), name, "x", None, RunMode.NOW, 0.0, queue)


def grant(name: str = "mine", uid: int = BOB.uid) -> Grant:
    return replace(make_grant(f"{uid}:{name}", gpu0=GIB), owner_pid=PID, owner_uid=uid)


def status(*grants: Grant, admission: Admission = Admission.USERS) -> Status:
    return Status(1, (make_shared(),), grants, {"admission": str(admission)})


class Pool:
    """A pool's admission with its store; nobody sits at its desk."""

    def __init__(self, folder: Path) -> None:
        self.desk, self.store = MagicMock(), JobStore(folder / "pool.sqlite")
        self.admission = RunAdmission(self.desk, folder, self.store)

    def admit(self, *runs: RunRequest) -> None:
        scheduler = PoolScheduler(admitted=[(one, []) for one in runs])
        self.admission.apply(scheduler, [])

    def charged(self, seen: Status) -> list[tuple[str, str, str]]:
        found = self.admission.charged(seen)
        return [(one.grant.plain_name, one.owner.name, one.queue) for one in found]


@pytest.fixture
def arbiter(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """What stands for `control.make`."""
    make = MagicMock(return_value="/grants/mine#1")
    monkeypatch.setattr(control, "make", make)
    return make


def test_a_grant_is_charged_if_the_pool_dies_as_it_is_made(
    tmp_path: Path, arbiter: MagicMock
) -> None:
    arbiter.side_effect = KeyboardInterrupt  # nothing of the pool runs after this
    with pytest.raises(KeyboardInterrupt):
        Pool(tmp_path).admit(run("small"))
    assert Pool(tmp_path).charged(status(grant())) == [("mine", "bob", "small")]


def test_no_grant_is_made_that_cannot_be_charged(tmp_path: Path, arbiter: MagicMock) -> None:
    pool = Pool(tmp_path)
    pool.store.close()
    pool.admit(run("small"))
    arbiter.assert_not_called()
    assert isinstance(pool.desk.refuse.mock_calls[0].args[1], StoreError)


def test_a_second_grant_of_the_same_name_does_not_move_the_charge(
    tmp_path: Path, arbiter: MagicMock
) -> None:
    pool = Pool(tmp_path)
    pool.admit(run("small"))
    arbiter.side_effect = NameInUseError("taken")
    pool.admit(run("large"))
    assert isinstance(pool.desk.refuse.mock_calls[0].args[1], NameInUseError)
    assert pool.charged(status(grant())) == [("mine", "bob", "small")]


def test_a_name_can_be_used_again_after_its_grant_has_ended(
    tmp_path: Path, arbiter: MagicMock
) -> None:
    pool = Pool(tmp_path)
    pool.admit(run("small"))
    assert pool.charged(status()) == []
    pool.admit(run("large"))
    assert pool.charged(status(grant())) == [("mine", "bob", "large")]
    assert arbiter.call_count == 2


def test_where_the_pool_admits_all_a_grant_without_a_charge_counts_in_the_default_queue(
    tmp_path: Path,
) -> None:
    """An earlier release made it, which wrote no charges."""
    pool, own = Pool(tmp_path), grant(uid=os.geteuid())
    kept = replace(grant("worker"), owner_pid=None, life=Life.KEPT)
    seen = status(grant(), kept, own, admission=Admission.POOL)
    assert pool.charged(seen) == [("mine", "4002", "default")]
    assert pool.charged(status(grant(), kept, own)) == []
