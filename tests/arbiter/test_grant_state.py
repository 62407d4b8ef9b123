"""`set-state` at the control socket: active, switching and parked grants, and their capacity."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from arbiter import wire
from arbiter.rig import GPU, GPU_BYTES, OTHER_GPU, RESERVED_BYTES, check_whole
from support import GIB, wait_until
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Rounds, Tenant

    Tenants = Callable[[Path], Tenant]


USABLE = GPU_BYTES - RESERVED_BYTES
BOTH = f"slice={GPU},memory={40 * GIB},compute=60 slice={OTHER_GPU},memory={40 * GIB},compute=60"


class TestCapacity:
    def test_a_new_grant_is_active_and_follows_set_state(self, arbiter: Arbiter) -> None:
        arbiter.make()
        assert arbiter.grant_state() == "active"
        for how in (
            "active",
            "switching",
            "switching",
            "parked",
            "parked",
            "switching",
            "active",
            "parked",
        ):
            arbiter.set_state(how)
            assert arbiter.grant_state() == how
        assert arbiter.log.read_text().count("grant a is switching") == 2  # no step is not told

    def test_a_switching_grant_counts_and_a_parked_one_does_not(self, arbiter: Arbiter) -> None:
        arbiter.ask(f"make name=a {BOTH}")
        arbiter.set_state("switching")
        assert arbiter.granted() == [40 * GIB, 40 * GIB]
        assert arbiter.ask(f"make name=b {BOTH}")["code"] == "no-capacity"
        arbiter.set_state("parked")
        assert arbiter.granted() == [0, 0]
        assert arbiter.compute()["weight_percent"] == 0
        assert arbiter.ask(f"make name=b {BOTH}")["name"] == "b"
        assert arbiter.granted() == [40 * GIB, 40 * GIB]
        assert arbiter.compute("b")["weight_percent"] == 60

    @pytest.mark.parametrize("how", ["switching", "active"])
    @pytest.mark.parametrize(
        ("beside", "lacks"),
        [
            (f"slice={OTHER_GPU},memory={40 * GIB}", f"has {(USABLE - 40 * GIB) >> 20} MiB free"),
            (f"slice={OTHER_GPU},memory={GIB},compute=41", "has 59 % of its compute free"),
        ],
    )
    def test_a_parked_grant_returns_with_all_its_slices_or_not_at_all(
        self, arbiter: Arbiter, how: str, beside: str, lacks: str
    ) -> None:
        arbiter.ask(f"make name=a {BOTH}")
        arbiter.set_state("parked")
        assert arbiter.ask(f"make name=b kept=1 {beside}")["name"] == "b"
        before = arbiter.granted()
        answer = arbiter.ask(f"set-state name=a to={how}")
        assert answer["code"] == "no-capacity"
        assert lacks in answer["error"]
        assert (arbiter.grant_state(), arbiter.granted()) == ("parked", before)
        arbiter.ask("end name=b")
        arbiter.set_state(how)
        assert arbiter.granted() == [40 * GIB, 40 * GIB]

    def test_capacity_of_a_parked_grant_is_checked_on_return_not_on_resize(
        self, arbiter: Arbiter
    ) -> None:
        arbiter.make("a", GIB)
        arbiter.set_state("parked")
        arbiter.ask(f"make name=b kept=1 slice={GPU},memory={70 * GIB},compute=90")
        answer = arbiter.ask(f"resize name=a slice={GPU},memory={20 * GIB},compute=50")
        assert answer["slices"][0] == {"gpu": GPU, "memory_bytes": 20 * GIB, "reached": True}
        assert arbiter.granted() == [70 * GIB, 0]
        answer = arbiter.ask(f"resize name=a slice={GPU},memory={USABLE + 1}")
        assert answer["code"] == "no-capacity"
        assert arbiter.ask("set-state name=a to=active")["code"] == "no-capacity"
        arbiter.ask(f"resize name=a slice={GPU},memory={GIB}")
        assert "compute" in arbiter.ask("set-state name=a to=active")["error"]
        arbiter.ask("end name=b")
        arbiter.ask(f"resize name=a slice={GPU},memory={20 * GIB}")
        arbiter.set_state("active")
        assert arbiter.granted() == [20 * GIB, 0]
        assert arbiter.compute()["weight_percent"] == 50

    def test_a_parked_grant_cannot_shrink_below_its_use(self, arbiter: Arbiter) -> None:
        holding = wire.Holding.of(wire.exchange(arbiter.make(), wire.hello_message()))
        holding.hold(0, 2 * GIB)
        arbiter.set_state("parked")
        assert arbiter.counted() == 2 * GIB
        answer = arbiter.ask(f"resize name=a slice={GPU},memory={GIB}")
        assert answer["code"] == "in-use"

    def test_a_grant_whose_gpu_is_gone_stays_parked(
        self, arbiter: Arbiter, machine: Machine
    ) -> None:
        arbiter.ask(f"make name=a {BOTH}")
        arbiter.set_state("parked")
        arbiter.kill()
        machine.remove_gpu(OTHER_GPU)
        arbiter.start()
        assert arbiter.ask("set-state name=a to=switching")["code"] == "broken"
        assert arbiter.grant_state() == "parked"


class TestKept:
    def test_an_arbiter_with_a_parked_grant_does_not_end(self, stopped_arbiter: Arbiter) -> None:
        arbiter = stopped_arbiter
        arbiter.start("--linger", "1")
        arbiter.ask(f"make name=a kept=1 slice={GPU},memory={GIB}")
        arbiter.set_state("parked")
        assert arbiter.ask("stop")["code"] == "grants-left"
        begun = arbiter.status()["now_ns"]
        wait_until(lambda: arbiter.status()["now_ns"] > begun + 1_500_000_000)
        assert "no grants for" not in arbiter.log.read_text()
        arbiter.ask("end name=a")
        assert arbiter.process
        assert arbiter.process.wait(60) == 0
        arbiter.kill_is_done()

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ((2, 2), "parked"),
            ((1, 2), "switching"),
            ((2, 0), "active"),
            ((0, 1), "active"),
            ((2, 3), "active"),
            ((0xFFFFFFFF, 0xFFFFFFFF), "active"),
        ],
    )
    def test_differing_or_unknown_slice_states_are_repaired(
        self, arbiter: Arbiter, words: tuple[int, int], expected: str
    ) -> None:
        assert "directory" in arbiter.ask(f"make name=a {BOTH}")
        record = arbiter.record()
        arbiter.kill()
        with record.open("r+b") as file:
            for index, word in enumerate(words):
                file.seek(wire.LIMITS_HEADER.size + index * wire.SLICE.size + wire.GRANT_STATE_AT)
                file.write(struct.pack("<I", word))
        arbiter.start()
        assert arbiter.grant_state() == expected
        assert arbiter.granted() == ([0, 0] if expected == "parked" else [40 * GIB] * 2)
        arbiter.set_state("parked")
        arbiter.kill()
        arbiter.start()
        assert arbiter.grant_state() == "parked"


class TestRefused:
    @pytest.mark.parametrize(
        "words",
        [
            "",
            "name=a",
            "to=switching",
            "name=a to=",
            "name=a to=Switching",
            "name=a to=switched",
            "name=a to=1",
            "name=a to",
            "name=a to=switching to=switching",
            "name=a name=a to=switching",
            "name=a  to=switching",
            "name=a to=switching ",
            "name=a to=switching kept=1",
            f"name=a to=switching slice={GPU},compute=1",
            "name=../a to=switching",
        ],
    )
    def test_malformed_requests_are_refused(self, arbiter: Arbiter, words: str) -> None:
        arbiter.make()
        assert arbiter.ask(f"set-state {words}")["code"] == "malformed"
        assert arbiter.grant_state() == "active"

    @pytest.mark.parametrize("verb", ["make", "resize", "end"])
    def test_other_requests_do_not_take_a_state(self, arbiter: Arbiter, verb: str) -> None:
        answer = arbiter.ask(f"{verb} name=a to=switching slice={GPU},memory={GIB}")
        assert answer["code"] == "malformed"

    def test_an_unknown_grant_is_refused(self, arbiter: Arbiter) -> None:
        assert arbiter.ask("set-state name=a to=switching")["code"] == "no-such-grant"

    def test_a_broken_grant_is_refused(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        arbiter.set_state("parked")
        os.truncate(directory / "usage", 0)
        assert arbiter.ask("set-state name=a to=active")["code"] == "broken"
        assert arbiter.grant_state() == "parked"

    @needs_root
    def test_owners_may_not_change_the_state(
        self, arbiter: Arbiter, tenants: Tenants, short_tmp: Path
    ) -> None:
        short_tmp.chmod(0o755)
        answer = arbiter.ask(f"make name=a kept=1 slice={GPU},memory={GIB}")
        tenant = tenants(Path(answer["directory"]))
        assert tenant.tell("become-nobody") == "nobody"
        own = f"make+name=b+slice={GPU},memory={GIB}"
        assert tenant.tell("ask", arbiter.state, own) == "done"
        for name in ("a", "b"):
            line = f"set-state+name={name}+to=switching"
            assert tenant.tell("ask", arbiter.state, line) == "not-allowed"
            assert arbiter.grant_state(name) == "active"


def test_an_arbiter_killed_while_parking_leaves_one_state(rounds: Rounds, tenants: Tenants) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        tenant = tenants(Path(arbiter.ask(f"make name=a kept=1 {BOTH}")["directory"]))
        tenant.hello()
        rounds.kill_at(step)
        answer: dict[str, Any] = {}
        with suppress(OSError, AssertionError):  # it may never come
            answer = arbiter.ask("set-state name=a to=parked")
        killed = rounds.was_killed(arbiter)
        now = arbiter.grant_state()
        assert now in ({"parked"} if answer else {"parked", "active"})
        assert arbiter.granted() == ([0, 0] if now == "parked" else [40 * GIB] * 2)
        arbiter.set_state("parked")
        arbiter.set_state("active")
        tenant.kill()
        wait_until(lambda: arbiter.states() == [])  # noqa: B023 - called before the next round
        check_whole(arbiter)
        arbiter.ask("end name=a")
        arbiter.end()
    assert step > 2, "the arbiter was not killed where it should be"
