"""Grants that root makes for a user: kept, or owned by one of the user's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.model import Admission, Life, Slice
from aliquot.model.errors import (
    ArbiterError,
    NameInUseError,
    PoolAdmitsError,
    ProcessGoneError,
    UserLimitError,
)
from aliquot.slices import control
from aliquot.slices.procfs import started_at
from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU
from support import GIB, MIB, wait_until
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aliquot.model import Grant
    from arbiter.rig import Arbiter, Owner, Tenant

    Tenants = Callable[[Path], Tenant]
    Owners = Callable[..., Owner]

pytestmark = needs_root

ALICE, BOB = 4001, 4002
ONE_GIB = [Slice(GPU, GIB)]
LINE = f"slice={GPU},memory={GIB}"


@pytest.fixture
def shared(arbiter: Arbiter, short_tmp: Path) -> Arbiter:
    """An arbiter that all users reach."""
    short_tmp.chmod(0o755)
    return arbiter


@contextmanager
def process_of(uid: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that user, until the end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=uid, group=uid) as process:
        try:
            yield process
        finally:
            process.kill()


def grant_of(arbiter: Arbiter, uid: int) -> Grant | None:
    found = (one for one in control.status(arbiter.state).grants if one.owner_uid == uid)
    return next(found, None)


def python_of(uid: int, body: str, *arguments: object) -> list[str]:
    """The command of a Python program that becomes that user; the interpreter may be root's."""
    become = f"import os, sys\nos.setgroups([])\nos.setgid({uid})\nos.setuid({uid})\n"
    return [sys.executable, "-E", "-S", "-c", become + body, *map(str, arguments)]


def hello_as(uid: int, directory: Path) -> int:
    """The kind of the answer to a HELLO of a process of that user."""
    body = "print(wire.exchange(Path(sys.argv[1]), wire.hello_message()).kind)\n"
    head = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path\nfrom arbiter import wire\n"
    )
    command = python_of(uid, body, directory)
    command[4] = head + command[4]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


class TestKeptForAUser:
    def test_it_belongs_to_the_user_and_stays_until_root_ends_it(self, shared: Arbiter) -> None:
        reference = control.make(shared.state, "train", ONE_GIB, owner=ALICE)
        grant = grant_of(shared, ALICE)
        assert grant
        assert (grant.name, grant.life) == (f"{ALICE}:train", Life.KEPT)
        assert reference.startswith(grant.directory + "#")
        assert Path(grant.directory).parent == shared.state / "grants"
        shared.kill()
        shared.start()
        assert grant_of(shared, ALICE)
        assert control.end(shared.state, f"{ALICE}:train")
        assert grant_of(shared, ALICE) is None

    def test_only_that_user_and_root_join_it(self, shared: Arbiter) -> None:
        control.make(shared.state, "train", ONE_GIB, owner=ALICE)
        grant = grant_of(shared, ALICE)
        assert grant
        directory = Path(grant.directory)
        assert hello_as(ALICE, directory) == wire.WELCOME
        assert hello_as(BOB, directory) == wire.REFUSED
        assert hello_as(0, directory) == wire.WELCOME

    def test_names_are_the_users_own(self, shared: Arbiter) -> None:
        for owner in (ALICE, BOB, None):
            control.make(shared.state, "train", ONE_GIB, kept=True, owner=owner)
        with pytest.raises(NameInUseError):
            control.make(shared.state, "train", ONE_GIB, owner=ALICE)

    def test_the_user_sees_it_and_others_see_its_size_alone(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        control.make(shared.state, "train", ONE_GIB, owner=ALICE)
        seen = {uid: owners(shared.state, "status", uid).answer for uid in (ALICE, BOB)}
        assert seen[ALICE]["grants"][0]["name"] == "train"
        assert seen[BOB]["grants"][0]["name"] is None
        assert seen[BOB]["grants"][0]["owner_uid"] == ALICE

    def test_it_counts_for_the_limits_of_the_user(
        self, stopped_arbiter: Arbiter, short_tmp: Path
    ) -> None:
        limits = short_tmp / "users"
        limits.write_text("user * memory 1GiB\n")
        limits.chmod(0o644)
        stopped_arbiter.start("--users", str(limits))
        control.make(stopped_arbiter.state, "one", ONE_GIB, owner=ALICE)
        with pytest.raises(UserLimitError, match="4001"):
            control.make(stopped_arbiter.state, "two", [Slice(GPU, MIB)], owner=ALICE)
        control.make(stopped_arbiter.state, "one", ONE_GIB, owner=BOB)

    def test_one_for_root_is_like_that_of_a_container(self, shared: Arbiter) -> None:
        control.make(shared.state, "train", ONE_GIB, owner=0)
        grant = grant_of(shared, 0)
        assert grant
        assert Path(grant.directory).parent == shared.state / "kept"


class TestOwnedByAProcess:
    def test_it_ends_with_that_process(self, shared: Arbiter) -> None:
        with process_of(ALICE) as process:
            control.make(shared.state, "train", ONE_GIB, owner=ALICE, pid=process.pid)
            grant = grant_of(shared, ALICE)
            assert grant
            assert (grant.life, grant.owner_pid, grant.owner_alive) == (
                Life.OWNED,
                process.pid,
                True,
            )
            shared.kill()
            shared.start()
            assert grant_of(shared, ALICE)
        wait_until(lambda: grant_of(shared, ALICE) is None)

    def test_a_later_process_with_the_same_pid_gets_nothing(self, shared: Arbiter) -> None:
        with process_of(ALICE) as process:
            started = started_at(process.pid)
            assert started is not None
            with pytest.raises(ProcessGoneError, match="has ended"):
                control.make(
                    shared.state,
                    "train",
                    ONE_GIB,
                    owner=ALICE,
                    pid=process.pid,
                    started=started - 1,
                )
        for _ in range(2):  # dead, and by the arbiter's word too
            with pytest.raises(ProcessGoneError):
                control.make(shared.state, "train", ONE_GIB, owner=ALICE, pid=process.pid)
        line = f"make name=train owner={ALICE} pid={process.pid} started={started} {LINE}"
        assert shared.ask(line)["code"] == "no-such-process"
        assert shared.status()["grants"] == []

    @pytest.mark.parametrize("whose", [BOB, 0])
    def test_another_users_process_gets_nothing(self, shared: Arbiter, whose: int) -> None:
        with process_of(whose) as process, pytest.raises(ProcessGoneError, match="as that user"):
            control.make(shared.state, "train", ONE_GIB, owner=ALICE, pid=process.pid)
        assert shared.status()["grants"] == []

    def test_a_process_in_whose_name_a_line_is_hidden_is_that_of_its_user(
        self, shared: Arbiter
    ) -> None:
        name = f"x\nUid:\t{ALICE}\t{ALICE}"[:15]
        body = f"open('/proc/self/comm', 'w').write({name!r}); print(flush=True); input()"
        with subprocess.Popen(
            python_of(BOB, body), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout
            process.stdout.readline()
            try:
                with pytest.raises(ProcessGoneError):
                    control.make(shared.state, "train", ONE_GIB, owner=ALICE, pid=process.pid)
            finally:
                process.kill()


class TestWhoMaySayAnOwner:
    @pytest.mark.parametrize("owner", [ALICE, BOB, 0])
    @pytest.mark.parametrize("life", ["kept=1", "pid=1 started=0"])
    def test_no_ordinary_user(self, shared: Arbiter, owners: Owners, owner: int, life: str) -> None:
        line = f"make name=train owner={owner} {life} {LINE}"
        assert owners(shared.state, line, ALICE).answer["code"] == "not-allowed"
        assert shared.status()["grants"] == []

    @pytest.mark.parametrize(
        "settings",
        [
            "owner=4001",
            "pid=1 started=1",
            "owner=4001 pid=1",
            "owner=4001 started=1 kept=1",
            "owner=4001 kept=1 pid=1 started=1",
            "owner=4001 owner=4001 kept=1",
            "owner=alice kept=1",
            "owner=4294967295 kept=1",
            "owner=-1 kept=1",
            "owner=4001 pid=0 started=1",
            "owner=4001 pid=2147483648 started=1",
            "owner=4001 pid=1 started=x",
        ],
    )
    def test_settings_that_do_not_agree_are_refused(self, shared: Arbiter, settings: str) -> None:
        assert shared.ask(f"make name=train {settings} {LINE}")["code"] == "malformed"
        assert shared.status()["grants"] == []


class TestAdmission:
    @pytest.fixture
    def pooled(self, stopped_arbiter: Arbiter, short_tmp: Path) -> Arbiter:
        short_tmp.chmod(0o755)
        stopped_arbiter.start("--admission", "pool")
        return stopped_arbiter

    def ask(self, arbiter: Arbiter, owners: Owners, line: str) -> dict[str, Any]:
        answer = owners(arbiter.state, line, ALICE).answer
        assert isinstance(answer, dict)
        return answer

    def test_users_are_told_that_the_pool_makes_grants(
        self, pooled: Arbiter, owners: Owners
    ) -> None:
        assert control.status(pooled.state).admission is Admission.POOL
        refused = self.ask(pooled, owners, f"make name=train {LINE}")
        assert refused["code"] == "pool-admits"
        assert "the pool makes the grants" in refused["error"]
        control.make(pooled.state, "roots", ONE_GIB)
        control.make(pooled.state, "train", ONE_GIB, owner=ALICE)

    def test_the_client_raises_what_to_do(self, pooled: Arbiter) -> None:
        os.seteuid(ALICE)
        try:
            with pytest.raises(PoolAdmitsError, match="aliquot submit"):
                control.make(pooled.state, "train", ONE_GIB)
        finally:
            os.seteuid(0)

    def test_a_user_can_shrink_a_grant_and_not_grow_it(
        self, pooled: Arbiter, owners: Owners
    ) -> None:
        slices = [Slice(GPU, 2 * GIB, 30), Slice(OTHER_GPU, 2 * GIB, 30)]
        control.make(pooled.state, "train", slices, owner=ALICE)
        for change in (
            f"slice={GPU},memory={3 * GIB}",
            f"slice={GPU},compute=31",
            f"slice={GPU},compute=0",
            f"slice={GPU},priority=latency",
            f"slice={GPU},memory={GIB} slice={OTHER_GPU},memory={3 * GIB}",
        ):
            refused = self.ask(pooled, owners, f"resize name=train {change}")
            assert refused["code"] == "pool-admits", change
        assert "slices" in self.ask(
            pooled, owners, f"resize name=train slice={GPU},memory={GIB},compute=10"
        )
        assert "slices" in pooled.ask(
            f"resize name={ALICE}:train slice={GPU},memory={3 * GIB},compute=40"
        )

    def test_by_default_users_ask_themselves(self, shared: Arbiter) -> None:
        assert control.status(shared.state).admission is Admission.USERS

    def test_an_unknown_word_is_refused(self, stopped_arbiter: Arbiter) -> None:
        done = subprocess.run(
            stopped_arbiter.command("--admission", "nobody"), capture_output=True, check=False
        )
        assert done.returncode == 2
        assert b"not users or pool: nobody" in done.stderr


class TestAnOlderArbiter:
    def test_its_refusal_says_what_to_look_at(self, shared: Arbiter) -> None:
        with pytest.raises(ArbiterError, match="another version"):
            control.ask(shared.state, f"make name=train later=1 {LINE}")
