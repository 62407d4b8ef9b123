"""`swap` and `park_after` of a queue: what it adds to requests that do not say it themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from aliquot.model import Amount, Priority, Request
from aliquot.model.errors import UnsupportedError
from aliquot.model.owner import Owner
from aliquot.model.parking_rule import NEVER, ParkingRule
from aliquot.model.request import SwapDefault
from aliquot.pool.admission import RunAdmission
from aliquot.pool.queue_defaults import with_swap_default
from aliquot.pool.runs import RunMode, RunRequest
from aliquot.pool.store import JobStore
from aliquot.slices import control
from aliquot.slices.arbiter_status import Status
from support import GIB, make_shared, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pool.conftest import PoolUp

BOB = Owner(4002, 4002, "bob")
HOUR, MINUTES = ParkingRule(3600.0), ParkingRule(600.0)
PART = Request(memory=Amount(bytes=8 * GIB))
QUEUES = '[queues.default]\n[queues.lab]\nswap = true\npark_after = "10m"\n'


def machine(**words: Any) -> Status:
    return Status(1, (make_shared(memory=80 * GIB),), (), words)


KNOWS = machine(knows_swap=True, knows_parking=True)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (PART, "--swap --park-after 10 min"),
        (replace(PART, swap=True), "--swap --park-after 10 min"),
        (replace(PART, swap=True, park_after=HOUR), "--swap --park-after 1 h"),
        (replace(PART, park_after=NEVER), "--swap"),
        (replace(PART, swap=False), ""),
        (Request(), ""),  # a whole GPU
        (replace(PART, gpus=2), ""),
        (Request(memory=Amount(bytes=80 * GIB)), ""),  # no room beside it to copy its memory
    ],
)
def test_the_word_of_the_request_comes_first(asked: Request, options: str) -> None:
    found = with_swap_default(asked, SwapDefault(swap=True, park_after=MINUTES), KNOWS)
    assert found.swap_options == options


def test_a_queue_that_does_not_swap_parks_those_that_do() -> None:
    default = SwapDefault(park_after=MINUTES)
    assert with_swap_default(PART, default, KNOWS) == PART
    found = with_swap_default(replace(PART, swap=True), default, KNOWS)
    assert found.park_after == MINUTES


def test_an_arbiter_of_an_earlier_version_is_not_asked_for_it() -> None:
    assert with_swap_default(PART, SwapDefault(swap=True), machine()) == PART


def test_a_command_that_the_pool_admits_has_what_its_queue_says(tmp_path: Path) -> None:
    asked = RunRequest(1, BOB, 7, 1, PART, None, "x", None, RunMode.NOW, 0.0, "lab")
    desk = MagicMock()
    desk.requests.return_value = [asked, replace(asked, number=2, queue="default")]
    defaults = {"lab": SwapDefault(swap=True, park_after=MINUTES)}
    admission = RunAdmission(desk, tmp_path, JobStore(tmp_path / "pool.sqlite"), defaults.get)
    found = [one.request.swap_options for one in admission.requests(KNOWS)]
    assert found == ["--swap --park-after 10 min", ""]


def test_jobs_have_what_their_queue_says(down_pool: PoolUp, short_tmp: Path) -> None:
    settings = short_tmp / "pool.toml"
    settings.write_text(QUEUES)
    pool = down_pool
    pool.up("--config", str(settings))
    part = ("--memory", "8GiB", "--queue", "lab")
    pool.submit("--name", "one", *part, "--", "sleep", "1000")
    pool.submit("--name", "two", *part, "--no-swap", "--", "sleep", "1000")
    pool.submit("--name", "three", "--memory", "8GiB", "--", "sleep", "1000")
    for name in ("one", "two", "three"):
        pool.wait_for(name, "Running")
    told = "--swap --park-after 10 min"
    reasons = [one["reason"] for one in pool.job("one")["events"]]
    assert f"by default of queue lab it has {told}" in reasons
    assert told in " ".join(pool.ask("describe", "one").stdout.split())
    assert "--swap" not in pool.ask("describe", "two").stdout
    grants = {one.name.partition(".")[0]: one for one in control.status(pool.state).grants}
    assert {name: one.is_swappable for name, one in grants.items()} == {
        "one": True,
        "two": False,
        "three": False,
    }
    parking = grants["one"].parking
    assert parking is not None
    assert (parking.after_seconds, parking.if_wanted) == (600.0, True)
    said = pool.ask("run", "--dry-run", *part, "--", "true")
    assert f"By default of its queue it has {told}" in said.stdout
    own = pool.ask("run", "--dry-run", *part, "--swap", "--park-after", "never", "--", "true")
    assert "By default" not in own.stdout


def test_a_queue_says_how_much_is_granted_beside_its_slices() -> None:
    knows = machine(knows_swap=True, knows_parking=True, knows_queue_overcommit=True)
    default = SwapDefault(overcommit=1.25)
    own = replace(PART, swap=True, overcommit=1.0)
    assert with_swap_default(own, default, knows).overcommit == 1.25
    assert with_swap_default(own, None, knows).overcommit == 0  # that is not its user's to say
    assert with_swap_default(PART, default, knows) == PART
    unknown = with_swap_default(own, default, KNOWS)
    with pytest.raises(UnsupportedError, match="overcommit of a queue"):
        control.check_swap(KNOWS, unknown)


def test_a_latency_slice_takes_turns_only_if_its_user_asks_for_it() -> None:
    default = SwapDefault(swap=True, overcommit=1.5)
    latency = replace(PART, priority=Priority.LATENCY)
    knows = machine(knows_swap=True, knows_parking=True, knows_queue_overcommit=True)
    assert with_swap_default(latency, default, knows) == latency
    assert with_swap_default(PART, default, knows).swap
    asked = with_swap_default(replace(latency, swap=True), default, knows)
    assert (asked.swap, asked.overcommit) == (True, 1.5)


OVERCOMMIT = """
[swap]
overcommit = 2
host_memory = "40GiB"
[queues.default]
[queues.careful]
overcommit = 1.1
"""


def test_jobs_take_turns_as_their_queue_and_the_host_allow(
    down_pool: PoolUp, short_tmp: Path
) -> None:
    settings = short_tmp / "pool.toml"
    settings.write_text(OVERCOMMIT)
    pool = down_pool
    pool.up("--config", str(settings))

    def submit(name: str, gib: int, *more: str) -> None:
        size = ("--gpu", "0", "--memory", f"{gib}GiB", "--swap")
        pool.submit("--name", name, *size, *more, "--", "sleep", "1000")

    submit("one", 50, "--queue", "careful")
    pool.wait_for("one", "Running")
    submit("two", 45)  # 1.2 times the GPU's memory
    submit("three", 30)
    pool.wait_for("three", "Running")
    assert pool.phase_of("two") == "Pending"

    def describes_turns() -> bool:
        told = " ".join(pool.ask("describe", "one").stdout.split())
        return "of 50 GiB slices have" in told and "in turns" in told

    wait_until(describes_turns, 60)
    assert "GPU 0: slices have" in " ".join(pool.ask("ps").stderr.split())
    pool.ask("cancel", "one")
    pool.wait_for("two", "Running")
    submit("four", 30)  # 26 GiB more than the GPU has would need 52 GiB of the host
    said = pool.ask("explain", "--gpu", "0", "--memory", "15GiB", "--swap")
    assert "fits only with over-commit" in " ".join(said.stdout.split())
    said = pool.ask("run", "--dry-run", "--gpu", "0", "--memory", "30GiB", "--swap", "--", "true")
    assert said.returncode
    assert "the host has no more memory" in " ".join((said.stdout + said.stderr).split())
    assert pool.phase_of("four") == "Pending"
