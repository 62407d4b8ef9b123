"""The file of a pool's queues and limits."""

from __future__ import annotations

import grp
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from aliquot.model.errors import InvalidValueError
from aliquot.model.idle import IdleAction, IdleRule
from aliquot.model.owner import Owner
from aliquot.model.parking_rule import ParkingRule
from aliquot.model.request import SwapDefault
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.pool import arbiter_limits
from aliquot.pool.access import Caller
from aliquot.pool.arbiter_limits import limits_text
from aliquot.pool.policy import EXAMPLE, PolicyFile, PoolPolicy, QueueUsers, UserQuota, read_policy
from support import GIB

ALICE, BOB = Owner(4001, 4001, "alice"), Owner(4002, 4002, "bob")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pool.toml"


def caller(owner: Owner, *, admin: bool = False) -> Caller:
    return Caller(owner, frozenset(), admin)


def test_the_example_says_everything() -> None:
    policy = read_policy(EXAMPLE)
    research = Queue("research", 2.0, Bound(milli=4000), Bound(milli=6000))
    assert policy.queues == {"default": Queue("default"), "research": research}
    users = QueueUsers(frozenset({"alice"}), frozenset({"research"}))
    assert policy.queue_users["research"] == users
    assert policy.everybody == UserQuota(gpus=2, memory_bytes=80 * GIB, jobs=200)
    students = UserQuota(memory_bytes=20 * GIB, compute_percent=100, grants=4)
    assert policy.groups == {"students": students}
    assert policy.users == {"alice": UserQuota(gpus=8)}
    assert (policy.half_life_seconds, policy.admin_groups) == (86400.0, ("aliquot-admin",))
    assert policy.idle_rules == {"research": IdleRule(1800.0, IdleAction.END, 7200.0)}
    assert policy.swap_defaults == {
        "research": SwapDefault(swap=True, park_after=ParkingRule(900.0), overcommit=1.2)
    }
    assert policy.idle_weight == 0.5
    assert policy.worker_processes == 8192
    assert policy.host_bytes == 64 * GIB


def test_a_queue_reports_idle_jobs_and_ends_none_unless_it_says_so(file: Path) -> None:
    file.write_text('[queues.a]\nidle_after = "30m"')
    assert read_policy(file).idle_rules == {"a": IdleRule(1800.0)}
    file.write_text('[queues.a]\nidle_after = "30m"\nidle_action = "end"')
    assert read_policy(file).idle_rules == {"a": IdleRule(1800.0, IdleAction.END, 3600.0)}


def test_a_queue_parks_only_slices_that_ask_for_swap_unless_it_swaps_all(file: Path) -> None:
    file.write_text('[queues.a]\npark_after = "1h,always"')
    default = read_policy(file).swap_defaults["a"]
    assert default == SwapDefault(park_after=ParkingRule(3600.0, always=True))


def test_an_empty_file_decides_nothing(file: Path) -> None:
    file.write_text("")
    assert read_policy(file) == PoolPolicy()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[queues.a]\nweight = ]", "line 2"),
        ("[queues", "line 1"),
        ("queues = 1", "queues: is not a table"),
        ("[workers]\nprocesses = 0", "workers.processes: 0 is less than 1"),
        ("[queues.a]\nwieght = 2", "queues.a.wieght: is unknown"),
        ("[queues.a]\nweight = 0", "queues.a.weight: must be more than 0"),
        ("[queues.a]\nquota = -1", "queues.a.quota: -1 is less than 0"),
        ("[queues.a]\nlimit = nan", "queues.a.limit: nan is not a number"),
        ('[queues.a]\nusers = "alice"', "queues.a.users: 'alice' is not a list"),
        ("[limits.everybody]\nmemory = 40", "limits.everybody.memory: 40 is not an amount"),
        ('[limits.users.bob]\nmemory = "40%"', "limits.users.bob.memory: '40%' is not an amount"),
        ("[limits.groups.g]\ngrants = 1.5", "limits.groups.g.grants: 1.5 is not a whole number"),
        ("[limits.groups.g]\njobs = true", "limits.groups.g.jobs: True is not a whole number"),
        ("[limits]\nmemory = 1", "limits.memory: is unknown"),
        ('[fair_share]\nhalf_life = "soon"', "fair_share.half_life: 'soon' is not a time"),
        ('[fair_share]\nhalf_life = "0d"', "fair_share.half_life: '0d' is not a time"),
        ("[fair_share]\nidle_weight = -1", "fair_share.idle_weight: -1 is less than 0"),
        ('[queues.a]\nidle_after = "soon"', "queues.a.idle_after: 'soon' is not a time"),
        ('[queues.a]\nidle_action = "end"', "queues.a.idle_action: needs idle_after"),
        (
            '[queues.a]\nidle_after = "1h"\nidle_action = "kill"',
            "queues.a.idle_action: 'kill' is not one of report, end",
        ),
        (
            '[queues.a]\nidle_after = "1h"\nidle_grace = "1h"',
            'queues.a.idle_grace: needs idle_action = "end"',
        ),
        ("[queues.a]\nswap = 1", "queues.a.swap: 1 is not true or false"),
        ('[queues.a]\npark_after = "soon"', "queues.a.park_after: 'soon' is not a duration"),
        ("colour = 1", "colour: is unknown"),
    ],
)
def test_an_invalid_file_is_refused_with_the_line_or_the_key(
    file: Path, text: str, where: str
) -> None:
    file.write_text(text)
    with pytest.raises(InvalidValueError) as error:
        read_policy(file)
    assert where in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_refused(file: Path, mode: int) -> None:
    file.write_text("")
    file.chmod(mode)
    with pytest.raises(InvalidValueError, match="could be changed by others than root"):
        read_policy(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another owner")
def test_a_file_of_another_user_is_refused(file: Path) -> None:
    file.write_text("")
    os.chown(file, ALICE.uid, ALICE.gid)
    with pytest.raises(InvalidValueError, match="chown root"):
        read_policy(file)


def test_a_missing_file_is_refused(file: Path) -> None:
    with pytest.raises(InvalidValueError, match="cannot be read"):
        PolicyFile(file)


def test_a_changed_file_is_read_again_and_an_invalid_one_changes_nothing(file: Path) -> None:
    said: list[str] = []
    file.write_text("[queues.a]")
    policies = PolicyFile(file)
    assert not policies.refresh(said.append)
    file.write_text("[queues.a]\nweight = 3")
    assert policies.refresh(said.append)
    assert policies.policy.queues["a"].weight == 3
    file.write_text("[queues.a]\nweight = 'x' # long")
    for _ in range(2):
        assert not policies.refresh(said.append)
    assert policies.policy.queues["a"].weight == 3
    file.unlink()
    assert not policies.refresh(said.append)
    assert policies.policy.queues["a"].weight == 3
    assert len(said) == 3, "each problem is said once"
    assert "queues.a.weight" in said[1]


def test_the_arbiter_gets_the_limits_that_it_holds() -> None:
    everybody = UserQuota(gpus=2, memory_bytes=80 * GIB, jobs=7)
    users = {
        4002: UserQuota(gpus=8),
        4001: UserQuota(memory_bytes=5000 * GIB, compute_percent=150, grants=4),
    }
    assert limits_text(everybody, users).splitlines()[1:] == [
        "user * memory 81920MiB",
        "user 4001 memory 5000GiB compute 150 grants 4",
        "user 4002 grants 128",
    ]
    assert len(limits_text(UserQuota(jobs=1), {}).splitlines()) == 1


def test_a_new_member_of_a_group_gets_its_limits_without_another_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, told = ["4001"], []
    group = SimpleNamespace(gr_mem=members, gr_gid=99999)
    monkeypatch.setattr(grp, "getgrnam", lambda _name: group)
    monkeypatch.setattr(arbiter_limits, "groups_of", lambda _owner: frozenset({"students"}))

    def read_limits(directory: Path, *, again: bool = False) -> SimpleNamespace:
        told.append(again)
        return SimpleNamespace(file=str(directory / "users"))

    monkeypatch.setattr(arbiter_limits, "read_limits", read_limits)
    policy = PoolPolicy(groups={"students": UserQuota(grants=4)})
    assert arbiter_limits.publish_limits(tmp_path, policy) is None
    before = len(told)
    arbiter_limits.republish_limits(tmp_path, policy)
    assert len(told) == before, "nothing has changed"
    members.append("4002")
    arbiter_limits.republish_limits(tmp_path, policy)
    assert told[-1], "the arbiter reads the file again"
    assert (tmp_path / "users").read_text().splitlines()[1:] == [
        "user 4001 grants 4",
        "user 4002 grants 4",
    ]


class TestUsers:
    POLICY = PoolPolicy(
        queues={"default": Queue("default"), "night": Queue("night")},
        queue_users={"night": QueueUsers(frozenset({"alice"}), frozenset({"owls", "77"}))},
        everybody=UserQuota(jobs=1),
        users={"alice": UserQuota(jobs=2), "4003": UserQuota(jobs=3)},
        groups={"owls": UserQuota(jobs=4), "larks": UserQuota(jobs=5)},
    )

    @pytest.mark.parametrize(
        ("name", "uid", "groups", "jobs"),
        [
            ("alice", 4001, {"owls"}, 2),
            ("carol", 4003, {"owls"}, 3),
            ("bob", 4002, {"larks", "owls"}, 4),
            ("bob", 4002, {"larks"}, 5),
            ("bob", 4002, set(), 1),
            ("root", 0, {"owls"}, None),
        ],
    )
    def test_the_first_of_user_group_and_everybody_counts(
        self, name: str, uid: int, groups: set[str], jobs: int | None
    ) -> None:
        assert self.POLICY.quota_of(name, uid, frozenset(groups)).jobs == jobs

    def test_a_queue_is_for_its_users_and_groups_and_admins(self) -> None:
        self.POLICY.check_queue("night", caller(ALICE), frozenset())
        self.POLICY.check_queue("night", caller(BOB), frozenset({"77"}))
        self.POLICY.check_queue("night", caller(BOB, admin=True), frozenset())
        self.POLICY.check_queue("default", caller(BOB), frozenset())
        for queue, problem in (("night", "is not for you"), ("day", "does not exist")):
            with pytest.raises(InvalidValueError, match=problem) as error:
                self.POLICY.check_queue(queue, caller(BOB), frozenset())
            assert error.value.hint == "Your queues are: default."

    @pytest.mark.parametrize("admin", [False, True])
    def test_without_queues_only_the_default_queue_exists(self, *, admin: bool) -> None:
        PoolPolicy().check_queue("default", caller(BOB, admin=admin), frozenset())
        with pytest.raises(InvalidValueError, match="does not exist"):
            PoolPolicy().check_queue("anything", caller(BOB, admin=admin), frozenset())
