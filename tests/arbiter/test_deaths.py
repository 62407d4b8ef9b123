"""The arbiter, its parent and its guard die in any combination: programs keep their shares."""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import contend
from support import GIB, Stopwatch, on_this_machine, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arbiter.rig import Arbiter, Tenant

    Tenants = Callable[[Path], Tenant]

DEATHS = int(os.environ.get("ALIQUOT_TEST_DEATHS", "10"))


def kill(arbiter: Arbiter, *names: str) -> dict[str, int]:
    """Kill these processes at once: none sees another die before."""
    pids = arbiter.pids()
    watchers_first = [name for name in ("guard", "parent", "arbiter") if name in names]
    fds = [os.pidfd_open(pids[name]) for name in watchers_first]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for fd in fds:
            with suppress(ProcessLookupError):  # the parent ends an arbiter that it sees stopped
                signal.pidfd_send_signal(fd, number)
    for fd in fds:
        assert select.select([fd], [], [], 20)[0]
        os.close(fd)
    return pids


def answers_anew(arbiter: Arbiter, before: dict[str, int]) -> bool:
    try:
        return arbiter.pids()["arbiter"] != before["arbiter"]
    except (OSError, AssertionError):
        return False


def check_turns(arbiter: Arbiter, pair: tuple[Tenant, Tenant]) -> None:
    """Both programs live, are gated again and take turns."""
    assert [arbiter.states(name) for name in "ab"] == [["live"], ["live"]]
    for name in "ab":
        grant = arbiter.grant(name)
        assert grant
        assert [one["ungated"] for one in grant["processes"]] == [None]
    wait_until(arbiter.is_contended)
    for tenant in pair:
        wait_until(lambda: tenant.credit().credit < wire.OPEN)  # noqa: B023 - called here
    before = [tenant.done() for tenant in pair]
    wait_until(lambda: all(one.done() > n + 20 for one, n in zip(pair, before, strict=True)))


class TestBackground:
    @pytest.mark.shares
    @pytest.mark.parametrize(
        "dead",
        [
            ("arbiter",),
            ("parent",),
            ("guard",),
            ("arbiter", "parent"),
            ("arbiter", "guard"),
            ("parent", "guard"),
        ],
    )
    def test_the_survivors_start_the_others_again(
        self, background: Arbiter, tenants: Tenants, dead: tuple[str, ...]
    ) -> None:
        pair = contend(background, tenants, (25, 75))
        before = kill(background, *dead)
        if dead != ("parent", "guard"):  # no program is held for longer than a moment
            with Stopwatch() as took:
                done = [tenant.done() for tenant in pair]
                wait_until(
                    lambda: all(one.done() > n + 10 for one, n in zip(pair, done, strict=True))
                )
            assert took.seconds < took.limit(2)
        if dead == ("parent", "guard"):  # the arbiter ends with its parent, and nobody is left
            arbiter_end = before["arbiter"]
            wait_until(lambda: not Path(f"/proc/{arbiter_end}").exists())
            assert all(tenant.credit().is_open for tenant in pair)
            background.start()
        elif dead != ("guard",):
            wait_until(lambda: answers_anew(background, before))
        check_turns(background, pair)
        wait_until(lambda: all(Path(f"/proc/{pid}").exists() for pid in background.pids().values()))
        after = background.pids()
        assert all(after[name] != before[name] for name in dead)
        assert int((background.state / "arbiter.pid").read_text()) == after["parent"]
        percents = [background.compute(name)["weight_percent"] for name in "ab"]
        assert percents == [25, 75]

    def test_all_three_at_once(self, background: Arbiter, tenants: Tenants) -> None:
        """As systemd ends a service: the next arbiter adopts everything from files."""
        pair = contend(background, tenants, (25, 75))
        kill(background, "arbiter", "parent", "guard")
        assert not background.answers()
        background.start()
        check_turns(background, pair)

    def test_many_double_deaths(self, background: Arbiter, tenants: Tenants) -> None:
        """At random moments, with memory in use: no limit changes and nothing is lost."""
        pair = contend(background, tenants)
        for tenant in pair:
            tenant.tell("hold", 0, 1 << 20)
        chance = random.Random(14)  # noqa: S311 - no secret
        for _ in range(DEATHS):
            before = kill(background, "arbiter", "parent")
            wait_until(lambda: answers_anew(background, before))  # noqa: B023 - called here
            time.sleep(chance.random() * 0.2)
        check_turns(background, pair)
        assert [background.counted(name) for name in "ab"] == [1 << 20] * 2
        assert background.granted()[0] == 2 * (64 << 20)
        for tenant in pair:
            tenant.kill()
        wait_until(lambda: [background.counted(name) for name in "ab"] == [0, 0])

    def test_a_clean_end_leaves_no_process_and_no_file(self, background: Arbiter) -> None:
        status = background.status()
        folders = [Path(status[key]) for key in ("records", "pages")]
        assert all(folder.is_dir() for folder in folders)
        assert background.end() == 0
        assert not any(folder.exists() for folder in folders)
        background.start()


class TestForeground:
    @pytest.mark.shares
    def test_the_guard_opens_the_gates_and_leaves_the_restart_to_others(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        pair = contend(arbiter, tenants)
        guard = os.pidfd_open(arbiter.pids()["guard"])
        kill(arbiter, "arbiter", "parent")
        killed_at = time.monotonic_ns()
        took = max(tenant.opened_at() - killed_at for tenant in pair) / 1e9
        assert took < on_this_machine(0.5)
        assert select.select([guard], [], [], 60)[0]
        os.close(guard)
        arbiter.kill_is_done()
        arbiter.start()
        check_turns(arbiter, pair)

    def test_a_restart_adopts_everything(self, arbiter: Arbiter, tenants: Tenants) -> None:
        pair = contend(arbiter, tenants, (40, 60))
        assert arbiter.end() == 0
        assert all(tenant.credit().is_open for tenant in pair)
        arbiter.start()
        check_turns(arbiter, pair)


def thread_of(pid: int, name: str) -> int:
    """The thread of that name, as soon as it has named itself."""

    def found() -> list[int]:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(one.name) for one in tasks if (one / "comm").read_text() == f"{name}\n"]

    wait_until(found)
    return found()[0]


@contextmanager
def held(thread: int) -> Iterator[None]:
    """Hold one thread as a debugger does; the kernel reports no stop to the parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    seize, interrupt, wait_for_any = 0x4206, 0x4207, 0x40000000
    for request in (seize, interrupt):
        assert libc.ptrace(request, thread, None, None) == 0, os.strerror(ctypes.get_errno())
    yield
    _, status = os.waitpid(thread, wait_for_any)
    while os.WIFSTOPPED(status):
        _, status = os.waitpid(thread, wait_for_any)


class TestProgress:
    @pytest.mark.parametrize("name", ["aliquot-arbiter", "aliquot-credit"])
    def test_an_arbiter_with_a_hung_thread_is_replaced(
        self, arbiter: Arbiter, tenants: Tenants, name: str
    ) -> None:
        pair = contend(arbiter, tenants)
        before = arbiter.pids()
        with held(thread_of(before["arbiter"], name)):
            for tenant in pair:
                tenant.opened_at()
        wait_until(lambda: answers_anew(arbiter, before))
        assert f"(pid {before['arbiter']}) makes no progress: killed" in arbiter.log.read_text()
        check_turns(arbiter, pair)

    def test_a_stopped_parent_kills_nobody_when_it_continues(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        contend(arbiter, tenants)
        before = arbiter.pids()
        arbiter.pause_parent()
        time.sleep(7)
        arbiter.resume_parent()
        time.sleep(3)
        assert arbiter.pids() == before


class TestVersions:
    def test_a_later_version_is_refused_and_left_alone(self, arbiter: Arbiter) -> None:
        arbiter.make("a", GIB)
        record = arbiter.record()
        assert arbiter.end() == 0
        (arbiter.state / "version").write_text("3\n")
        before = record.read_bytes()
        failed = subprocess.run(
            arbiter.command("--foreground"),
            env=arbiter.machine.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert failed.returncode == 1
        assert "is of version 3, and this arbiter knows versions up to 2" in failed.stderr
        assert record.read_bytes() == before
        (arbiter.state / "version").write_text("2\n")
        arbiter.start()
        assert (arbiter.grant("a") or {})["broken"] is None
