"""Running jobs that are parked because they are idle (`--park-after`)."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.model import Amount, Grant, GrantState, Parking, ParkingStep, Request, Residence
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Job
from aliquot.model.owner import Owner
from aliquot.model.parking_rule import NEVER, ParkingRule, parse_parking_rule
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.encoding import Submission, decode_submission, encode_submission
from aliquot.pool.wanted import wanted_slices
from aliquot.slices import control
from support import GIB, make_grant, make_shared, wait_until

if TYPE_CHECKING:
    from pool.conftest import PoolUp

pytestmark = pytest.mark.timeout(300)

LOOKS = Path(__file__).with_name("looks_when_asked.py")
EIGHT = Amount(bytes=8 * GIB)


class TestRequest:
    def test_a_job_keeps_it(self) -> None:
        rule = ParkingRule(600.0, always=True)
        job = Job(3, "a", ("true",), Request(memory=EIGHT, swap=True, park_after=rule))
        one = Submission(Owner(1000, 1000, "alice"), job, "/bin/true", "/")
        assert decode_submission(json.loads(json.dumps(encode_submission(one))), one.owner) == one
        forged = encode_submission(one)
        for wrong in ("soon", 600.0, {"seconds": 0.1}, {"seconds": 60, "always": "yes"}):
            forged["request"]["park_after"] = wrong
            with pytest.raises(InvalidValueError):
                decode_submission(forged, one.owner)

    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            ("10m", ParkingRule(600.0)),
            ("never", NEVER),
            ("1h30m, Always", ParkingRule(5400.0, always=True)),
        ],
    )
    def test_it_is_written_as_a_time(self, text: str, rule: ParkingRule) -> None:
        assert parse_parking_rule(text) == rule
        assert parse_parking_rule(str(rule)) == rule

    @pytest.mark.parametrize("text", ["", "0s", "always", "10m,never", "10m,", "10m,always,always"])
    def test_other_words_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidValueError, match=r"duration|cannot be|idle program"):
            parse_parking_rule(text)

    def test_an_earlier_pool_is_not_told_of_it(self) -> None:
        job = Job(3, "a", ("true",), Request(memory=EIGHT, swap=True))
        one = Submission(Owner(1000, 1000, "alice"), job, "/bin/true", "/")
        assert "park_after" not in encode_submission(one)["request"]

    def test_it_needs_memory_that_can_leave(self) -> None:
        with pytest.raises(InvalidValueError, match="--park-after needs --swap"):
            Request(memory=EIGHT, park_after=ParkingRule(600.0))

    def test_a_job_keeps_how_long_it_may_be_off_its_gpu(self) -> None:
        job = Job(3, "a", ("true",), Request(memory=EIGHT, swap=True, swap_wait=30.0))
        one = Submission(Owner(1000, 1000, "alice"), job, "/bin/true", "/")
        assert decode_submission(json.loads(json.dumps(encode_submission(one))), one.owner) == one
        assert job.request.swap_options == "--swap --swap-wait 30s"
        plain = replace(one, job=replace(job, request=Request(memory=EIGHT, swap=True)))
        assert "swap_wait" not in encode_submission(plain)["request"]
        forged = encode_submission(one)
        for wrong in ("30s", 1.0, -30.0, 3601.0, float("nan"), None):
            forged["request"]["swap_wait"] = wrong
            with pytest.raises(InvalidValueError):
                decode_submission(forged, one.owner)

    def test_a_wait_off_the_gpu_needs_memory_that_can_leave(self) -> None:
        with pytest.raises(InvalidValueError, match="--swap-wait needs --swap"):
            Request(memory=EIGHT, swap_wait=30.0)

    @pytest.mark.parametrize("seconds", [0.5, -1.0, float("nan"), float("inf")])
    def test_it_is_a_second_or_more(self, seconds: float) -> None:
        with pytest.raises(InvalidValueError, match="--park-after cannot be"):
            ParkingRule(seconds)


class TestPlan:
    """An idle grant of 60 of 80 GiB that has left 1 GiB on its GPU."""

    def idle(self, *, waits: bool = False) -> Grant:
        parking = Parking(600.0, ParkingStep.AWAY, 1, 5.0, 5.0, waits=waits)
        grant = make_grant("a", gpu0=60 * GIB)
        return replace(
            grant,
            state=GrantState.PARKED,
            residence=Residence.HOST,
            staying_bytes=GIB,
            parking=parking,
        )

    def plan(self, grant: Grant) -> MachinePlan:
        uuid = grant.slices[0].gpu_uuid
        gpu = make_shared(0, memory=80 * GIB, granted=grant.bytes_on(uuid))
        return MachinePlan((gpu,), (grant,))

    def test_others_get_what_it_has_given_back(self) -> None:
        large = Request(memory=Amount(bytes=70 * GIB))
        assert self.plan(self.idle()).holds(large, 1)

    def test_others_do_not_get_what_it_waits_for(self) -> None:
        assert not self.plan(self.idle(waits=True)).holds(Request(memory=Amount(bytes=30 * GIB)), 1)
        assert self.plan(self.idle(waits=True)).holds(Request(memory=Amount(bytes=10 * GIB)), 1)


class TestWanted:
    """Idle grants of which a request gets the room."""

    def plan(self, *sizes: int, due: bool = True) -> MachinePlan:
        parking = Parking(600.0, if_wanted=True, is_due=due)
        grants = tuple(
            replace(make_grant(f"g{at}", gpu0=size * GIB), parking=parking)
            for at, size in enumerate(sizes)
        )
        return MachinePlan((make_shared(0, memory=80 * GIB, granted=sum(sizes) * GIB),), grants)

    def test_a_request_that_fits_when_they_are_parked_is_told(self) -> None:
        plan = self.plan(30, 30)
        (found,) = wanted_slices(plan, Request(memory=Amount(bytes=20 * GIB)), 2)
        assert (found.gpu_uuid, found.memory_bytes) == (plan.gpus[0].gpu.uuid, 40 * GIB)

    def test_nobody_is_parked_for_one_that_does_not_fit_then_either(self) -> None:
        assert not wanted_slices(self.plan(30, 30), Request(memory=Amount(bytes=90 * GIB)))

    def test_nobody_is_parked_who_has_work(self) -> None:
        plan = self.plan(60, due=False)
        assert not wanted_slices(plan, Request(memory=Amount(bytes=40 * GIB)))


class Idle:
    """A job that has most of GPU 0 and looks at its memory when it is asked to."""

    def __init__(self, pool: PoolUp, name: str, folder: Path, after: str = "1s,always") -> None:
        self.pool, self.name, self.asked = pool, name, folder / name
        command = (sys.executable, str(LOOKS), str(100 << 20), str(self.asked))
        size = ("--gpu", "0", "--memory", "60GiB", "--swap", "--park-after", after)
        pool.submit("--name", name, *size, "--", *command)

    def starts(self) -> None:
        wait_until(lambda: "ready" in self.pool.log(self.name), 60)

    def ask(self) -> int:
        """Have it look; how often it has looked before."""
        before = self.pool.log(self.name).count("same")
        self.asked.touch()
        return before

    def looks(self) -> None:
        before = self.ask()
        wait_until(lambda: self.pool.log(self.name).count("same") > before, 60)
        assert set(self.pool.log(self.name).split()) == {"ready", "same"}

    def grant(self) -> Grant:
        (found,) = (
            one for one in control.status(self.pool.state).grants if f"{self.name}." in one.name
        )
        return found

    def is_due(self) -> bool:
        parking = self.grant().parking
        return parking is not None and parking.is_due

    def is_parked(self) -> bool:
        return self.grant().is_idle_parked

    def end(self) -> None:
        self.asked.with_suffix(".end").touch()
        self.pool.wait_for(self.name, "Succeeded")


def test_an_idle_job_runs_on_and_comes_back_when_it_has_work(pool: PoolUp, tmp_path: Path) -> None:
    job = Idle(pool, "one", tmp_path)
    job.starts()
    wait_until(job.is_parked)
    wait_until(lambda: "parked: no GPU work for 1 s" in str(pool.job("one")["events"]))
    assert pool.job("one")["state"]["phase"] == "Running"
    assert "is parked because it is idle" in " ".join(pool.ask("ps").stderr.split())
    job.looks()
    wait_until(lambda: "its memory returns to its GPU" in str(pool.job("one")["events"]))
    assert pool.job("one")["state"]["phase"] == "Running"
    assert pool.job("one")["state"]["generation"] == 1
    job.end()
    pool.leaves_nothing()


def test_two_jobs_that_do_not_fit_together_both_run(pool: PoolUp, tmp_path: Path) -> None:
    first = Idle(pool, "one", tmp_path, "1s")
    first.starts()
    second = Idle(pool, "two", tmp_path, "1s")
    second.starts()  # when the first is idle
    for _ in range(2):
        first.looks()
        second.looks()
    assert pool.job("one")["state"]["phase"] == pool.job("two")["state"]["phase"] == "Running"
    first.end()
    second.end()
    pool.leaves_nothing()


@pytest.mark.parametrize("kind", ["job", "command that waits", "refused command"])
def test_a_job_gives_up_its_memory_when_another_wants_it(
    pool: PoolUp, tmp_path: Path, kind: str
) -> None:
    first = Idle(pool, "one", tmp_path, "1s")
    first.starts()
    wait_until(first.is_due)
    assert first.grant().residence is Residence.GPU
    size = ("--gpu", "0", "--memory", "60GiB")
    if kind == "job":
        pool.submit("--name", "two", *size, "--", "true")
        pool.wait_for("two", "Succeeded")
    elif kind == "command that waits":
        pool.ask("run", "--wait", *size, "--", "true")
    else:
        refused = pool.ask("run", *size, "--", "true")
        assert refused.returncode != 0
    wait_until(first.is_parked)
    first.looks()
    first.end()
    pool.leaves_nothing()


def test_a_job_that_needs_its_memory_waits_for_one_that_is_busy(
    pool: PoolUp, tmp_path: Path
) -> None:
    first = Idle(pool, "one", tmp_path)
    first.starts()
    wait_until(first.is_parked)
    size = ("--gpu", "0", "--memory", "60GiB")
    pool.submit("--name", "two", *size, "--", "sleep", "1000")
    pool.wait_for("two", "Running")
    before = first.ask()
    wait_until(lambda: first.grant().parking.waits)  # type: ignore[union-attr]
    wait_until(lambda: "waits to return to its GPU" in " ".join(pool.ask("ps").stderr.split()))
    assert pool.job("one")["state"]["phase"] == "Running"
    assert pool.log("one").count("same") == before
    pool.ask("cancel", "two")
    wait_until(lambda: pool.log("one").count("same") > before, 60)
    first.end()
    pool.leaves_nothing()


def test_a_parked_job_is_suspended_and_resumed(pool: PoolUp, tmp_path: Path) -> None:
    job = Idle(pool, "one", tmp_path)
    job.starts()
    wait_until(job.is_parked)
    pool.ask("suspend", "one")
    pool.wait_for("one", "Suspended")
    assert job.grant().state is GrantState.PARKED
    assert not job.is_parked()
    before = job.ask()
    pool.ask("resume", "one")
    pool.wait_for("one", "Running")
    wait_until(lambda: pool.log("one").count("same") > before, 60)
    wait_until(job.is_parked)
    job.looks()
    job.end()
    pool.leaves_nothing()


@pytest.mark.parametrize("how", ["cancel", "suspend and cancel"])
def test_a_parked_job_is_cancelled(pool: PoolUp, tmp_path: Path, how: str) -> None:
    job = Idle(pool, "one", tmp_path)
    job.starts()
    wait_until(job.is_parked)
    if how != "cancel":
        pool.ask("suspend", "one")
        pool.wait_for("one", "Suspended")
    pool.ask("cancel", "one")
    pool.wait_for("one", "Cancelled")
    pool.leaves_nothing()


def test_the_next_pool_leaves_a_parked_job_as_it_is(pool: PoolUp, tmp_path: Path) -> None:
    job = Idle(pool, "one", tmp_path)
    job.starts()
    wait_until(job.is_parked)
    pool.kill()
    pool.up()
    pool.wait_for("one", "Running")
    job.looks()
    assert pool.job("one")["state"]["generation"] == 1
    job.end()
    pool.leaves_nothing()
