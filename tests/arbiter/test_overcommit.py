"""What the arbiter grants of a GPU to slices that take turns with its memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.slices import control
from aliquot.slices.turn_room import load_of, turn_room
from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU
from arbiter.test_users import ALICE, as_user, shared
from support import GIB
from users import needs_root

if TYPE_CHECKING:
    from arbiter.rig import Arbiter
    from arbiter.test_move import Owners, Tenants

__all__ = ["shared"]  # a fixture


def make(arbiter: Arbiter, name: str, gib: int, *more: str, gpu: str = GPU) -> str:
    words = " ".join(["swap=1", *more])
    answer = arbiter.ask(f"make name={name} kept=1 {words} slice={gpu},memory={gib * GIB}")
    return str(answer.get("error", ""))


@pytest.fixture
def turns(stopped_arbiter: Arbiter) -> Arbiter:
    """An arbiter that grants 1.5 times the 79 GiB of a GPU, and has 60 GiB of the host."""
    stopped_arbiter.start("--overcommit", "150", "--host-memory", str(60 * GIB))
    return stopped_arbiter


def test_what_must_leave_has_room_on_the_host(turns: Arbiter) -> None:
    assert make(turns, "one", 60) == ""
    assert make(turns, "two", 30) == ""  # 11 GiB do not fit: 22 GiB of the host
    assert "of memory that leaves GPUs" in make(turns, "three", 20)
    assert make(turns, "other", 60, gpu=OTHER_GPU) == ""
    assert make(turns, "other-two", 30, gpu=OTHER_GPU) == ""
    assert "of memory that leaves GPUs" in make(turns, "four", 10)
    assert make(turns, "other-three", 2, gpu=OTHER_GPU) == ""


def test_spill_leaves_what_is_set_aside_for_turns(turns: Arbiter) -> None:
    assert make(turns, "one", 60) == ""
    assert make(turns, "two", 45) == ""
    spill = turns.ask(f"make name=a kept=1 spill={10 * GIB} slice={OTHER_GPU},memory={GIB}")
    assert spill["code"] == "no-host-memory"


def swappable(arbiter: Arbiter, name: str, gib: int) -> Path:
    """The directory of a new grant of the second GPU."""
    line = f"make name={name} kept=1 swap=1 slice={OTHER_GPU},memory={gib * GIB}"
    return Path(arbiter.ask(line)["directory"])


def test_memory_that_is_leaving_counts_on_the_host_at_once(
    turns: Arbiter, tenants: Tenants
) -> None:
    assert make(turns, "one", 60) == ""
    assert make(turns, "two", 30) == ""  # 22 GiB of the host's 60 are set aside
    for name in ("a", "b"):
        tenant = tenants(swappable(turns, name, 30))
        tenant.hello()
        assert tenant.tell("hold", 0, 30 * GIB) == "held"
    assert turns.ask("move name=a to=host")["residence"] == "host"
    assert "set aside: 30720 MiB would leave" in turns.ask("move name=b to=host")["error"]
    assert turns.ask("move name=a to=gpu")["residence"] == "gpu"
    assert turns.ask("move name=b to=host")["residence"] == "host"


def test_a_program_cannot_say_that_its_memory_has_begun_to_leave(turns: Arbiter) -> None:
    assert make(turns, "one", 60) == ""
    assert make(turns, "two", 30) == ""
    answer = wire.exchange(swappable(turns, "a", 45), wire.hello_message())
    holding = wire.Holding.of(answer)
    holding.hold(0, 45 * GIB)
    holding.works[0].set("away_bytes", 1)
    assert turns.ask("move name=a to=host")["code"] == "no-host-memory"


def test_a_slice_says_how_much_is_granted_beside_it(turns: Arbiter) -> None:
    assert turns.status()["knows_queue_overcommit"] is True
    assert make(turns, "one", 60, "overcommit=110") == ""
    assert "110 %" in make(turns, "two", 30)
    assert make(turns, "three", 25) == ""
    shown = turns.grant("one")
    assert shown
    assert shown["turns_percent"] == 110
    turns.end()
    turns.start("--overcommit", "150", "--host-memory", str(60 * GIB))
    assert "110 %" in make(turns, "two", 5)


def test_a_slice_that_allows_no_turns_gets_what_is_free(turns: Arbiter) -> None:
    assert make(turns, "one", 60) == ""
    assert "100 %" in make(turns, "two", 30, "overcommit=100")
    assert make(turns, "two", 15, "overcommit=100") == ""
    assert "100 %" in make(turns, "three", 30)


@needs_root
def test_a_user_cannot_say_how_much_others_are_granted(shared: Arbiter, owners: Owners) -> None:
    line = f"make name=a swap=1 overcommit=100 slice={GPU},memory={GIB}"
    assert as_user(shared, owners, ALICE, line)["code"] == "not-allowed"
    assert "code" not in as_user(shared, owners, ALICE, line.replace(" overcommit=100", ""))


@pytest.mark.parametrize(
    "wrong", ["overcommit=150", "swap=1 overcommit=99", "swap=1 overcommit=1001"]
)
def test_a_factor_that_cannot_be_is_refused(arbiter: Arbiter, wrong: str) -> None:
    answer = arbiter.ask(f"make name=a kept=1 {wrong} slice={GPU},memory={GIB}")
    assert answer["code"] == "malformed"


@pytest.mark.parametrize("seed", range(3))
def test_it_grants_as_much_as_placement_says_and_no_byte_more(turns: Arbiter, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - drawn requests, not secrets
    for number in range(24):
        status = control.status(turns.state)
        one = chance.choice(status.gpus)
        most = chance.choice([None, None, 1.1, 1.3])
        room = turn_room(one, status.grants, most).bytes
        words = ["swap=1", *([] if most is None else [f"overcommit={round(100 * most)}"])]
        asked = chance.choice([room, room + 1, chance.randint(1, 50) * GIB])
        line = f"make name=n{number} kept=1 {' '.join(words)} slice={one.gpu.uuid},memory={asked}"
        if not asked:
            continue
        refusal = turns.ask(line).get("error")
        assert (refusal is None) == (asked <= room), (seed, number, asked, room, refusal)
        if chance.random() < 0.3 and status.grants:
            turns.ask(f"end name={chance.choice(status.grants).plain_name}")
    after = control.status(turns.state)
    assert sum(load_of(one, after.grants).host_bytes for one in after.gpus) <= 60 * GIB
    assert all(one.granted_bytes <= 1.5 * one.gpu.memory_bytes for one in after.gpus)
