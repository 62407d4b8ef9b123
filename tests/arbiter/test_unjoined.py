"""Processes that use a GPU in a grant's cgroup and have not joined the grant."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU
from cgroups import make_cgroup
from support import GIB, MIB, Stopwatch, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arbiter.rig import Arbiter, Machine, Tenant
    from cgroups import Cgroup

    Tenants = Callable[[Path], Tenant]
    Programs = Callable[[Cgroup | None], subprocess.Popen[bytes]]


@pytest.fixture
def cgroup(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    with make_cgroup(f"aliquot-{os.getpid()}-{id(request)}") as made:
        if not made:
            pytest.skip("needs root and a cgroup hierarchy that can be written")
        yield made


@pytest.fixture
def programs() -> Iterator[Programs]:
    """Starts programs that never join, in a cgroup."""
    with ExitStack() as ends:

        def start(cgroup: Cgroup | None) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
            process = subprocess.Popen(command)
            ends.callback(process.wait)
            ends.callback(process.kill)
            if cgroup:
                cgroup.enter(process.pid)
            return process

        yield start


def make_kept(arbiter: Arbiter, name: str = "a", memory: int = 8 * GIB, gpu: str = GPU) -> Path:
    answer = arbiter.ask(f"make name={name} kept=1 slice={gpu},memory={memory}")
    return Path(answer["directory"])


def set_cgroup(arbiter: Arbiter, cgroup: Cgroup, name: str = "a") -> None:
    answer = arbiter.ask(f"set-cgroup name={name} path={cgroup.path}")
    assert answer == {"name": name, "cgroup": cgroup.path}


def grant(arbiter: Arbiter, name: str = "a") -> dict[str, Any]:
    found = arbiter.grant(name)
    assert found
    return found


def driver_bytes(arbiter: Arbiter, name: str = "a") -> int:
    return int(grant(arbiter, name)["slices"][0]["driver_bytes"])


def unjoined(arbiter: Arbiter, name: str = "a") -> list[tuple[int, int]]:
    return [(one["pid"], one["bytes"]) for one in grant(arbiter, name)["unjoined"]]


class TestReport:
    def test_is_charged_at_once_and_reported(
        self, arbiter: Arbiter, machine: Machine, cgroup: Cgroup, programs: Programs
    ) -> None:
        make_kept(arbiter)
        set_cgroup(arbiter, cgroup)
        program = programs(cgroup.below("nested"))
        machine.list_process(program.pid, 3 * GIB)
        wait_until(lambda: driver_bytes(arbiter) == 3 * GIB)
        assert unjoined(arbiter) == [(program.pid, 3 * GIB)]
        assert grant(arbiter)["cgroup"] == cgroup.path
        said = f"grant a: process {program.pid} uses 3072 MiB"
        wait_until(lambda: said in arbiter.log.read_text())
        time.sleep(1)
        assert program.poll() is None
        assert arbiter.log.read_text().count(said) == 1
        machine.drop_process(program.pid)
        wait_until(lambda: driver_bytes(arbiter) == 0)
        assert unjoined(arbiter) == []

    def test_its_work_was_no_idle_time(
        self, arbiter: Arbiter, machine: Machine, cgroup: Cgroup, programs: Programs
    ) -> None:
        make_kept(arbiter)
        set_cgroup(arbiter, cgroup)
        program = programs(cgroup.below("nested"))
        machine.list_process(program.pid, GIB)
        wait_until(lambda: arbiter.compute()["idle_ns"] is None)
        started = arbiter.status()["now_ns"]
        wait_until(lambda: arbiter.status()["now_ns"] > started + 3_000_000_000)
        machine.drop_process(program.pid)
        wait_until(lambda: arbiter.compute()["idle_ns"] is not None)
        assert arbiter.compute()["idle_ns"] < 2_000_000_000

    def test_a_process_without_a_figure_is_charged_an_estimate(
        self, arbiter: Arbiter, machine: Machine, cgroup: Cgroup, programs: Programs
    ) -> None:
        """Also where no process has joined for which there was a figure, or none."""
        make_kept(arbiter)
        set_cgroup(arbiter, cgroup)
        machine.list_process(programs(cgroup).pid, "unknown")
        wait_until(lambda: driver_bytes(arbiter) == 512 * MIB)

    def test_others_are_not_charged(
        self,
        arbiter: Arbiter,
        machine: Machine,
        tenants: Tenants,
        cgroup: Cgroup,
        programs: Programs,
    ) -> None:
        """Not a process outside the cgroup, nor on another GPU, nor one that has joined."""
        tenant = tenants(make_kept(arbiter))
        set_cgroup(arbiter, cgroup)
        outside, elsewhere = programs(None), programs(cgroup)
        cgroup.enter(tenant.pid)
        tenant.hello()
        machine.list_process(outside.pid, GIB)
        machine.list_process(elsewhere.pid, GIB, OTHER_GPU)
        machine.list_process(tenant.pid, 300 * MIB)
        wait_until(lambda: driver_bytes(arbiter) == 300 * MIB)
        time.sleep(0.6)
        assert driver_bytes(arbiter) == 300 * MIB
        assert unjoined(arbiter) == []

    def test_a_process_that_joins_is_not_charged_any_more(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants, cgroup: Cgroup
    ) -> None:
        tenant = tenants(make_kept(arbiter))
        set_cgroup(arbiter, cgroup)
        cgroup.enter(tenant.pid)
        machine.list_process(tenant.pid, GIB)
        wait_until(lambda: unjoined(arbiter) == [(tenant.pid, GIB)])
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        wait_until(lambda: unjoined(arbiter) == [] and driver_bytes(arbiter) == 0)

    def test_the_innermost_cgroup_counts(
        self, arbiter: Arbiter, machine: Machine, cgroup: Cgroup, programs: Programs
    ) -> None:
        inner = cgroup.below("inner")
        for name, where in (("a", cgroup), ("b", inner)):
            make_kept(arbiter, name)
            set_cgroup(arbiter, where, name)
        machine.list_process(programs(inner).pid, GIB)
        wait_until(lambda: driver_bytes(arbiter, "b") == GIB)
        assert driver_bytes(arbiter) == 0

    def test_a_grant_that_its_tenant_broke_is_charged_all_the_same(
        self, arbiter: Arbiter, machine: Machine, cgroup: Cgroup, programs: Programs
    ) -> None:
        directory = make_kept(arbiter)
        set_cgroup(arbiter, cgroup)
        os.truncate(directory / "usage", 0)
        assert grant(arbiter)["broken"] == "usage: truncated while in use"
        program = programs(cgroup)
        machine.list_process(program.pid, GIB)
        wait_until(lambda: driver_bytes(arbiter) == GIB)
        assert unjoined(arbiter) == [(program.pid, GIB)]

    def test_ends_with_its_grant(
        self, arbiter: Arbiter, machine: Machine, cgroup: Cgroup, programs: Programs
    ) -> None:
        make_kept(arbiter)
        set_cgroup(arbiter, cgroup)
        machine.list_process(programs(cgroup).pid, GIB)
        wait_until(lambda: driver_bytes(arbiter) == GIB)
        arbiter.ask("end name=a")
        assert arbiter.grant("a") is None
        make_kept(arbiter)
        assert (grant(arbiter)["cgroup"], unjoined(arbiter), driver_bytes(arbiter)) == (None, [], 0)


class TestEnd:
    @pytest.fixture
    def arbiter(self, stopped_arbiter: Arbiter) -> Arbiter:
        stopped_arbiter.start("--unjoined", "end")
        return stopped_arbiter

    @pytest.mark.shares
    def test_is_killed_within_a_second_or_so(
        self, arbiter: Arbiter, machine: Machine, cgroup: Cgroup, programs: Programs
    ) -> None:
        make_kept(arbiter)
        set_cgroup(arbiter, cgroup)
        program = programs(cgroup)
        with Stopwatch() as took:
            machine.list_process(program.pid, GIB)
            assert program.wait(60) == -9
        assert 0.5 <= took.seconds < took.limit(1.5)
        wait_until(
            lambda: f"process {program.pid} has not joined: ended" in arbiter.log.read_text()
        )

    def test_nobody_else_is_killed(
        self,
        arbiter: Arbiter,
        machine: Machine,
        tenants: Tenants,
        cgroup: Cgroup,
        programs: Programs,
    ) -> None:
        """Not who draws, who has joined, who is outside, who leaves the GPU in time."""
        tenant, late = (tenants(make_kept(arbiter, name)) for name in "ab")
        set_cgroup(arbiter, cgroup)
        draws, outside, brief, other = (programs(where) for where in (cgroup, None, cgroup, cgroup))
        for process in (tenant, late):
            cgroup.enter(process.pid)
        tenant.hello()
        machine.list_process(tenant.pid, GIB)
        machine.list_process(draws.pid, GIB, kind="drawing")
        machine.list_process(outside.pid, GIB)
        machine.list_process(other.pid, GIB, OTHER_GPU)
        machine.list_process(late.pid, GIB)
        machine.list_process(brief.pid, GIB)
        time.sleep(0.3)
        machine.drop_process(brief.pid)
        late.hello()  # joins another grant
        time.sleep(1.5)
        assert [one.poll() for one in (draws, outside, brief, other)] == [None] * 4
        assert tenant.tell("measure") == late.tell("measure") == "measured"
        assert unjoined(arbiter) == [(draws.pid, GIB)]

    def test_a_learned_cgroup_is_charged_and_nobody_in_it_is_killed(
        self, arbiter: Arbiter, machine: Machine, cgroup: Cgroup, programs: Programs
    ) -> None:
        """Learned from a process of a container: one with pids of its own."""
        directory = make_kept(arbiter)
        with Container(cgroup, directory):
            wait_until(lambda: grant(arbiter)["cgroup"] == cgroup.path)
            program = programs(cgroup)
            machine.list_process(program.pid, GIB)
            wait_until(lambda: driver_bytes(arbiter) == GIB)
            time.sleep(1.2)
            assert program.poll() is None

    def test_a_cgroup_that_grants_share_is_not_learned(
        self, arbiter: Arbiter, cgroup: Cgroup
    ) -> None:
        first, second = make_kept(arbiter), make_kept(arbiter, "b")
        with Container(cgroup, first):
            wait_until(lambda: grant(arbiter)["cgroup"] == cgroup.path)
            with Container(cgroup, second):
                wait_until(lambda: arbiter.states("b") == ["live"])
                assert [grant(arbiter, name)["cgroup"] for name in "ab"] == [None, None]


class Container:
    """A process that joins a grant from a cgroup and a pid namespace of its own."""

    def __init__(self, cgroup: Cgroup, directory: Path) -> None:
        program = Path(__file__).with_name("tenant_program.py")
        script = f"echo $$ > {cgroup.folder}/cgroup.procs; exec unshare --pid --fork --kill-child"
        tenant = f"{sys.executable} -E -S {program} {directory}"
        self._process = subprocess.Popen(
            ["sh", "-c", f"{script} {tenant}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stdout.readline() == "here\n"
        self._process.stdin.write("hello\n")
        kind, *text = self._process.stdout.readline().split()
        assert int(kind) == wire.WELCOME, text

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class TestRequest:
    @pytest.mark.parametrize(
        "rest",
        ["", "path=", "path=/", "path=a", "path=/a/", "path=/a//b", "path=/./a", "path=/a path=/a"],
    )
    def test_an_invalid_path_is_refused(self, arbiter: Arbiter, rest: str) -> None:
        make_kept(arbiter)
        assert arbiter.ask(f"set-cgroup name=a {rest}".rstrip())["code"] == "malformed"

    def test_the_arbiters_own_cgroup_is_refused(self, arbiter: Arbiter, cgroup: Cgroup) -> None:
        make_kept(arbiter)
        cgroup.enter(arbiter.serving_pid())
        answer = arbiter.ask(f"set-cgroup name=a path={cgroup.path}")
        assert "the arbiter itself" in answer["error"]
        assert arbiter.ask("set-cgroup name=missing path=/x")["code"] == "no-such-grant"

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user")
    def test_another_user_may_not(
        self, arbiter: Arbiter, tenants: Tenants, short_tmp: Path
    ) -> None:
        short_tmp.chmod(0o755)
        tenant = tenants(make_kept(arbiter))
        assert tenant.tell("become-nobody") == "nobody"
        request = "set-cgroup+name=a+path=/x"
        assert tenant.tell("ask", arbiter.state, request) == "not-allowed"
