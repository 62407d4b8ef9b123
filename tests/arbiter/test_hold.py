"""`hold` at the control socket: grants that are taken, open and parked, and the room they have."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from arbiter import doors
from arbiter.rig import GPU, GPU_BYTES, OTHER_GPU, RESERVED_BYTES, check_whole
from support import GIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Rounds, Tenant

    Tenants = Callable[[Path], Tenant]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users")

USABLE = GPU_BYTES - RESERVED_BYTES
BOTH = f"slice={GPU},memory={40 * GIB},compute=60 slice={OTHER_GPU},memory={40 * GIB},compute=60"


class TestRoom:
    def test_a_grant_is_taken_unless_it_is_said(self, arbiter: Arbiter) -> None:
        arbiter.make()
        assert arbiter.held() == "taken"
        for how in ("taken", "open", "open", "parked", "parked", "open", "taken", "parked"):
            arbiter.hold(how)
            assert arbiter.held() == how
        assert arbiter.log.read_text().count("grant a is open") == 2  # no step is not told

    def test_an_open_one_counts_and_a_parked_one_does_not(self, arbiter: Arbiter) -> None:
        arbiter.ask(f"make name=a {BOTH}")
        arbiter.hold("open")
        assert arbiter.granted() == [40 * GIB, 40 * GIB]
        assert arbiter.ask(f"make name=b {BOTH}")["code"] == "no-room"
        arbiter.hold("parked")
        assert arbiter.granted() == [0, 0]
        assert arbiter.compute()["weight_percent"] == 0
        assert arbiter.ask(f"make name=b {BOTH}")["name"] == "b"
        assert arbiter.granted() == [40 * GIB, 40 * GIB]
        assert arbiter.compute("b")["weight_percent"] == 60

    @pytest.mark.parametrize("how", ["open", "taken"])
    @pytest.mark.parametrize(
        ("beside", "lacks"),
        [
            (f"slice={OTHER_GPU},memory={40 * GIB}", f"has {(USABLE - 40 * GIB) >> 20} MiB left"),
            (f"slice={OTHER_GPU},memory={GIB},compute=41", "has 59 % of its compute left"),
        ],
    )
    def test_it_comes_back_with_all_its_slices_or_not_at_all(
        self, arbiter: Arbiter, how: str, beside: str, lacks: str
    ) -> None:
        arbiter.ask(f"make name=a {BOTH}")
        arbiter.hold("parked")
        assert arbiter.ask(f"make name=b kept=1 {beside}")["name"] == "b"
        before = arbiter.granted()
        answer = arbiter.ask(f"hold name=a as={how}")
        assert answer["code"] == "no-room"
        assert lacks in answer["error"]
        assert (arbiter.held(), arbiter.granted()) == ("parked", before)
        arbiter.ask("end name=b")
        arbiter.hold(how)
        assert arbiter.granted() == [40 * GIB, 40 * GIB]

    def test_its_room_is_asked_for_when_it_comes_back_not_when_it_is_resized(
        self, arbiter: Arbiter
    ) -> None:
        arbiter.make("a", GIB)
        arbiter.hold("parked")
        arbiter.ask(f"make name=b kept=1 slice={GPU},memory={70 * GIB},compute=90")
        answer = arbiter.ask(f"resize name=a slice={GPU},memory={20 * GIB},compute=50")
        assert answer["slices"][0] == {"gpu": GPU, "memory_bytes": 20 * GIB, "reached": True}
        assert arbiter.granted() == [70 * GIB, 0]
        answer = arbiter.ask(f"resize name=a slice={GPU},memory={USABLE + 1}")
        assert answer["code"] == "no-room"
        assert arbiter.ask("hold name=a as=taken")["code"] == "no-room"
        arbiter.ask(f"resize name=a slice={GPU},memory={GIB}")
        assert "compute" in arbiter.ask("hold name=a as=taken")["error"]
        arbiter.ask("end name=b")
        arbiter.ask(f"resize name=a slice={GPU},memory={20 * GIB}")
        arbiter.hold("taken")
        assert arbiter.granted() == [20 * GIB, 0]
        assert arbiter.compute()["weight_percent"] == 50

    def test_what_its_programs_hold_bounds_its_limit_as_ever(self, arbiter: Arbiter) -> None:
        holding = doors.Holding.of(doors.exchange(arbiter.make(), doors.hello_message()))
        holding.hold(0, 2 * GIB)
        arbiter.hold("parked")
        assert arbiter.counted() == 2 * GIB
        answer = arbiter.ask(f"resize name=a slice={GPU},memory={GIB}")
        assert answer["code"] == "in-use"

    def test_one_whose_gpu_is_gone_stays_parked(self, arbiter: Arbiter, machine: Machine) -> None:
        arbiter.ask(f"make name=a {BOTH}")
        arbiter.hold("parked")
        arbiter.kill()
        machine.remove_gpu(OTHER_GPU)
        arbiter.start()
        assert arbiter.ask("hold name=a as=open")["code"] == "broken"
        assert arbiter.held() == "parked"


class TestKept:
    def test_an_arbiter_with_a_parked_grant_is_not_stopped_and_does_not_leave(
        self, stopped_arbiter: Arbiter
    ) -> None:
        arbiter = stopped_arbiter
        arbiter.start("--linger", "1")
        arbiter.ask(f"make name=a kept=1 slice={GPU},memory={GIB}")
        arbiter.hold("parked")
        assert arbiter.ask("stop")["code"] == "grants-left"
        begun = arbiter.status()["now_ns"]
        wait_until(lambda: arbiter.status()["now_ns"] > begun + 1_500_000_000)
        assert "no grant for" not in arbiter.log.read_text()
        arbiter.ask("end name=a")
        assert arbiter.process
        assert arbiter.process.wait(20) == 0
        arbiter.kill_is_done()

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ((2, 2), "parked"),
            ((1, 2), "open"),
            ((2, 0), "taken"),
            ((0, 1), "taken"),
            ((2, 3), "taken"),
            ((0xFFFFFFFF, 0xFFFFFFFF), "taken"),
        ],
    )
    def test_words_that_do_not_agree_or_that_nobody_knows_count(
        self, arbiter: Arbiter, words: tuple[int, int], expected: str
    ) -> None:
        directory = Path(arbiter.ask(f"make name=a {BOTH}")["directory"])
        limits = directory / "limits"
        arbiter.kill()
        limits.chmod(0o600)
        with limits.open("r+b") as file:
            for index, word in enumerate(words):
                file.seek(doors.LIMITS_HEADER.size + index * doors.SLICE.size + doors.HOLD_AT)
                file.write(struct.pack("<I", word))
        arbiter.start()
        assert arbiter.held() == expected
        assert arbiter.granted() == ([0, 0] if expected == "parked" else [40 * GIB] * 2)
        arbiter.hold("parked")
        arbiter.kill()
        arbiter.start()
        assert arbiter.held() == "parked"


class TestRefused:
    @pytest.mark.parametrize(
        "words",
        [
            "",
            "name=a",
            "as=open",
            "name=a as=",
            "name=a as=Open",
            "name=a as=opened",
            "name=a as=1",
            "name=a as",
            "name=a as=open as=open",
            "name=a name=a as=open",
            "name=a  as=open",
            "name=a as=open ",
            "name=a as=open kept=1",
            f"name=a as=open slice={GPU},compute=1",
            "name=../a as=open",
        ],
    )
    def test_what_is_malformed(self, arbiter: Arbiter, words: str) -> None:
        arbiter.make()
        assert arbiter.ask(f"hold {words}")["code"] == "malformed"
        assert arbiter.held() == "taken"

    @pytest.mark.parametrize("verb", ["make", "resize", "end"])
    def test_no_other_request_has_as(self, arbiter: Arbiter, verb: str) -> None:
        answer = arbiter.ask(f"{verb} name=a as=open slice={GPU},memory={GIB}")
        assert answer["code"] == "malformed"

    def test_what_there_is_not(self, arbiter: Arbiter) -> None:
        assert arbiter.ask("hold name=a as=open")["code"] == "no-such-grant"

    def test_a_broken_grant(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        arbiter.hold("parked")
        os.truncate(directory / "usage", 0)
        assert arbiter.ask("hold name=a as=taken")["code"] == "broken"
        assert arbiter.held() == "parked"

    @needs_root
    def test_one_s_own(self, arbiter: Arbiter, tenants: Tenants, short_tmp: Path) -> None:
        short_tmp.chmod(0o755)
        answer = arbiter.ask(f"make name=a kept=1 slice={GPU},memory={GIB}")
        tenant = tenants(Path(answer["directory"]))
        assert tenant.tell("become-nobody") == "nobody"
        own = f"make+name=b+slice={GPU},memory={GIB}"
        assert tenant.tell("ask", arbiter.state, own) == "done"
        for name in ("a", "b"):
            line = f"hold+name={name}+as=open"
            assert tenant.tell("ask", arbiter.state, line) == "not-allowed"
            assert arbiter.held(name) == "taken"


def test_the_arbiter_killed_while_it_parks_one(rounds: Rounds, tenants: Tenants) -> None:
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
            answer = arbiter.ask("hold name=a as=parked")
        killed = rounds.was_killed(arbiter)
        now = arbiter.held()
        assert now in ({"parked"} if answer else {"parked", "taken"})
        assert arbiter.granted() == ([0, 0] if now == "parked" else [40 * GIB] * 2)
        arbiter.hold("parked")
        arbiter.hold("taken")
        tenant.kill()
        wait_until(lambda: arbiter.states() == [])  # noqa: B023 - called before the next round
        check_whole(arbiter)
        arbiter.ask("end name=a")
        arbiter.end()
    assert step > 2, "the arbiter was not killed where it should be"
