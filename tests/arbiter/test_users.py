"""Users of one arbiter: names are per user, and nobody sees or changes what others have."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU
from support import GIB, MIB, on_this_machine, wait_until
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arbiter.rig import Arbiter, Owner, Tenant

    Tenants = Callable[[Path], Tenant]
    Owners = Callable[..., Owner]

pytestmark = needs_root

ALICE, BOB = 4001, 4002
MAKE = f"make name=train slice={GPU},memory={GIB}"


@pytest.fixture
def shared(arbiter: Arbiter, short_tmp: Path) -> Arbiter:
    """An arbiter that all users reach."""
    short_tmp.chmod(0o755)
    return arbiter


def as_user(arbiter: Arbiter, owners: Owners, uid: int | None, request: str) -> dict[str, Any]:
    """The reply to a request of that user, who is gone afterwards."""
    caller = owners(arbiter.state, request, uid)
    caller.kill()
    answer = caller.answer
    assert isinstance(answer, dict)
    return answer


class TestNames:
    def test_each_user_may_have_a_grant_of_the_same_name(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        made = [owners(shared.state, MAKE, uid) for uid in (None, ALICE, BOB)]
        assert [one.answer["name"] for one in made] == ["train"] * 3
        assert len({one.directory for one in made}) == 3
        grants = shared.status()["grants"]
        assert {one["owner_uid"] for one in grants} == {0, ALICE, BOB}
        assert owners(shared.state, MAKE, ALICE).answer["code"] == "name-in-use"

    def test_a_request_is_about_the_callers_own_grant(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        owners(shared.state, MAKE, ALICE)
        owners(shared.state, MAKE, BOB)
        resize = f"resize name=train slice={GPU},memory={2 * GIB}"
        assert "slices" in as_user(shared, owners, BOB, resize)
        sizes = {
            one["owner_uid"]: one["slices"][0]["memory_bytes"] for one in shared.status()["grants"]
        }
        assert sizes == {ALICE: GIB, BOB: 2 * GIB}

    def test_root_names_another_users_grant_by_user_and_name(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        owners(shared.state, MAKE, ALICE)
        change = f"slice={GPU},compute=10"
        assert shared.ask(f"resize name=train {change}")["code"] == "no-such-grant"
        assert shared.ask(f"resize name={ALICE}:train {change}")["name"] == "train"
        assert shared.ask(f"set-state name={ALICE}:train to=parked")["state"] == "parked"
        assert shared.ask(f"end name={ALICE}:train")["code"] == "not-kept"

    def test_a_process_of_a_user_ends_its_own_grant_and_no_other(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        alice, bob = (owners(shared.state, MAKE, uid) for uid in (ALICE, BOB))
        for name in ("train", f"{ALICE}:train", "other"):
            assert as_user(shared, owners, ALICE, f"end name={name}")["code"] == "not-allowed"
        assert bob.ask(f"end name={ALICE}:train")["code"] == "not-allowed"
        assert alice.ask("end name=train")["ended"] is True
        assert [one["owner_uid"] for one in shared.status()["grants"]] == [BOB]

    @pytest.mark.parametrize("whose", ["0:", f"{ALICE}:", ""])
    def test_another_users_grant_and_none_give_the_same_answer(
        self, shared: Arbiter, owners: Owners, whose: str
    ) -> None:
        owners(shared.state, MAKE)
        owners(shared.state, MAKE, ALICE)
        answers = [
            as_user(shared, owners, BOB, f"resize name={whose}{name} slice={GPU},compute=1")
            for name in ("train", "other")
        ]
        assert answers[0] == {
            key: value.replace("other", "train") for key, value in answers[1].items()
        }
        assert answers[0]["code"] == "no-such-grant"

    @pytest.mark.parametrize("name", [f"{ALICE}:train", ":train", "x:train", f"{1 << 32}:train"])
    def test_no_colon_in_the_name_of_a_new_grant(self, shared: Arbiter, name: str) -> None:
        assert shared.ask(MAKE.replace("train", name))["code"] == "malformed"
        assert shared.status()["grants"] == []

    def test_names_survive_a_restart(
        self, shared: Arbiter, owners: Owners, tenants: Tenants
    ) -> None:
        made = [owners(shared.state, MAKE, uid) for uid in (None, ALICE, BOB)]
        for one in made:
            tenants(one.directory).hello()
        before = sorted((one["owner_uid"], one["directory"]) for one in shared.status()["grants"])
        shared.kill()
        shared.start()
        grants = shared.status()["grants"]
        assert sorted((one["owner_uid"], one["directory"]) for one in grants) == before
        assert {one["name"] for one in grants} == {"train"}
        assert {len(one["processes"]) for one in grants} == {1}
        resize = f"resize name=train slice={GPU},compute=1"
        assert "slices" in as_user(shared, owners, BOB, resize)
        made[2].kill()
        wait_until(lambda: len(shared.status()["grants"]) == 3)  # its process lives
        assert owners(shared.state, MAKE, BOB).answer["code"] == "name-in-use"

    def test_the_longest_name_works_for_every_user(self, shared: Arbiter, owners: Owners) -> None:
        name = "n" * 63
        made = owners(shared.state, MAKE.replace("train", name), 4_294_967_294)
        assert made.answer["name"] == name
        assert shared.status()["grants"][0]["name"] == name


class TestSecrecy:
    def test_nobody_can_list_or_guess_the_directories_of_grants(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        made = owners(shared.state, MAKE, ALICE)
        assert stat.S_IMODE((shared.state / "grants").stat().st_mode) == 0o711
        assert stat.S_IMODE((shared.state / "kept").stat().st_mode) == 0o700
        assert "train" not in made.directory.name
        again = owners(shared.state, MAKE.replace("train", "two"), ALICE)
        assert made.directory.name != again.directory.name

    def test_status_says_whose_a_slice_is_and_hides_the_rest(
        self, shared: Arbiter, owners: Owners, tenants: Tenants
    ) -> None:
        theirs = owners(shared.state, MAKE.replace("train", "secret") + ",compute=30", ALICE)
        tenants(theirs.directory).hello()
        owners(shared.state, MAKE, BOB)
        answer = as_user(shared, owners, BOB, "status")
        seen = {one["owner_uid"]: one for one in answer["grants"]}
        assert seen[BOB]["name"] == "train"
        hidden = seen[ALICE]
        assert (hidden["name"], hidden["directory"], hidden["owner_pid"]) == (None, None, None)
        assert hidden["processes"] == []
        assert hidden["slices"][0]["memory_bytes"] == GIB
        assert hidden["slices"][0]["compute_percent"] == 30
        assert "secret" not in str(answer)
        assert len(shared.status()["grants"]) == 2
        assert {one["name"] for one in shared.status()["grants"]} == {"train", "secret"}

    def test_a_refusal_for_lack_of_compute_names_no_grant_of_others(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        owners(shared.state, MAKE.replace("train", "secret") + ",compute=70", ALICE)
        owners(shared.state, MAKE.replace("train", "mine") + ",compute=10", BOB)
        answer = as_user(shared, owners, BOB, MAKE + ",compute=30")
        assert answer["code"] == "no-capacity"
        assert "other users have 70 %" in answer["error"]
        assert "mine has 10 %" in answer["error"]
        assert "secret" not in answer["error"]

    def test_errors_name_a_grant_as_the_reader_does(self, shared: Arbiter, owners: Owners) -> None:
        made = owners(shared.state, MAKE + ",compute=70", ALICE)
        elsewhere = f"resize name=train slice={OTHER_GPU},compute=1"
        more = MAKE.replace("train", "two") + ",compute=40"
        for request, words in (
            (elsewhere, "grant train has no slice of"),
            (more, "requested, train has 70 %"),
        ):
            assert words in as_user(shared, owners, ALICE, request)["error"]
        as_root = elsewhere.replace("train", f"{ALICE}:train")
        assert f"grant {ALICE}:train has no slice of" in shared.ask(as_root)["error"]
        assert f"requested, {ALICE}:train has 70 %" in shared.ask(more)["error"]
        made.kill()

    def test_a_program_is_refused_with_the_name_that_its_user_knows(
        self, shared: Arbiter, owners: Owners, tenants: Tenants
    ) -> None:
        made = owners(shared.state, MAKE, ALICE)
        shared.ask(f"set-state name={ALICE}:train to=parked")
        kind, why, *text = tenants(made.directory).tell("hello").split()
        assert (int(kind), int(why)) == (wire.REFUSED, wire.PARKED)
        assert " ".join(text) == "grant train is switching or parked"

    def test_another_user_cannot_join(
        self, shared: Arbiter, owners: Owners, tenants: Tenants
    ) -> None:
        tenant = tenants(owners(shared.state, MAKE, ALICE).directory)
        tenant.tell("become-nobody")
        kind, why, *text = tenant.tell("hello").split()
        assert (int(kind), int(why)) == (wire.REFUSED, wire.OWNER)
        assert "train" not in " ".join(text)

    @pytest.mark.parametrize(
        "request_line", [f"set-state name=train to={state}" for state in ("parked", "switching")]
    )
    def test_a_user_cannot_change_the_state_even_of_an_own_grant(
        self, shared: Arbiter, owners: Owners, request_line: str
    ) -> None:
        owners(shared.state, MAKE, ALICE)
        assert as_user(shared, owners, ALICE, request_line)["code"] == "not-allowed"
        assert shared.status()["grants"][0]["state"] == "active"

    def test_no_user_but_root_reads_the_log(self, shared: Arbiter) -> None:
        shared.end()
        command = shared.command("--linger", "60")
        os.spawnve(os.P_WAIT, command[0], command, shared.machine.environment)
        try:
            log = shared.state / "arbiter.log"
            assert stat.S_IMODE(log.stat().st_mode) == 0o600
        finally:
            shared.ask("stop")
            wait_until(lambda: not (shared.state / "arbiter.pid").exists())


@contextmanager
def program_of(uid: int, arbiter: Arbiter, body: str) -> Iterator[str]:
    """Runs a Python program as a user, and yields the line that it prints; it lives until the end.

    The program has `ask` and `state`.
    """
    head = (
        f"import os, sys, time\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path\nfrom arbiter.wire import ask\n"
        f"os.setgroups([])\nos.setgid({uid})\nos.setuid({uid})\n"
        f"state = Path({str(arbiter.state)!r})\n"
    )
    command = [sys.executable, "-E", "-S", "-c", f"{head}{body}sys.stdin.read()\n"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout
        try:
            yield program.stdout.readline()
        finally:
            program.kill()


FLOOD = """
import os, select, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
folder = os.open(sys.argv[1], os.O_PATH)
open_ones, told = [], False
while True:
    while len(open_ones) < 300:
        one = socket.socket(socket.AF_UNIX)
        one.connect(f"/proc/self/fd/{folder}/control")
        try:
            one.send(b"sta")
        except OSError:
            pass
        open_ones.append(one)
    ready, _, _ = select.select(open_ones, [], [], 1)
    for one in ready:
        try:
            busy = b"busy" in one.recv(4096)
        except OSError:
            busy = False
        if busy and not told:
            told = True
            print("busy", flush=True)
        open_ones.remove(one)
        one.close()
"""


class TestFloods:
    @pytest.mark.shares
    def test_a_user_with_many_open_connections_blocks_no_other(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        command = [sys.executable, "-E", "-S", "-c", FLOOD, str(shared.state), str(ALICE)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
            try:
                time.sleep(1)
                for uid in (BOB, None):
                    started = time.monotonic()
                    answer = as_user(shared, owners, uid, "status")
                    assert answer["grants"] == []
                    assert time.monotonic() - started < on_this_machine(1.5)
                assert flood.stdout
                assert flood.stdout.readline() == "busy\n"
            finally:
                flood.kill()

    def test_a_user_with_too_many_requests_is_told_to_try_again(self, shared: Arbiter) -> None:
        codes = (
            "codes = [ask(state, b'end name=x\\n')['code'] for _ in range(1500)]\n"
            "time.sleep(1)\n"
            "print(*sorted(set(codes)), ask(state, b'end name=x\\n')['code'], flush=True)\n"
        )
        with program_of(ALICE, shared, codes) as told:
            assert told.split() == ["busy", "not-allowed", "not-allowed"]
        for _ in range(1500):
            assert "code" not in shared.ask("end name=x")

    def test_a_user_has_a_bounded_number_of_grants(self, shared: Arbiter, owners: Owners) -> None:
        make = (
            f"line = 'make name=g%d slice={GPU},memory={MIB}\\n'\n"
            "def make(i):\n"
            "    while (code := ask(state, (line % i).encode()).get('code')) == 'busy':\n"
            "        time.sleep(0.1)\n"
            "    return code\n"
            "codes = [make(i) for i in range(140)]\n"
            "print(codes.count(None), *set(codes[128:]), flush=True)\n"
        )
        with program_of(ALICE, shared, make) as told:
            assert told == "128 user-limit\n"
            assert "directory" in as_user(shared, owners, BOB, MAKE)
        wait_until(lambda: shared.status()["grants"] == [])
