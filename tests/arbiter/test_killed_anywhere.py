"""The arbiter is killed before each of its steps in turn: what it leaves is complete or absent.

A step is a call that changes something outside the process. The arbiter that follows must find a
sound grant or none, count what is held and nothing else, and leave no half of anything.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from arbiter import wire
from arbiter.rig import GPU, check_whole
from support import GIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Owner, Rounds, Tenant

    Tenants = Callable[[Path], Tenant]
    Owners = Callable[[Path, str], Owner]

REQUEST = f"make name=a slice={GPU},memory={GIB}"


def test_killed_while_making_a_grant(rounds: Rounds) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        rounds.kill_at(step)
        with suppress(OSError, AssertionError):  # the answer may never come
            arbiter.ask(REQUEST)
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        if arbiter.grant("a") is None:
            arbiter.make("a", GIB)
        directory = arbiter.state / "grants" / "a"
        assert wire.exchange(directory, wire.hello_message()).kind == wire.WELCOME
        arbiter.end()
    assert step > 20, "the arbiter was not killed where it should be"


def test_killed_while_a_process_joins(rounds: Rounds) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        directory = arbiter.make("a", GIB)
        rounds.kill_at(step)
        with suppress(OSError, AssertionError):
            wire.exchange(directory, wire.hello_message())
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.WELCOME, 0)
        wire.Holding.of(answer)
        arbiter.end()
    assert step > 5, "the arbiter was not killed where it should be"


def test_killed_while_ending_a_process_and_its_grant(
    rounds: Rounds, tenants: Tenants, owners: Owners
) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        survivor = tenants(arbiter.make("survivor", GIB))
        survivor.hello()
        survivor.tell("hold", 0, 512)
        owner = owners(arbiter.state, REQUEST)
        tenant = tenants(owner.directory)
        tenant.hello()
        tenant.tell("hold", 0, 512 << 10)
        rounds.kill_at(step)
        tenant.kill()
        owner.kill()
        wait_until(lambda: not owner.directory.exists())  # noqa: B023 - called before the next round
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        (left,) = arbiter.status()["grants"]
        assert left["name"] == "survivor"
        assert left["slices"][0]["counted_bytes"] == 512
        assert [one["state"] for one in left["processes"]] == ["live"]
        arbiter.end()
        survivor.kill()
    assert step > 10, "the arbiter was not killed where it should be"


def test_killed_while_recovering_grants(rounds: Rounds, tenants: Tenants, owners: Owners) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        survivor = tenants(arbiter.make("survivor", GIB))
        survivor.hello()
        survivor.tell("hold", 0, 512)
        owner = owners(arbiter.state, REQUEST)
        serving = arbiter.serving_pid()
        arbiter.pause_parent()
        os.kill(serving, signal.SIGKILL)
        owner.kill()
        rounds.kill_at(step)
        arbiter.resume_parent()
        wait_until(lambda: not owner.directory.exists())  # noqa: B023 - called before the next round
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        (left,) = arbiter.status()["grants"]
        assert left["slices"][0]["counted_bytes"] == 512
        assert survivor.tell("measure") == "measured"
        arbiter.end()
        survivor.kill()
    assert step > 20, "the arbiter was not killed where it should be"
