"""Limits of users, from root's file: enforced at make, resize and the return from parked."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from arbiter.rig import GPU, OTHER_GPU
from arbiter.test_users import ALICE, BOB, as_user
from support import GIB, wait_until
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Owner

    Owners = Callable[..., Owner]

pytestmark = needs_root

FILE = f"""\
# who may have what
user {ALICE} memory 10GiB compute 50 grants 2

user *\tmemory 20GiB
"""


def make(name: str, gib: int, compute: int = 0, gpu: str = GPU, more: str = "") -> str:
    return f"make name={name} slice={gpu},memory={gib * GIB},compute={compute}{more}"


@pytest.fixture
def users(short_tmp: Path) -> Path:
    path = short_tmp / "users"
    path.write_text(FILE)
    return path


@pytest.fixture
def limited(stopped_arbiter: Arbiter, users: Path, short_tmp: Path) -> Arbiter:
    short_tmp.chmod(0o755)
    stopped_arbiter.start("--users", str(users))
    return stopped_arbiter


def own(arbiter: Arbiter, owners: Owners, uid: int) -> dict[str, Any]:
    answer = as_user(arbiter, owners, uid, "limits")
    (one,) = answer["users"]
    assert isinstance(one, dict)
    return one


class TestMake:
    def test_memory_counts_over_all_gpus_and_grants(self, limited: Arbiter, owners: Owners) -> None:
        assert "name" in owners(limited.state, make("a", 6, 10), ALICE).answer
        answer = as_user(limited, owners, ALICE, make("b", 5, 10, OTHER_GPU))
        assert answer["code"] == "user-limit"
        assert answer["error"] == (
            f"user {ALICE} may have 10240 MiB of GPU memory in all and has 6144 MiB: 5120 MiB more"
            f" requested; root sets the limit in {limited.state.parent / 'users'}"
        )
        assert "name" in owners(limited.state, make("b", 4, 10, OTHER_GPU), ALICE).answer

    def test_compute_counts_over_all_gpus_and_each_slice_needs_a_share(
        self, limited: Arbiter, owners: Owners
    ) -> None:
        assert "name" in owners(limited.state, make("a", 1, 40), ALICE).answer
        more = as_user(limited, owners, ALICE, make("b", 1, 20, OTHER_GPU))
        assert (more["code"], "and has 40 %: 20 % more requested" in more["error"]) == (
            "user-limit",
            True,
        )
        without = as_user(limited, owners, ALICE, make("b", 1))
        assert (without["code"], "needs a percentage" in without["error"]) == ("share-needed", True)
        idle = make("b", 1, more=",priority=background")
        assert "name" in owners(limited.state, idle, ALICE).answer

    def test_the_number_of_grants(self, limited: Arbiter, owners: Owners) -> None:
        first = owners(limited.state, make("a", 1, 1), ALICE)
        owners(limited.state, make("b", 1, 1), ALICE)
        answer = as_user(limited, owners, ALICE, make("c", 1, 1))
        assert (answer["code"], "may have 2 grants and has 2: 1 more" in answer["error"]) == (
            "user-limit",
            True,
        )
        first.kill()
        wait_until(lambda: len(limited.status()["grants"]) == 1)
        assert "name" in owners(limited.state, make("c", 1, 1), ALICE).answer

    def test_one_grant_is_one_grant(self, limited: Arbiter, owners: Owners, users: Path) -> None:
        users.write_text(f"user {ALICE} grants 1\n")
        limited.ask("read-users")
        owners(limited.state, make("a", 1), ALICE)
        error = as_user(limited, owners, ALICE, make("b", 1))["error"]
        assert f"user {ALICE} may have 1 grant and has 1: 1 more requested" in error

    def test_a_user_without_a_line_has_the_limits_of_all(
        self, limited: Arbiter, owners: Owners
    ) -> None:
        assert as_user(limited, owners, BOB, make("a", 21))["code"] == "user-limit"
        assert "name" in as_user(limited, owners, BOB, make("a", 20))

    def test_nobody_wants_room_that_they_may_not_have(
        self, limited: Arbiter, owners: Owners
    ) -> None:
        """Others' memory would leave the GPU for it, again and again."""

        def want(gib: int) -> dict[str, Any]:
            request = f"want slice={GPU},memory={gib * GIB},compute=10"
            return as_user(limited, owners, ALICE, request)

        assert want(11)["code"] == "user-limit"
        assert want(10) == {"wanted": True}
        owners(limited.state, make("a", 6, 10), ALICE)
        assert want(5)["code"] == "user-limit"
        assert limited.ask(f"want slice={GPU},memory={60 * GIB}") == {"wanted": True}

    def test_root_has_no_limits(self, limited: Arbiter) -> None:
        assert "name" in limited.ask(make("a", 40))


class TestChanges:
    def test_a_resize_beyond_the_limit_is_refused_and_shrinking_is_not(
        self, limited: Arbiter, owners: Owners, users: Path
    ) -> None:
        owners(limited.state, make("a", 6, 10), ALICE)
        grow = f"resize name=a slice={GPU},memory={11 * GIB}"
        refused = as_user(limited, owners, ALICE, grow)
        assert refused["code"] == "user-limit"
        assert (
            "may have 10240 MiB of GPU memory in all and has 6144 MiB: 5120 MiB more"
            in (refused["error"])
        )
        share = f"resize name=a slice={GPU},compute=60"
        assert as_user(limited, owners, ALICE, share)["code"] == "user-limit"
        equal = f"resize name=a slice={GPU},compute=0"
        assert as_user(limited, owners, ALICE, equal)["code"] == "share-needed"
        users.write_text(f"user {ALICE} memory 2GiB compute 5 grants 0\n")
        assert "users" in limited.ask("read-users")
        shrink = f"resize name=a slice={GPU},memory={4 * GIB},compute=8"
        assert as_user(limited, owners, ALICE, shrink)["name"] == "a"

    def test_a_parked_grant_returns_only_within_the_limits(
        self, limited: Arbiter, owners: Owners
    ) -> None:
        owners(limited.state, make("a", 6, 10), ALICE)
        limited.ask(f"set-state name={ALICE}:a to=parked")
        assert own(limited, owners, ALICE)["used_memory_bytes"] == 0
        other = owners(limited.state, make("b", 6, 10), ALICE)
        back = f"set-state name={ALICE}:a to=active"
        assert limited.ask(back)["code"] == "user-limit"
        other.kill()
        wait_until(lambda: limited.ask(back).get("state") == "active")


class TestFile:
    def test_own_limits_and_use(self, limited: Arbiter, owners: Owners, users: Path) -> None:
        owners(limited.state, make("a", 6, 10), ALICE)
        assert own(limited, owners, ALICE) == {
            "uid": ALICE,
            "memory_bytes": 10 * GIB,
            "compute_percent": 50,
            "grants": 2,
            "used_memory_bytes": 6 * GIB,
            "used_compute_percent": 10,
            "used_grants": 1,
        }
        assert own(limited, owners, BOB)["memory_bytes"] == 20 * GIB
        limited.ask(make("mine", 1))
        answer = limited.ask("limits")
        assert (answer["file"], answer["problem"]) == (str(users), None)
        assert {one["uid"] for one in answer["users"]} == {0, ALICE}

    def test_limits_survive_a_restart(self, limited: Arbiter, owners: Owners) -> None:
        os.kill(limited.serving_pid(), signal.SIGKILL)
        wait_until(limited.answers)
        assert as_user(limited, owners, ALICE, make("a", 11, 1))["code"] == "user-limit"

    def test_only_root_has_the_file_read_again(
        self, limited: Arbiter, owners: Owners, users: Path
    ) -> None:
        users.write_text(f"user {ALICE} memory 1GiB\n")
        assert as_user(limited, owners, ALICE, "read-users")["code"] == "not-allowed"
        assert own(limited, owners, ALICE)["memory_bytes"] == 10 * GIB
        limited.ask("read-users")
        assert own(limited, owners, ALICE)["memory_bytes"] == GIB
        users.unlink()
        limited.ask("read-users")
        assert own(limited, owners, ALICE)["memory_bytes"] is None

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("users alice\n", "line 1: a line begins with `user` or #"),
            ("\nuser 1 memory 4GB\n", "line 2: memory is a whole number"),
            ("user 1 memory\n", "line 1: memory is a whole number"),
            ("user 1 colour 3\n", "line 1: the limits of a user are"),
            ("user 1 grants 1 grants 2\n", "line 1: a limit is given twice"),
            ("user 1\n", "line 1: a user needs at least one limit"),
            ("user 1 grants 1\nuser 01 grants 1\n", "line 2: 01: this user has a line already"),
            ("user no-such-user grants 1\n", "line 1: no-such-user: there is no such user"),
            ("user root grants 1\n", "line 1: root: root has no limits"),
        ],
    )
    def test_an_invalid_file_changes_nothing(
        self, limited: Arbiter, owners: Owners, users: Path, text: str, why: str
    ) -> None:
        users.write_text(text)
        answer = limited.ask("read-users")
        assert answer["code"] == "users-file"
        assert f"{users}, {why}" in answer["error"]
        assert own(limited, owners, ALICE)["memory_bytes"] == 10 * GIB

    @pytest.mark.parametrize("spoil", ["chmod", "chown", "folder"])
    def test_a_file_that_others_can_write_is_not_believed(
        self, limited: Arbiter, users: Path, spoil: str
    ) -> None:
        if spoil == "chmod":
            users.chmod(0o664)
        elif spoil == "chown":
            os.chown(users, ALICE, ALICE)
        else:
            users.unlink()
            users.mkdir()
        answer = limited.ask("read-users")
        assert (answer["code"], "cannot be used" in answer["error"]) == ("users-file", True)

    def test_no_arbiter_starts_with_an_invalid_file(
        self, stopped_arbiter: Arbiter, users: Path
    ) -> None:
        users.write_text("nonsense\n")
        done = subprocess.run(
            stopped_arbiter.command("--foreground", "--users", str(users)),
            env=stopped_arbiter.machine.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert f"{users}, line 1: a line begins with `user`" in done.stderr

    def test_a_restarted_arbiter_with_an_invalid_file_gives_users_nothing_new(
        self, limited: Arbiter, owners: Owners, users: Path
    ) -> None:
        owners(limited.state, make("a", 6, 10), ALICE)
        users.write_text("nonsense\n")
        os.kill(limited.serving_pid(), signal.SIGKILL)
        wait_until(limited.answers)
        answer = as_user(limited, owners, BOB, make("b", 1))
        assert (answer["code"], f"{users}, line 1" in answer["error"]) == ("users-file", True)
        assert "name" in as_user(limited, owners, ALICE, f"resize name=a slice={GPU},memory={GIB}")
        assert "name" in limited.ask(make("b", 1))
        assert str(users) in limited.ask("limits")["problem"]
        users.write_text("")
        limited.ask("read-users")
        assert "name" in as_user(limited, owners, BOB, make("c", 1))
