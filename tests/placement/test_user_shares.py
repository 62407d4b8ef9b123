"""Fair share between users: who has used least goes first."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.job import Sizes
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.job import Elastic
from aliquot.placement.elastic.resize import Rules, decide
from aliquot.placement.queues.quota import Bound, Queue, Resources
from aliquot.placement.queues.users import HALF_LIFE_SECONDS, PastUse, user_queue, with_users

HOUR = 3600
STEP = 10
USERS = ("alice", "bob", "carol")


@dataclass
class Counted:
    """GPUs that are merely counted."""

    gpus: int

    def fits(self, sizes: dict[str, int]) -> bool:
        return sum(sizes.values()) <= self.gpus


@dataclass
class Hungry:
    """A user who has always `waiting` jobs more than run, of so many seconds each."""

    name: str
    seconds: int
    waiting: int
    since: int = 0
    past: PastUse = field(default_factory=PastUse)
    used: int = 0  # GPU-seconds in all


class Machine:
    """Jobs of one GPU each, and the decision of the pool every few seconds."""

    def __init__(self, gpus: int, users: list[Hungry], queues: dict[str, Queue]) -> None:
        self._gpus, self._users, self._queues = gpus, users, queues
        self._hardware = empty([NodeHardware("here", gpus=gpus, gpu_bytes=80 << 30)]).hardware
        self._jobs: dict[str, Elastic] = {}
        self._ends: dict[str, int] = {}
        self._count = 0

    def run(self, begin: int, end: int) -> None:
        for now in range(begin, end, STEP):
            self._end_jobs(now)
            for user in self._users:
                self._submit(user, now)
            self._start_jobs(now)
            self._charge(now)

    def _of(self, user: Hungry) -> list[str]:
        return [name for name in self._jobs if name.startswith(f"{user.name} ")]

    def _submit(self, user: Hungry, now: int) -> None:
        waiting = [name for name in self._of(user) if name not in self._ends]
        for _ in range(user.waiting - len(waiting) if now >= user.since else 0):
            self._count += 1
            name, queue = f"{user.name} {self._count:06d}", user_queue("default", user.name)
            self._jobs[name] = Elastic(name, Sizes((1,)), queue=queue, submitted=float(now))

    def _start_jobs(self, now: int) -> None:
        jobs = [
            Elastic(one.name, one.sizes, queue=one.queue, submitted=one.submitted,
                    size=int(one.name in self._ends))
            for one in self._jobs.values()
        ]  # fmt: skip
        past = {user.name: user.past for user in self._users}
        queues = with_users(self._queues, {"default": set(past)}, past, {})
        fits, rules = Counted(self._gpus), Rules(patience_seconds=math.inf)
        decision = decide(jobs, fits, queues, self._hardware, float(now), rules, {})  # type: ignore[arg-type]
        for name in decision.starts:
            user = next(one for one in self._users if name.startswith(f"{one.name} "))
            self._ends[name] = now + user.seconds

    def _end_jobs(self, now: int) -> None:
        for name in [name for name, end in self._ends.items() if end <= now]:
            del self._ends[name], self._jobs[name]

    def _charge(self, now: int) -> None:
        for user in self._users:
            gpus = sum(1 for name in self._of(user) if name in self._ends)
            user.used += gpus * STEP
            user.past = user.past.after(now + STEP, gpus, HALF_LIFE_SECONDS)


def parts(users: list[Hungry]) -> list[float]:
    """The part of all GPU time that each user got."""
    return [user.used / sum(one.used for one in users) for user in users]


def test_three_hungry_users_each_get_a_third_of_an_hour() -> None:
    """One has many jobs, one a few short ones, one a few long ones."""
    users = [Hungry("alice", 120, 30), Hungry("bob", 30, 9), Hungry("carol", 300, 9)]
    Machine(8, users, {}).run(0, HOUR)
    assert sum(user.used for user in users) > 0.99 * 8 * HOUR
    assert parts(users) == pytest.approx([1 / 3] * 3, rel=0.05)


def test_a_user_who_comes_later_catches_up_no_more_than_was_used_lately() -> None:
    users = [Hungry("alice", 60, 9), Hungry("bob", 60, 9), Hungry("carol", 60, 9, since=HOUR)]
    machine = Machine(8, users, {})
    machine.run(0, HOUR)
    assert parts(users) == pytest.approx([0.5, 0.5, 0.0], abs=0.02)
    before = [user.used for user in users]
    machine.run(HOUR, 2 * HOUR)
    got = [user.used - had for user, had in zip(users, before, strict=True)]
    assert got[2] > 1.5 * max(got[:2])
    machine.run(2 * HOUR, 3 * HOUR)
    assert parts(users) == pytest.approx([1 / 3] * 3, rel=0.06)


def test_without_past_use_the_smaller_share_goes_first() -> None:
    queues = with_users({}, {"default": {"alice", "bob"}}, {}, {})
    assert {name: (one.parent, one.past) for name, one in queues.items()} == {
        "default": ("", Resources()),
        "default/alice": ("default", Resources()),
        "default/bob": ("default", Resources()),
    }


def test_a_users_limit_holds_in_a_queue() -> None:
    limits = {"alice": Bound(milli=2000)}
    queues = with_users({}, {"default": {"alice", "bob"}}, {}, limits)
    jobs = [
        Elastic(f"{user} {n}", Sizes((1,)), queue=user_queue("default", user))
        for user in ("alice", "bob")
        for n in range(8)
    ]
    hardware = empty([NodeHardware("here", gpus=8, gpu_bytes=80 << 30)]).hardware
    decision = decide(jobs, Counted(8), queues, hardware, 0.0, Rules(), {})  # type: ignore[arg-type]
    assert sorted(decision.starts) == [
        *(f"alice {n}" for n in (0, 1)),
        *(f"bob {n}" for n in range(6)),
    ]
    assert "user alice may have 2 GPUs" in decision.waits["alice 2"]


def test_a_users_limit_holds_for_all_queues_together() -> None:
    users = {"default": {"alice"}, "small": {"alice"}}
    queues = with_users({}, users, {}, {"alice": Bound(milli=3000)})
    hardware = empty([NodeHardware("here", gpus=8, gpu_bytes=80 << 30)]).hardware
    could = dict.fromkeys(users, (-1000.0, 8))
    for size in (0, 1):  # jobs that start at their largest, and jobs that grow
        jobs = [
            Elastic(queue, Sizes((1, 2, 4, 8)), queue=user_queue(queue, "alice"), size=size)
            for queue in users
        ]
        decision = decide(jobs, Counted(8), queues, hardware, 1000.0, Rules(), could)  # type: ignore[arg-type]
        sizes = {name: new for name, (new, _) in decision.resizes.items()} | decision.starts
        assert sum(sizes.get(job.name, job.size) for job in jobs) == 3


def test_a_job_waits_for_the_limit_of_its_user_in_another_queue() -> None:
    users = {"default": {"alice"}, "small": {"alice"}}
    queues = with_users({}, users, {}, {"alice": Bound(milli=2000)})
    jobs = [
        Elastic("first", Sizes((2,)), queue=user_queue("default", "alice"), size=2),
        Elastic("second", Sizes((1,)), queue=user_queue("small", "alice"), submitted=1.0),
        Elastic("third", Sizes((1,)), queue=user_queue("default", "alice"), submitted=2.0),
    ]
    hardware = empty([NodeHardware("here", gpus=8, gpu_bytes=80 << 30)]).hardware
    decision = decide(jobs, Counted(8), queues, hardware, 0.0, Rules(), {})  # type: ignore[arg-type]
    assert decision.waits == {
        "second": "user alice may have 2 GPUs; with this one it would be 3",
        "third": "second comes before it, and waits for the limit of user alice",
    }


@given(st.floats(0, 1e6), st.floats(0, 16), st.floats(1, 1e6), st.floats(1, 1e5), st.floats(1, 1e5))
def test_use_counted_in_two_parts_is_the_same(
    before: float, gpus: float, half_life: float, first: float, second: float
) -> None:
    start = PastUse(before, 0.0)
    at_once = start.after(first + second, gpus, half_life)
    in_parts = start.after(first, gpus, half_life).after(first + second, gpus, half_life)
    assert in_parts.gpu_seconds == pytest.approx(at_once.gpu_seconds, rel=1e-6, abs=1e-6)


def test_half_is_forgotten_after_a_half_life() -> None:
    assert PastUse(100.0, 0.0).after(60.0, 0, 60.0).gpu_seconds == pytest.approx(50.0)
    assert PastUse().after(60.0, 2, 1e9).gpu_seconds == pytest.approx(120.0)
