"""Kept grants: of a container in which programs come and go until somebody ends it."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.slices.procfs import started_at
from arbiter import wire
from arbiter.rig import GPU, check_whole
from cgroups import make_cgroup
from support import GIB, Stopwatch, wait_until
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arbiter.rig import Arbiter, Machine, Owner, Rounds, Tenant

    Tenants = Callable[[Path], Tenant]
    Owners = Callable[[Path, str], Owner]


REQUEST = f"make name=pod kept=1 slice={GPU},memory={8 * GIB},compute=30"
MAKE_OWNED = f"make name=a slice={GPU},memory={GIB}"
END = "end name=pod"
GONE = {"name": "pod", "ended": True, "processes": 0}


def keep(arbiter: Arbiter) -> Path:
    answer = arbiter.ask(REQUEST)
    assert answer.get("name") == "pod", answer
    return Path(answer["directory"])


def pod(arbiter: Arbiter) -> dict[str, Any]:
    grant = arbiter.grant("pod")
    assert grant
    return grant


def nobody_is_left(arbiter: Arbiter) -> bool:
    """Repeat the request while an arbiter restarts."""
    with suppress(OSError, AssertionError):
        return arbiter.states("pod") == []
    return False


class TestKept:
    def test_a_kept_grant_stays_without_maker_and_processes(
        self, arbiter: Arbiter, tenants: Tenants, owners: Owners
    ) -> None:
        maker = owners(arbiter.state, REQUEST)
        grant = pod(arbiter)
        assert (grant["life"], grant["owner_pid"], grant["owner_alive"]) == ("kept", None, False)
        assert grant["owner_uid"] == os.getuid()
        maker.kill()
        for _ in range(2):
            tenant = tenants(maker.directory)
            tenant.hello()
            tenant.tell("hold", 0, GIB)
            assert arbiter.counted("pod") == GIB
            tenant.kill()
            wait_until(lambda: pod(arbiter)["processes"] == [])
        assert arbiter.counted("pod") == 0
        assert pod(arbiter)["life"] == "kept"
        assert arbiter.status()["gpus"][0]["granted_bytes"] == 8 * GIB

    def test_an_arbiter_with_a_kept_grant_does_not_end(self, arbiter: Arbiter) -> None:
        arbiter.end()
        arbiter.start("--linger", "1")
        keep(arbiter)
        assert arbiter.ask("stop")["code"] == "grants-left"
        log = arbiter.log.read_text()
        wait_until(lambda: arbiter.ask(END) == GONE)
        assert "no grants for" not in log
        assert arbiter.process
        assert arbiter.process.wait(60) == 0
        arbiter.kill_is_done()

    @needs_root
    def test_no_other_user_of_the_host_reaches_the_socket(
        self, arbiter: Arbiter, tenants: Tenants, short_tmp: Path
    ) -> None:
        short_tmp.chmod(0o755)
        tenant = tenants(keep(arbiter))
        tenant.tell("become-nobody")
        assert tenant.tell("hello") == "unreachable"
        assert arbiter.states("pod") == []

    @needs_root
    def test_a_host_user_with_a_descriptor_of_the_directory_is_refused(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        tenant = tenants(keep(arbiter))
        tenant.tell("hold-directory")
        tenant.tell("become-nobody")
        kind, value, *text = tenant.tell("hello").split()
        assert (int(kind), int(value)) == (wire.REFUSED, wire.OWNER), text
        assert arbiter.states("pod") == []

    @needs_root
    def test_any_user_in_the_container_may_join_and_only_root_may_make_and_end(
        self, arbiter: Arbiter, tenants: Tenants, short_tmp: Path
    ) -> None:
        short_tmp.chmod(0o755)
        tenant = tenants(keep(arbiter))
        tenant.tell("enter-container")
        tenant.tell("hold-directory")
        assert tenant.tell("become-nobody") == "nobody"
        assert tenant.hello() == 0
        tenant.tell("hold", 0, GIB)
        assert arbiter.counted("pod") == GIB
        other = REQUEST.replace("pod", "other").replace(" ", "+")
        assert tenant.tell("ask", arbiter.state, other) == "not-allowed"
        assert tenant.tell("ask", arbiter.state, "end+name=pod") == "not-allowed"
        resized = f"resize+name=pod+slice={GPU},compute=1"
        assert tenant.tell("ask", arbiter.state, resized) == "no-such-grant"
        assert [one["name"] for one in arbiter.status()["grants"]] == ["pod"]

    def test_only_processes_in_the_cgroup_may_join_if_it_is_known(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        with make_cgroup(f"aliquot-kept-{os.getpid()}") as cgroup:
            if not cgroup:
                pytest.skip("needs root and a cgroup hierarchy that can be written")
            directory = keep(arbiter)
            assert "cgroup" in arbiter.ask(f"set-cgroup name=pod path={cgroup.path}")
            kind, value, *text = tenants(directory).tell("hello").split()
            assert (int(kind), int(value)) == (wire.REFUSED, wire.OWNER), text
            inside = tenants(directory)
            cgroup.below("nested").enter(inside.pid)
            assert inside.hello() == 0
            inside.close()

    def test_the_container_may_be_started_anew_in_another_cgroup(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        """As a kubelet does with a container that has ended: the grant stays."""
        directory = keep(arbiter)
        with make_cgroup(f"aliquot-kept-{os.getpid()}") as cgroup:
            if not cgroup:
                pytest.skip("needs root and a cgroup hierarchy that can be written")
            assert "cgroup" in arbiter.ask(f"set-cgroup name=pod path={cgroup.path}")
            assert pod(arbiter)["cgroup_is_told"] is True
        tenant = tenants(directory)
        assert tenant.hello() == 0
        assert pod(arbiter)["cgroup_is_told"] is False

    def test_a_removed_cgroup_is_asked_for_again(self, arbiter: Arbiter) -> None:
        """Whoever tells cgroups sees that one is missing, whether or not a process joins."""
        keep(arbiter)
        with make_cgroup(f"aliquot-kept-{os.getpid()}") as cgroup:
            if not cgroup:
                pytest.skip("needs root and a cgroup hierarchy that can be written")
            assert "cgroup" in arbiter.ask(f"set-cgroup name=pod path={cgroup.path}")
        wait_until(lambda: not pod(arbiter)["cgroup_is_told"])

    def test_a_kept_grant_can_be_resized(self, arbiter: Arbiter) -> None:
        keep(arbiter)
        answer = arbiter.ask(f"resize name=pod slice={GPU},memory={4 * GIB},compute=50")
        assert answer["slices"] == [{"gpu": GPU, "memory_bytes": 4 * GIB, "reached": True}]
        assert pod(arbiter)["slices"][0]["compute_percent"] == 50

    def test_a_kept_grant_outlives_arbiter_and_parent(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory = keep(arbiter)
        tenant = tenants(directory)
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        os.kill(arbiter.serving_pid(), signal.SIGKILL)
        wait_until(arbiter.answers)
        assert arbiter.counted("pod") == GIB
        arbiter.kill()
        tenant.kill()
        arbiter.start()
        wait_until(lambda: pod(arbiter)["processes"] == [])
        assert (pod(arbiter)["life"], arbiter.counted("pod")) == ("kept", 0)
        assert tenants(directory).hello() == 0


class TestEnd:
    def test_a_grant_without_processes_is_removed_at_once(self, arbiter: Arbiter) -> None:
        directory = keep(arbiter)
        assert arbiter.ask(END) == GONE
        assert arbiter.grant("pod") is None
        assert not directory.exists()
        assert arbiter.ask(END) == GONE
        keep(arbiter)

    def test_a_grant_ends_with_its_last_process_and_refuses_others(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        directory = keep(arbiter)
        first, last = tenants(directory), tenants(directory)
        for tenant in (first, last):
            tenant.hello()
            tenant.tell("hold", 0, GIB)
        assert arbiter.ask(END) == {"name": "pod", "ended": False, "processes": 2}
        assert pod(arbiter)["life"] == "ended"
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.ENDED)
        assert last.tell("measure") == "measured"
        first.kill()
        wait_until(lambda: arbiter.counted("pod") == GIB)
        assert arbiter.ask(END) == {"name": "pod", "ended": False, "processes": 1}
        machine.list_process(last.pid, GIB)
        last.kill()
        wait_until(lambda: arbiter.states("pod") == ["ending"])
        assert arbiter.ask(REQUEST)["code"] == "name-in-use"
        machine.drop_process(last.pid)
        wait_until(lambda: arbiter.ask(END) == GONE)
        assert not directory.exists()
        assert arbiter.status()["gpus"][0]["granted_bytes"] == 0

    def test_ending_an_unknown_grant_succeeds(self, arbiter: Arbiter) -> None:
        assert arbiter.ask(END) == GONE

    def test_an_owned_grant_is_ended_by_its_owner_alone(
        self, arbiter: Arbiter, owners: Owners
    ) -> None:
        owner = owners(arbiter.state, MAKE_OWNED)
        answer = arbiter.ask("end name=a")
        assert answer["code"] == "not-kept"
        assert str(owner.process.pid) in answer["error"]
        assert arbiter.grant("a")
        assert owner.ask("end name=a") == {"name": "a", "ended": True, "processes": 0}
        assert not owner.directory.exists()
        assert "grant" in owner.ask(MAKE_OWNED)

    def test_after_its_owner_has_ended_it_a_grant_lasts_as_long_as_its_processes(
        self, arbiter: Arbiter, owners: Owners, tenants: Tenants
    ) -> None:
        owner = owners(arbiter.state, MAKE_OWNED)
        tenant = tenants(owner.directory)
        tenant.hello()
        assert owner.ask("end name=a") == {"name": "a", "ended": False, "processes": 1}
        arbiter.kill()
        arbiter.start()
        (grant,) = arbiter.status()["grants"]
        assert (grant["life"], grant["owner_alive"]) == ("ended", False)
        answer = wire.exchange(owner.directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.ENDED)
        assert tenant.tell("measure") == "measured"
        tenant.kill()
        wait_until(lambda: not owner.directory.exists())

    def test_an_end_request_survives_a_restart(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = keep(arbiter)
        tenant = tenants(directory)
        tenant.hello()
        arbiter.ask(END)
        arbiter.kill()
        arbiter.start()
        assert pod(arbiter)["life"] == "ended"
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.ENDED)
        arbiter.kill()
        tenant.kill()
        arbiter.start()
        wait_until(lambda: arbiter.grant("pod") is None)
        assert not directory.exists()

    def test_an_unreadable_grant_is_removed_at_once(self, arbiter: Arbiter) -> None:
        keep(arbiter)
        record = arbiter.record("pod")
        arbiter.kill()
        record.write_bytes(b"rubbish")
        arbiter.start()
        assert pod(arbiter)["broken"]
        assert arbiter.ask(END) == GONE
        keep(arbiter)

    def test_an_empty_folder_is_not_a_grant(self, arbiter: Arbiter) -> None:
        """A container runtime creates a folder that is missing."""
        folder = arbiter.state / "kept" / "pod"
        arbiter.kill()
        folder.mkdir()
        arbiter.start()
        assert arbiter.status()["grants"] == []
        folder.mkdir(exist_ok=True)
        assert keep(arbiter) == folder


def test_an_arbiter_killed_while_ending_a_grant_recovers(rounds: Rounds, tenants: Tenants) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        tenant = tenants(keep(arbiter))
        tenant.hello()
        rounds.kill_at(step)
        with suppress(OSError, AssertionError):  # the answer may never come
            arbiter.ask(END)
        tenant.kill()
        wait_until(lambda: nobody_is_left(arbiter))  # noqa: B023 - called before the next round
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        assert arbiter.ask(END) == GONE
        assert arbiter.grant("pod") is None
        arbiter.end()
    assert step > 10, "the arbiter was not killed where it should be"


@pytest.fixture
def first() -> Iterator[subprocess.Popen[bytes]]:
    """The first process of a container; it need not be this user's."""
    with subprocess.Popen(["sleep", "2147483647"]) as process:
        yield process
        process.kill()


def keep_while(arbiter: Arbiter, first: subprocess.Popen[bytes]) -> Path:
    answer = arbiter.ask(f"{REQUEST} pid={first.pid} started={started_at(first.pid)}")
    assert answer.get("name") == "pod", answer
    return Path(answer["directory"])


class TestKeptWhileAProcessLives:
    """The grant of a container whose first process is known: the kernel says when it ends."""

    def test_it_ends_within_a_second_of_the_process(
        self, arbiter: Arbiter, tenants: Tenants, first: subprocess.Popen[bytes]
    ) -> None:
        directory = keep_while(arbiter, first)
        assert directory.parent.name == "kept"
        tenant = tenants(directory)
        tenant.hello()
        tenant.kill()
        wait_until(lambda: pod(arbiter)["processes"] == [])
        grant = pod(arbiter)
        assert (grant["life"], grant["owner_pid"]) == ("kept", first.pid)
        with Stopwatch() as took:
            first.kill()
            wait_until(lambda: arbiter.grant("pod") is None)
        assert took.seconds < took.limit(1)
        assert not directory.exists()

    def test_processes_that_outlive_it_keep_it_and_no_other_joins(
        self, arbiter: Arbiter, tenants: Tenants, first: subprocess.Popen[bytes]
    ) -> None:
        directory = keep_while(arbiter, first)
        tenant, late = tenants(directory), tenants(directory)
        tenant.hello()
        first.kill()
        wait_until(lambda: pod(arbiter)["life"] == "ended")
        kind, value, *text = late.tell("hello").split()
        assert (int(kind), int(value)) == (wire.REFUSED, wire.ENDED), text
        tenant.kill()
        wait_until(lambda: arbiter.grant("pod") is None)

    def test_an_arbiter_that_was_away_finds_out(
        self, arbiter: Arbiter, first: subprocess.Popen[bytes]
    ) -> None:
        keep_while(arbiter, first)
        arbiter.kill()
        arbiter.start()
        assert pod(arbiter)["owner_pid"] == first.pid
        arbiter.kill()
        first.kill()
        first.wait()
        arbiter.start()
        assert arbiter.grant("pod") is None

    def test_somebody_may_end_it_before(
        self, arbiter: Arbiter, first: subprocess.Popen[bytes]
    ) -> None:
        keep_while(arbiter, first)
        assert arbiter.ask(END) == GONE

    def test_the_process_must_be_that_one(
        self, arbiter: Arbiter, first: subprocess.Popen[bytes]
    ) -> None:
        started = started_at(first.pid) or 0
        other = arbiter.ask(f"{REQUEST} pid={first.pid} started={started + 1}")
        assert other["code"] == "no-such-process"
        assert arbiter.ask(f"{REQUEST} pid={first.pid}")["code"] == "malformed"
        owned = f"{MAKE_OWNED} pid={first.pid} started={started}"
        assert arbiter.ask(owned)["code"] == "malformed"
        assert arbiter.status()["grants"] == []
