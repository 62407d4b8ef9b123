"""`make swap=1` and `move`: where the memory of a swappable grant shall be."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU
from arbiter.test_make import USABLE
from arbiter.test_users import ALICE, as_user, shared
from support import GIB, wait_until
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Owner, Tenant

    Owners = Callable[..., Owner]
    Tenants = Callable[[Path], Tenant]

__all__ = ["shared"]  # a fixture

MAKE = f"make name=a kept=1 swap=1 slice={GPU},memory={8 * GIB}"
SYS_FUTEX, FUTEX_WAIT = {"x86_64": 202, "aarch64": 98}[platform.machine()], 0


def make(arbiter: Arbiter, line: str = MAKE) -> wire.Holding:
    """A grant that this process has joined."""
    return wire.Holding.of(
        wire.exchange(Path(arbiter.ask(line)["directory"]), wire.hello_message())
    )


def process(arbiter: Arbiter) -> dict[str, Any]:
    grant = arbiter.grant("a")
    assert grant
    (one,) = grant["processes"]
    assert isinstance(one, dict)
    return one


class TestWord:
    def test_it_counts_the_changes_and_has_the_place(self, arbiter: Arbiter) -> None:
        holding = make(arbiter)
        assert (holding.limits.slice().swap, holding.limits.slice().residence) == (1, 0)
        seen = []
        for to in ("gpu", "host", "host", "gpu", "gpu", "host"):
            answer = arbiter.ask(f"move name=a to={to}")
            word = holding.limits.slice().residence
            seen.append(word)
            assert answer == {"name": "a", "swap": True, "residence": to, "moves": word >> 1}
        assert seen == [0, 3, 3, 4, 4, 7]

    def test_it_is_in_the_record(self, arbiter: Arbiter) -> None:
        holding = make(arbiter)
        arbiter.ask("move name=a to=host")
        arbiter.kill()
        arbiter.start()
        grant = arbiter.grant("a")
        assert grant
        assert (grant["swap"], grant["residence"], grant["moves"]) == (True, "host", 1)
        assert (holding.limits.slice().swap, holding.limits.slice().residence) == (1, 3)
        arbiter.ask("move name=a to=gpu")
        assert holding.limits.slice().residence == 4

    def test_a_program_that_sleeps_on_it_is_woken(self, arbiter: Arbiter) -> None:
        directory = Path(arbiter.ask(MAKE)["directory"])
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        at = wire.LIMITS_HEADER.size + wire.RESIDENCE_AT
        with (directory / "limits").open("rb") as file:
            page = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        timeout = (ctypes.c_long * 2)(60, 0)
        results = []

        def sleep() -> None:
            results.append(
                libc.syscall(SYS_FUTEX, ctypes.c_void_p(page + at), FUTEX_WAIT, 0, timeout)
            )

        sleeper = threading.Thread(target=sleep)
        sleeper.start()
        task = Path(f"/proc/self/task/{sleeper.native_id}/syscall")
        wait_until(lambda: task.read_text().startswith(f"{SYS_FUTEX} {page + at:#x} "))
        arbiter.ask("move name=a to=gpu")  # no change
        assert sleeper.is_alive()
        arbiter.ask("move name=a to=host")
        sleeper.join()
        assert results == [0]


class TestStatus:
    def test_a_grant_without_swap_has_none_of_it(self, arbiter: Arbiter) -> None:
        holding = make(arbiter, MAKE.replace(" swap=1", ""))
        holding.works[0].set("away_bytes", GIB)
        grant = arbiter.grant("a")
        assert grant
        assert (grant["swap"], grant["residence"], grant["moves"]) == (False, None, 0)
        assert "away_bytes" not in process(arbiter)
        assert holding.limits.slice().swap == 0
        assert arbiter.status()["knows_swap"] is True

    def test_a_process_is_settled_when_it_has_dealt_with_the_newest_change(
        self, arbiter: Arbiter
    ) -> None:
        holding = make(arbiter)
        work = holding.works[0]
        holding.hold(0, 3 * GIB)
        assert process(arbiter)["settled"]
        arbiter.ask("move name=a to=host")
        one = process(arbiter)
        assert (one["settled"], one["residence"], one["away_bytes"]) == (False, "gpu", 0)
        work.set("away_bytes", 2 * GIB)
        work.set("fixed_bytes", GIB)
        work.set("residence", holding.limits.slice().residence)
        one = process(arbiter)
        assert (one["settled"], one["residence"], one["move_failed"]) == (True, "host", None)
        assert (one["away_bytes"], one["fixed_bytes"]) == (2 * GIB, GIB)

    @pytest.mark.parametrize(
        ("number", "name"),
        [
            (0, None),
            (1, "no-mover"),
            (2, "host-full"),
            (3, "gpu-full"),
            (4, "busy"),
            (5, "driver"),
            (6, "no-copy"),
            (7, "malformed"),
            (8, "unswappable"),
            (9, "unknown"),
            (0xFFFFFFFF, "unknown"),
        ],
    )
    def test_a_failure_has_a_name(self, arbiter: Arbiter, number: int, name: str | None) -> None:
        make(arbiter).works[0].set("move_failed", number)
        assert process(arbiter)["move_failed"] == name

    def test_nobody_is_said_to_have_more_away_than_was_charged(self, arbiter: Arbiter) -> None:
        holding = make(arbiter)
        holding.hold(0, 2 * GIB)
        holding.works[0].set("away_bytes", 2**64 - 1)
        holding.works[0].set("fixed_bytes", 2**64 - 1)
        one = process(arbiter)
        assert (one["away_bytes"], one["fixed_bytes"]) == (2 * GIB, 0)
        holding.works[0].set("away_bytes", GIB)
        one = process(arbiter)
        assert (one["away_bytes"], one["fixed_bytes"]) == (GIB, GIB)


class TestParked:
    """What a parked grant leaves on its GPU counts there, as NVML reports it."""

    def park(self, arbiter: Arbiter) -> None:
        arbiter.set_state("switching")
        arbiter.ask("move name=a to=host")
        arbiter.set_state("parked")

    def test_what_is_left_on_the_gpu_counts(self, arbiter: Arbiter, machine: Machine) -> None:
        make(arbiter)
        machine.list_process(os.getpid(), 3 * GIB)
        self.park(arbiter)
        assert arbiter.granted() == [3 * GIB, 0]
        grant = arbiter.grant("a")
        assert grant
        assert grant["staying_bytes"] == 3 * GIB
        rest = USABLE - 3 * GIB
        answer = arbiter.ask(f"make name=b kept=1 slice={GPU},memory={rest + 1}")
        assert answer["code"] == "no-capacity"
        assert "grant" in arbiter.ask(f"make name=b kept=1 slice={GPU},memory={rest}")

    def test_it_follows_every_measurement(self, arbiter: Arbiter, machine: Machine) -> None:
        make(arbiter)
        machine.list_process(os.getpid(), 3 * GIB)
        self.park(arbiter)
        for size in (5 * GIB, GIB):
            machine.list_process(os.getpid(), size)
            wait_until(lambda: arbiter.granted() == [size, 0])  # noqa: B023 - called here

    def test_no_program_can_say_that_less_is_left(self, arbiter: Arbiter, machine: Machine) -> None:
        holding = make(arbiter)
        holding.hold(0, 7 * GIB)
        machine.list_process(os.getpid(), 7 * GIB)
        holding.works[0].set("away_bytes", 7 * GIB)
        holding.works[0].set("residence", 3)
        self.park(arbiter)
        assert process(arbiter)["settled"]
        assert arbiter.granted() == [7 * GIB, 0]

    @pytest.mark.parametrize("why", ["unknown", "lists"])
    def test_where_nvml_has_no_figure_the_whole_slice_counts(
        self, arbiter: Arbiter, machine: Machine, why: str
    ) -> None:
        make(arbiter)
        machine.list_process(os.getpid(), "unknown" if why == "unknown" else GIB)
        machine.fail_lists(fail=why == "lists")
        self.park(arbiter)
        assert arbiter.granted() == [8 * GIB, 0]

    def test_it_returns_where_the_rest_has_room(self, arbiter: Arbiter, machine: Machine) -> None:
        make(arbiter)
        machine.list_process(os.getpid(), 3 * GIB)
        self.park(arbiter)
        arbiter.ask(f"make name=b kept=1 slice={GPU},memory={USABLE - 8 * GIB + 1}")
        answer = arbiter.ask("set-state name=a to=switching")
        assert answer["code"] == "no-capacity"
        assert f"has {8 * 1024 - 1} MiB free" in answer["error"]
        arbiter.ask(f"resize name=b slice={GPU},memory={USABLE - 8 * GIB}")
        arbiter.set_state("switching")
        assert arbiter.granted() == [USABLE, 0]

    def test_memory_does_not_return_before_there_is_room(self, arbiter: Arbiter) -> None:
        holding = make(arbiter)
        self.park(arbiter)
        assert arbiter.ask("move name=a to=gpu")["code"] == "parked"
        assert holding.limits.slice().residence == 3
        arbiter.set_state("switching")
        assert arbiter.ask("move name=a to=gpu")["residence"] == "gpu"

    def test_it_is_in_the_record(self, arbiter: Arbiter, machine: Machine) -> None:
        make(arbiter)
        machine.list_process(os.getpid(), 3 * GIB)
        self.park(arbiter)
        arbiter.kill()
        machine.fail_lists()
        arbiter.start()
        assert arbiter.granted()[0] == 3 * GIB

    def test_nothing_is_left_of_a_program_that_has_ended(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        tenant = tenants(Path(arbiter.ask(MAKE)["directory"]))
        tenant.hello()
        machine.list_process(tenant.pid, 3 * GIB)
        self.park(arbiter)
        assert arbiter.granted() == [3 * GIB, 0]
        tenant.kill()
        machine.drop_process(tenant.pid)
        wait_until(lambda: arbiter.granted() == [0, 0])

    def test_a_grant_without_swap_leaves_nothing(self, arbiter: Arbiter, machine: Machine) -> None:
        make(arbiter, MAKE.replace(" swap=1", ""))
        machine.list_process(os.getpid(), 3 * GIB)
        arbiter.set_state("parked")
        assert arbiter.granted() == [0, 0]

    def test_driver_memory_is_not_measured_while_memory_is_away(
        self, arbiter: Arbiter, machine: Machine
    ) -> None:
        holding = make(arbiter)
        holding.hold(0, 4 * GIB)
        machine.list_process(os.getpid(), 5 * GIB)
        wait_until(lambda: holding.limits.slice().driver == GIB)
        arbiter.ask("move name=a to=host")
        machine.list_process(os.getpid(), GIB)
        seen = machine.count_lists()
        wait_until(lambda: machine.count_lists() > seen + 4)
        assert holding.limits.slice().driver == GIB

    def test_a_silent_nvml_does_not_keep_it_from_being_parked(
        self, arbiter: Arbiter, machine: Machine
    ) -> None:
        make(arbiter)
        machine.list_process(os.getpid(), GIB)
        machine.hang()
        self.park(arbiter)
        assert arbiter.granted()[0] == 8 * GIB
        machine.hang(hung=False)
        wait_until(lambda: arbiter.granted()[0] == GIB)


class TestRefused:
    def test_memory_of_several_gpus_does_not_move(self, arbiter: Arbiter) -> None:
        answer = arbiter.ask(f"{MAKE} slice={OTHER_GPU},memory={GIB}")
        assert (answer["code"], answer["error"]) == (
            "malformed",
            "a grant with swap=1 has one slice",
        )

    def test_a_grant_without_swap_does_not_move(self, arbiter: Arbiter) -> None:
        holding = make(arbiter, MAKE.replace(" swap=1", ""))
        for to in ("host", "gpu"):
            answer = arbiter.ask(f"move name=a to={to}")
            assert answer["code"] == "not-swappable"
        assert holding.limits.slice().residence == 0

    @pytest.mark.parametrize(
        "line",
        [
            "move",
            "move name=a",
            "move to=host",
            "move name=a to=",
            "move name=a to=Host",
            "move name=a to=1",
            "move name=a to=host to=host",
            "move name=a to=host kept=1",
            f"move name=a to=host slice={GPU},memory={GIB}",
            "set-state name=a to=host",
            "end name=a swap=1",
            f"make name=b swap=0 slice={GPU},memory={GIB}",
            f"make name=b swap=1 swap=1 slice={GPU},memory={GIB}",
            f"resize name=a swap=1 slice={GPU},memory={GIB}",
        ],
    )
    def test_malformed_requests_are_refused(self, arbiter: Arbiter, line: str) -> None:
        holding = make(arbiter)
        assert arbiter.ask(line)["code"] == "malformed"
        assert holding.limits.slice().residence == 0

    def test_an_unknown_grant_is_refused(self, arbiter: Arbiter) -> None:
        assert arbiter.ask("move name=a to=host")["code"] == "no-such-grant"

    @needs_root
    def test_owners_may_not_move_memory(self, shared: Arbiter, owners: Owners) -> None:
        make = f"make name=b swap=1 slice={GPU},memory={GIB}"
        owner = owners(shared.state, make, ALICE)
        assert owner.ask("move name=b to=host")["code"] == "not-allowed"
        answer = as_user(shared, owners, ALICE, "move name=a to=host")
        assert answer["code"] == "not-allowed"
