"""`resize` at the control socket: changes, refusals, and programs that run meanwhile."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from arbiter import wire
from arbiter.rig import GPU, GPU_BYTES, OTHER_GPU, RESERVED_BYTES
from support import GIB, MIB, compile_library, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Tenant

    Tenants = Callable[[Path], Tenant]

USABLE = GPU_BYTES - RESERVED_BYTES


def resize(arbiter: Arbiter, name: str, *slices: str, gradual: bool = False) -> dict[str, Any]:
    words = ["resize", f"name={name}", *["gradual=1"] * gradual]
    return arbiter.ask(" ".join([*words, *(f"slice={one}" for one in slices)]))


def slices_of(arbiter: Arbiter, name: str = "a") -> list[dict[str, Any]]:
    """The settings of each slice, as the arbiter reports them."""
    grant = arbiter.grant(name)
    assert grant
    keys = ("memory_bytes", "headroom_bytes", "compute_percent", "policy", "priority")
    return [{key: one[key] for key in keys} for one in grant["slices"]]


class TestMemory:
    def test_grows_and_shrinks_while_the_program_runs(self, arbiter: Arbiter) -> None:
        holding = wire.Holding.of(wire.exchange(arbiter.make(), wire.hello_message()))
        for size, headroom in ((4 * GIB, 32 * MIB), (64 * MIB, MIB), (20 * GIB, 32 * MIB)):
            answer = resize(arbiter, "a", f"{GPU},memory={size}")
            part = {"gpu": GPU, "memory_bytes": size, "reached": True}
            assert answer == {"name": "a", "slices": [part]}
            assert holding.limits.slice() == wire.SliceLimits(size, headroom, 0, 0)
            assert arbiter.status()["gpus"][0]["granted_bytes"] == size
        said = f"grant a resized on GPU 0: {20 * GIB} bytes ({64 * MIB} before)"
        assert said in arbiter.log.read_text()

    def test_survives_a_restart(self, arbiter: Arbiter) -> None:
        arbiter.make()
        resize(arbiter, "a", f"{GPU},memory={GIB},compute=30,policy=hard,priority=latency")
        before = slices_of(arbiter)
        arbiter.kill()
        arbiter.start()
        assert slices_of(arbiter) == before

    def test_never_grows_beyond_what_is_free(self, arbiter: Arbiter) -> None:
        arbiter.make("a", 2 * GIB)
        arbiter.make("b", GIB)
        answer = resize(arbiter, "a", f"{GPU},memory={USABLE - GIB + 1}")
        assert answer["code"] == "no-capacity"
        usable, left = USABLE >> 20, (USABLE - GIB) >> 20
        assert f"has {left} MiB free of {usable} MiB (1024 MiB granted)" in answer["error"]
        assert slices_of(arbiter)[0]["memory_bytes"] == 2 * GIB
        assert "slices" in resize(arbiter, "a", f"{GPU},memory={USABLE - GIB}")

    def test_never_shrinks_below_what_is_in_use(self, arbiter: Arbiter, machine: Machine) -> None:
        directory = arbiter.make()
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        holding.hold(0, GIB)
        machine.list_process(os.getpid(), GIB + 500 * MIB)
        wire.exchange(directory, wire.measure_message())
        used = GIB + 500 * MIB
        answer = resize(arbiter, "a", f"{GPU},memory={used - 1},compute=50")
        assert answer["code"] == "in-use"
        assert "uses 1524 MiB of GPU 0 (500 of them the driver's)" in answer["error"]
        assert "limit cannot be 1523 MiB" in answer["error"]
        before = {"memory_bytes": 8 * GIB, "headroom_bytes": 32 * MIB, "compute_percent": 0}
        assert before.items() <= slices_of(arbiter)[0].items()
        assert resize(arbiter, "a", f"{GPU},memory={used}")["slices"][0]["reached"]

    def test_gradually_follows_what_the_program_frees(self, arbiter: Arbiter) -> None:
        holding = wire.Holding.of(wire.exchange(arbiter.make(), wire.hello_message()))
        for held, limit in ((3 * GIB, 3 * GIB), (2 * GIB, 2 * GIB), (512 * MIB, GIB)):
            holding.hold(0, held)
            for _ in range(2):
                (part,) = resize(arbiter, "a", f"{GPU},memory={GIB}", gradual=True)["slices"]
                assert part == {"gpu": GPU, "memory_bytes": limit, "reached": limit == GIB}
                assert holding.limits.slice().limit == limit
        said = arbiter.log.read_text().count("grant a resized on GPU 0")
        assert said == 3  # what changes nothing is not told again

    def test_a_dry_run_says_what_would_be_and_changes_nothing(self, arbiter: Arbiter) -> None:
        holding = wire.Holding.of(wire.exchange(arbiter.make(), wire.hello_message()))
        holding.hold(0, 3 * GIB)
        before, log = slices_of(arbiter), arbiter.log.read_text()

        def try_it(more: str, slices: str) -> dict[str, Any]:
            return arbiter.ask(f"resize name=a dry-run=1{more} slice={GPU},{slices}")

        for more, size, becomes in (("", 8, 8), ("", 3, 3), (" gradual=1", 1, 3)):
            (part,) = try_it(more, f"memory={size * GIB},compute=50")["slices"]
            assert part == {
                "gpu": GPU,
                "memory_bytes": becomes * GIB,
                "reached": size == becomes,
            }
        assert try_it("", f"memory={GIB}")["code"] == "in-use"
        assert try_it("", f"memory={GPU_BYTES}")["code"] == "no-capacity"
        assert slices_of(arbiter) == before
        assert arbiter.log.read_text() == log

    def test_all_slices_change_or_none(self, arbiter: Arbiter) -> None:
        both = f"slice={GPU},memory={4 * GIB} slice={OTHER_GPU},memory={4 * GIB}"
        directory = Path(arbiter.ask(f"make name=a {both}")["directory"])
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        holding.hold(1, 3 * GIB)
        before = slices_of(arbiter)
        for first in (GIB, 8 * GIB):
            answer = resize(
                arbiter, "a", f"{GPU},memory={first},compute=9", f"{OTHER_GPU},memory={GIB}"
            )
            assert answer["code"] == "in-use"
            assert slices_of(arbiter) == before
        answer = resize(arbiter, "a", f"{OTHER_GPU},memory={3 * GIB}", f"{GPU},memory={GIB}")
        assert [one["gpu"] for one in answer["slices"]] == [OTHER_GPU, GPU]
        assert [one["memory_bytes"] for one in slices_of(arbiter)] == [GIB, 3 * GIB]


class TestCompute:
    def test_settings_not_given_do_not_change(self, arbiter: Arbiter) -> None:
        arbiter.ask(f"make name=a slice={GPU},memory={GIB},compute=30,priority=latency")
        asked: dict[str, int | str] = {"memory_bytes": GIB, "headroom_bytes": 16 * MIB}
        asked.update(compute_percent=30, policy="elastic", priority="latency")
        for key, change in (
            ("compute_percent", "compute=40"),
            ("policy", "policy=hard"),
            ("priority", "priority=background"),
            ("compute_percent", "compute=0"),
        ):
            assert "slices" in resize(arbiter, "a", f"{GPU},{change}")
            value = change.partition("=")[2]
            asked[key] = int(value) if value.isdigit() else value
            assert slices_of(arbiter) == [asked]

    def test_counts_from_the_next_window(self, arbiter: Arbiter, tenants: Tenants) -> None:
        for name in "ab":
            tenants(arbiter.make(name, GIB)).run()
        wait_until(arbiter.is_contended)
        assert arbiter.compute("a")["weight_percent"] == 50
        resize(arbiter, "a", f"{GPU},compute=80")
        assert arbiter.compute("a")["weight_percent"] == 80
        assert arbiter.compute("b")["weight_percent"] == 20

    @pytest.mark.parametrize("how", ["make", "resize"])
    def test_never_exceeds_100_percent(self, arbiter: Arbiter, how: str) -> None:
        arbiter.ask(f"make name=a slice={GPU},memory={GIB},compute=50")
        arbiter.ask(f"make name=b slice={GPU},memory={GIB},compute=30")
        arbiter.ask(f"make name=idle slice={GPU},memory={GIB},compute=90,priority=background")
        if how == "resize":
            arbiter.ask(f"make name=c slice={GPU},memory={GIB},compute=10")

        def ask(setting: str) -> dict[str, Any]:
            memory = "" if how == "resize" else f"memory={GIB},"
            return arbiter.ask(f"{how} name=c slice={GPU},{memory}{setting}")

        answer = ask("compute=21")
        assert answer["code"] == "no-capacity"
        assert "has 20 % of its compute free: 21 % requested" in answer["error"]
        assert "a has 50 %" in answer["error"]
        assert "b has 30 %" in answer["error"]
        assert "idle" not in answer["error"]
        assert "code" not in ask("compute=100,priority=background")
        if how == "resize":
            assert ask("priority=normal")["code"] == "no-capacity"
            assert "code" not in ask("compute=20,priority=normal")

    def test_hard_is_refused_without_gates(self, arbiter: Arbiter, tenants: Tenants) -> None:
        tenant = tenants(arbiter.make())
        tenant.hello()
        assert "code" not in resize(arbiter, "a", f"{GPU},policy=hard")
        resize(arbiter, "a", f"{GPU},policy=elastic")
        tenant.tell("gates", 0, wire.GATES_FAIL, 801)
        answer = resize(arbiter, "a", f"{GPU},policy=hard")
        assert answer["code"] == "unsupported"
        assert "code" not in resize(arbiter, "a", f"{GPU},compute=10")

    def test_a_process_that_says_its_gates_fail_matters_only_to_its_grant(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        """Not to other grants of the GPU, and not after its death."""
        liar = tenants(arbiter.make("a", GIB))
        liar.hello()
        liar.tell("gates", 0, wire.GATES_FAIL, 801)
        assert arbiter.compute("a")["gates"] == "fail"
        answer = arbiter.ask(f"make name=b slice={GPU},memory={GIB},policy=hard")
        assert "code" not in answer, answer
        assert "code" not in resize(arbiter, "b", f"{GPU},policy=elastic")
        assert "code" not in resize(arbiter, "b", f"{GPU},policy=hard")
        liar.kill()
        wait_until(lambda: arbiter.states() == [])
        assert "code" not in resize(arbiter, "a", f"{GPU},policy=hard")
        assert arbiter.compute("a")["gates"] == "untried"


class TestRefused:
    def test_an_unknown_grant_is_refused(self, arbiter: Arbiter) -> None:
        arbiter.make()
        assert resize(arbiter, "b", f"{GPU},compute=1")["code"] == "no-such-grant"
        answer = resize(arbiter, "a", f"{OTHER_GPU},compute=1")
        assert answer["code"] == "no-such-slice"
        assert OTHER_GPU in answer["error"]

    def test_a_broken_grant_is_refused(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        os.truncate(directory / "usage", 0)
        assert resize(arbiter, "a", f"{GPU},memory={GIB}")["code"] == "broken"

    @pytest.mark.parametrize(
        "words",
        [
            "",
            "name=a",
            f"slice={GPU},compute=1",
            f"name=a slice={GPU}",
            f"name=a slice={GPU},",
            f"name=a slice={GPU},memory={MIB - 1}",
            f"name=a slice={GPU},compute=101",
            f"name=a slice={GPU},compute=1,compute=1",
            f"name=a slice={GPU},compute=1 slice={GPU},compute=2",
            f"name=a gradual slice={GPU},compute=1",
            f"name=a gradual=0 slice={GPU},compute=1",
            f"name=a dry-run=0 slice={GPU},compute=1",
            f"name=a gradual=1 gradual=1 slice={GPU},compute=1",
            f"name=a  slice={GPU},compute=1",
            f"name=a slice={GPU},compute=1 now",
        ],
    )
    def test_malformed_requests_are_refused(self, arbiter: Arbiter, words: str) -> None:
        arbiter.make()
        before = slices_of(arbiter)
        assert arbiter.ask(f"resize {words}")["code"] == "malformed"
        assert slices_of(arbiter) == before

    def test_make_has_no_gradual(self, arbiter: Arbiter) -> None:
        answer = arbiter.ask(f"make name=a gradual=1 slice={GPU},memory={GIB}")
        assert answer["code"] == "malformed"


class Allocator:
    """A thread of this process that reserves and gives back with the ledger's code."""

    def __init__(self, ledger: ctypes.CDLL, answer: wire.Answer) -> None:
        limits_fd, usage_fd, *others = answer.fds
        limits = address_of(limits_fd, wire.LIMITS_SIZE, mmap.PROT_READ)
        usage = address_of(usage_fd, wire.USAGE_SIZE, mmap.PROT_READ | mmap.PROT_WRITE)
        for fd in (limits_fd, usage_fd, *others):
            os.close(fd)
        self._slice = ctypes.c_void_p(limits + wire.LIMITS_HEADER.size)
        self._usage = ctypes.c_void_p(usage + 64)
        self._slot = ctypes.c_uint32(answer.value)
        self._ledger = ledger
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._allocate)
        self._between = threading.Lock()  # held while it reserves or gives back
        self.refused = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def settled(self) -> int:
        """What is reserved between two of its steps."""
        with self._between:
            return int(self._ledger.ledger_total(self._usage))

    def _allocate(self) -> None:
        held = 0
        while not self._over.is_set():
            with self._between:
                for _ in range(200):
                    if self._ledger.ledger_reserve(
                        self._usage, self._slice, self._slot, ctypes.c_uint64(MIB)
                    ):
                        held += 1
                        continue
                    self.refused += 1
                    back = ctypes.c_uint64((held // 2 + 1) * MIB)
                    self._ledger.ledger_release(self._usage, self._slot, back)
                    held -= held // 2 + 1


def address_of(fd: int, size: int, protection: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
    assert address not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return int(address)


@pytest.fixture
def ledger(tmp_path: Path) -> ctypes.CDLL:
    """The ledger's code, compiled as for tenants."""
    native = Path(__file__).parents[2] / "native"
    source = (native / "ledger" / "ledger.c").read_text()
    library = ctypes.CDLL(
        str(compile_library(tmp_path, "libledger.so", source, "-O2", f"-I{native / 'include'}"))
    )
    library.ledger_reserve.restype = ctypes.c_bool
    library.ledger_total.restype = ctypes.c_uint64
    return library


def test_no_reservation_exceeds_a_lowered_limit(arbiter: Arbiter, ledger: ctypes.CDLL) -> None:
    answer = wire.exchange(arbiter.make("a", GIB), wire.hello_message())
    outcomes = set()
    with Allocator(ledger, answer) as allocator:
        for turn in range(300):
            wanted = (GIB, 700 * MIB, 512 * MIB, 400 * MIB)[turn % 4]
            told = resize(arbiter, "a", f"{GPU},memory={wanted}", gradual=turn % 3 == 0)
            (limits,) = slices_of(arbiter)
            assert allocator.settled() <= limits["memory_bytes"]
            if "slices" in told:
                assert told["slices"][0]["memory_bytes"] == limits["memory_bytes"]
            outcomes.add(told.get("code", "done"))
    assert outcomes == {"done", "in-use"}
    assert allocator.refused > 0
