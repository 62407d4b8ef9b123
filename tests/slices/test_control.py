"""The control client against a fake arbiter."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.model import (
    Amount,
    ComputeUse,
    Gates,
    GrantState,
    Life,
    Moved,
    Parking,
    ParkingStep,
    Policy,
    Priority,
    Request,
    Residence,
    Slice,
    Turn,
)
from aliquot.model.errors import (
    ArbiterError,
    HeldMemoryError,
    MemoryInUseError,
    NameInUseError,
    NoSuchGrantError,
    StateError,
    UnsupportedError,
    UserLimitError,
)
from aliquot.model.parking_rule import ParkingRule
from aliquot.model.strength import UNKNOWN, strength_of
from aliquot.slices import control
from aliquot.slices.control import Resized, SliceChange
from slices.played import (
    SECOND,
    Played,
    compute_words,
    gpu_words,
    grant_words,
    slice_words,
    status_words,
)
from support import GIB, make_gpu

Play = Callable[[bytes | Callable[[str], Any]], Played]


@pytest.fixture
def play(short_tmp: Path) -> Iterator[Play]:
    playing: list[Played] = []

    def start(answer: bytes | Callable[[str], Any]) -> Played:
        playing.append(Played(short_tmp, answer))
        return playing[-1]

    yield start
    for one in playing:
        one.end()


def refusal(code: str) -> bytes:
    return json.dumps({"error": "the reason", "code": code}).encode() + b"\n"


def test_an_arbiter_that_listens_and_does_not_answer_is_called_silent(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_TIMEOUT", 0.2)
    with pytest.raises(control.NoArbiterError, match="no arbiter in") as caught:
        control.status(short_tmp)
    assert not isinstance(caught.value, control.SilentArbiterError)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as frozen:
        frozen.bind(str(short_tmp / "control"))
        frozen.listen()
        with pytest.raises(control.SilentArbiterError) as silence:
            control.status(short_tmp)
    assert silence.value.one_line == (
        f"the arbiter in {short_tmp} runs and did not answer within 0.2 s. It is stopped or stuck: "
        f"see the state of its process, whose pid is in {short_tmp}/arbiter.pid."
    )


def test_a_status_is_parsed(play: Play, short_tmp: Path) -> None:
    part = slice_words(
        compute_percent=30,
        policy="hard",
        priority="latency",
        counted_bytes=5,
        driver_bytes=7,
        compute=compute_words(
            state="holds",
            used_ns=5 * SECOND,
            handovers=9,
            fallbacks=2,
            backlog=3,
            waits=4,
            waited_ns=SECOND,
            wait_p50_ns=SECOND // 2,
            wait_p99_ns=SECOND // 4,
            recent_used_ns=SECOND // 4,
            idle_ns=3 * SECOND // 2,
        ),
    )
    gpu = gpu_words(contended=True, strangers=[{"pid": 9, "name": "stray", "bytes": 3}])
    answer = status_words(grant_words("a", part), gpus=[gpu], now=70.5, cpu=0.25)
    play(json.dumps(answer).encode() + b"\n")
    seen = control.status(short_tmp)
    assert seen.answer == answer
    assert (seen.now, seen.credit_cpu_seconds) == (70.5, 0.25)
    assert seen.gpus[0].contended
    assert seen.gpus[0].strangers[0].name == "stray"
    assert seen.gpus[0].gpu.strength == strength_of("H100")
    grant = seen.grants[0]
    uuid = make_gpu().uuid
    assert grant.slices == (Slice(uuid, 8 * GIB, 30, Policy.HARD, Priority.LATENCY),)
    assert grant.use[0].used_bytes == 12
    assert grant.compute[0] == ComputeUse(
        gates=Gates.WORK,
        turn=Turn.HOLDS,
        weight_percent=50,
        used_seconds=5.0,
        handovers=9,
        fallbacks=2,
        backlog_quanta=3,
        waits=4,
        waited_seconds=1.0,
        wait_p50_seconds=0.5,
        wait_p99_seconds=0.25,
        recent_used_seconds=0.25,
        recent_seconds=1.0,
        idle_seconds=1.5,
    )
    assert grant.compute[0].got_ratio == 0.25


@pytest.mark.parametrize("words", [{}, {"idle_ns": None}])
def test_an_arbiter_that_does_not_know_how_long_a_slice_was_idle(
    play: Play, short_tmp: Path, words: dict[str, Any]
) -> None:
    answer = status_words(grant_words("a", slice_words(compute=compute_words(**words))))
    play(json.dumps(answer).encode() + b"\n")
    assert control.status(short_tmp).grants[0].compute[0].idle_seconds is None


def test_make_is_one_line(play: Play, short_tmp: Path) -> None:
    played = play(b'{"name":"a","directory":"/d","grant":"/d#5"}\n')
    parts = [Slice(make_gpu(0).uuid, GIB), Slice(make_gpu(1).uuid, GIB, 30, Policy.HARD)]
    assert control.make(short_tmp, "a", parts) == "/d#5"
    (question,) = played.questions
    assert question == (
        "make name=a"
        " slice=GPU-00000000-0000-0000-0000-000000000000,memory=1073741824,compute=0,"
        "policy=elastic,priority=normal"
        " slice=GPU-00000000-0000-0000-0000-000000000001,memory=1073741824,compute=30,"
        "policy=hard,priority=normal"
    )


def test_make_of_a_kept_grant(play: Play, short_tmp: Path) -> None:
    played = play(b'{"name":"a","directory":"/d","grant":"/d#5"}\n')
    assert control.make(short_tmp, "a", [], kept=True) == "/d#5"
    assert played.questions == ["make name=a kept=1"]


@pytest.mark.parametrize("ended", [True, False])
def test_end_returns_whether_the_grant_is_gone(play: Play, short_tmp: Path, *, ended: bool) -> None:
    played = play(json.dumps({"name": "a", "ended": ended, "processes": 1}).encode() + b"\n")
    assert control.end(short_tmp, "a") is ended
    assert played.questions == ["end name=a"]


def test_a_kept_grant_has_no_owner(play: Play, short_tmp: Path) -> None:
    words = {**grant_words("a", slice_words()), "life": "kept", "owner_pid": None}
    play(json.dumps(status_words(words)).encode() + b"\n")
    (grant,) = control.status(short_tmp).grants
    assert (grant.life, grant.owner_pid) == (Life.KEPT, None)


@pytest.mark.parametrize("state", GrantState)
def test_set_state_is_sent_and_confirmed(play: Play, short_tmp: Path, state: GrantState) -> None:
    played = play(json.dumps({"name": "a", "state": str(state)}).encode() + b"\n")
    control.set_state(short_tmp, "a", state)
    assert played.questions == [f"set-state name=a to={state}"]


def test_set_state_with_another_state_in_the_reply_fails(play: Play, short_tmp: Path) -> None:
    play(b'{"name":"a","state":"active"}\n')
    with pytest.raises(ArbiterError, match="did not change a"):
        control.set_state(short_tmp, "a", GrantState.PARKED)


def test_set_state_without_capacity_is_refused(play: Play, short_tmp: Path) -> None:
    play(refusal("no-capacity"))
    with pytest.raises(control.CapacityRefusedError):
        control.set_state(short_tmp, "a", GrantState.SWITCHING)


@pytest.mark.parametrize("place", Residence)
def test_move_is_sent_and_confirmed(play: Play, short_tmp: Path, place: Residence) -> None:
    reply = {"name": "a", "swap": True, "residence": str(place), "moves": 1}
    played = play(json.dumps(reply).encode() + b"\n")
    control.move(short_tmp, "a", place)
    assert played.questions == [f"move name=a to={place}"]
    other = Residence.GPU if place is Residence.HOST else Residence.HOST
    with pytest.raises(ArbiterError, match="did not move a"):
        control.move(short_tmp, "a", other)


def test_a_grant_that_is_not_swappable_is_not_moved(play: Play, short_tmp: Path) -> None:
    play(refusal("not-swappable"))
    with pytest.raises(UnsupportedError):
        control.move(short_tmp, "a", Residence.HOST)


def test_a_status_says_where_memory_is(play: Play, short_tmp: Path) -> None:
    words = {**grant_words("a", slice_words(), pids=(41, 42)), "swap": True, "residence": "host"}
    says = {"settled": True, "residence": "host", "fixed_bytes": 1, "move_failed": None}
    words["processes"][0] |= {**says, "away_bytes": 7}
    words["processes"][1] |= {**says, "settled": False, "away_bytes": 5, "move_failed": "busy"}
    play(json.dumps({**status_words(words), "knows_swap": True}).encode() + b"\n")
    status = control.status(short_tmp)
    (grant,) = status.grants
    assert status.knows_swap
    assert (grant.is_swappable, grant.residence) == (True, Residence.HOST)
    assert (grant.away_bytes, grant.fixed_bytes) == (12, 2)
    assert [one.moved for one in grant.processes] == [
        Moved(Residence.HOST, settled=True, away_bytes=7, fixed_bytes=1),
        Moved(Residence.HOST, settled=False, away_bytes=5, fixed_bytes=1, failed="busy"),
    ]


def test_a_status_says_how_an_idle_grant_is_parked(play: Play, short_tmp: Path) -> None:
    parking = {
        "park_after_ms": 1500,
        "park_if_wanted": True,
        "park_due": False,
        "parking": "away",
        "parked_times": 2,
        "parked_ns": 7 * SECOND,
        "parked_for_ns": 3 * SECOND,
        "parking_waits": True,
        "parking_why": "GPU 0 is full",
    }
    moves = {"swap": True, "residence": "host", "state": "parked", "staying_bytes": GIB}
    idle = {**grant_words("a", slice_words()), **moves, **parking}
    other = {**grant_words("b", slice_words()), **parking, "park_after_ms": None}
    answer = {**status_words(idle, other), "knows_parking": True}
    play(json.dumps(answer).encode() + b"\n")
    status = control.status(short_tmp)
    grant, stays = status.grants
    assert status.knows_parking
    assert (grant.is_idle_parked, stays.is_idle_parked) == (True, False)
    assert stays.parking is None
    assert grant.parking == Parking(
        1.5, ParkingStep.AWAY, 2, 7.0, 3.0, waits=True, why="GPU 0 is full", if_wanted=True
    )
    assert grant.bytes_on(grant.slices[0].gpu_uuid) == grant.slices[0].memory_bytes


def test_an_earlier_arbiter_is_not_asked_to_park(play: Play, short_tmp: Path) -> None:
    play(json.dumps({**status_words(), "knows_swap": True}).encode() + b"\n")
    request = Request(memory=Amount(bytes=GIB), swap=True, park_after=ParkingRule(600.0))
    with pytest.raises(UnsupportedError, match="does not know --park-after"):
        control.check_swap(control.status(short_tmp), request)


def test_an_earlier_arbiter_is_not_told_how_long_a_slice_may_be_off(
    play: Play, short_tmp: Path
) -> None:
    play(json.dumps({**status_words(), "knows_swap": True}).encode() + b"\n")
    request = Request(memory=Amount(bytes=GIB), swap=True, swap_wait=30.0)
    with pytest.raises(UnsupportedError, match="does not know --swap-wait"):
        control.check_swap(control.status(short_tmp), request)


def test_a_status_says_what_moved_memory_takes_of_the_host(play: Play, short_tmp: Path) -> None:
    words = {**status_words(), "host_memory_bytes": 15 << 30}
    words["gpus"][0]["mover"] = {"host_bytes": 14 << 30, "held_bytes": 20 << 20}
    play(json.dumps(words).encode() + b"\n")
    host = control.status(short_tmp).host_memory
    assert str(host) == "14 GiB ready, 20 MiB in use, of 15 GiB"


def test_grants_of_an_older_arbiter_are_not_swappable(play: Play, short_tmp: Path) -> None:
    play(json.dumps(status_words(grant_words("a", slice_words()))).encode() + b"\n")
    status = control.status(short_tmp)
    assert not status.knows_swap
    assert (status.grants[0].is_swappable, status.grants[0].processes[0].moved) == (False, None)
    control.check_swap(status, Request())
    with pytest.raises(UnsupportedError, match="does not know --swap"):
        control.check_swap(status, Request(memory=Amount(bytes=GIB), swap=True))


def test_a_status_has_states_and_ties(play: Play, short_tmp: Path) -> None:
    words = {**grant_words("a", slice_words()), "state": "parked"}
    words["processes"][0]["ties"] = ["managed", "ipc"]
    play(json.dumps(status_words(words)).encode() + b"\n")
    (grant,) = control.status(short_tmp).grants
    assert grant.state is GrantState.PARKED
    assert grant.processes[0].ties == ("managed", "ipc")


def test_a_grant_without_a_state_is_active(play: Play, short_tmp: Path) -> None:
    play(json.dumps(status_words(grant_words("a", slice_words()))).encode() + b"\n")
    (grant,) = control.status(short_tmp).grants
    assert (grant.state, grant.processes[0].ties) == (GrantState.ACTIVE, ())


@pytest.mark.parametrize(
    ("change", "gradual", "words"),
    [
        ({"memory_bytes": GIB}, False, "name=a slice=UUID,memory=1073741824"),
        ({"compute_percent": 0}, False, "name=a slice=UUID,compute=0"),
        ({"policy": Policy.HARD}, True, "name=a gradual=1 slice=UUID,policy=hard"),
        (
            {"compute_percent": 40, "priority": Priority.LATENCY},
            False,
            "name=a slice=UUID,compute=40,priority=latency",
        ),
    ],
)
def test_resize_names_only_what_changes(
    play: Play, short_tmp: Path, change: dict[str, Any], words: str, *, gradual: bool
) -> None:
    uuid = make_gpu().uuid
    part = {"gpu": uuid, "memory_bytes": GIB, "reached": False}
    played = play(json.dumps({"name": "a", "slices": [part]}).encode() + b"\n")
    done = control.resize(short_tmp, "a", [SliceChange(uuid, **change)], gradual=gradual)
    assert done == (Resized(uuid, GIB, reached=False),)
    assert played.questions == [f"resize {words}".replace("UUID", uuid)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("name-in-use", NameInUseError),
        ("no-capacity", control.CapacityRefusedError),
        ("cannot-make", StateError),
        ("no-such-grant", NoSuchGrantError),
        ("in-use", MemoryInUseError),
        ("unsupported", UnsupportedError),
        ("user-limit", UserLimitError),
        ("share-needed", UserLimitError),
        ("malformed", control.NotUnderstoodError),
        ("holds-memory", HeldMemoryError),
        ("never heard of", ArbiterError),
    ],
)
def test_a_refusal_becomes_the_matching_error(
    play: Play, short_tmp: Path, code: str, kind: type[Exception]
) -> None:
    play(refusal(code))
    with pytest.raises(kind, match="the reason") as caught:
        control.make(short_tmp, "a", [])
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        b"no json\n",
        b"[]\n",
        b"{}\n",
        b'{"version":1}\n',
        b'{"version":1,"pid":0,"gpus":7}',
    ],
)
def test_an_invalid_reply_is_an_error(play: Play, short_tmp: Path, answer: bytes) -> None:
    play(answer)
    with pytest.raises(ArbiterError, match=str(short_tmp)):
        control.status(short_tmp)


def test_another_version_is_refused(play: Play, short_tmp: Path) -> None:
    play(b'{"version":2}\n')
    with pytest.raises(ArbiterError, match="version 2"):
        control.status(short_tmp)


def test_a_missing_arbiter_is_an_error(short_tmp: Path) -> None:
    assert not control.answers(short_tmp)
    assert not control.answers(short_tmp / "nowhere")
    with pytest.raises(control.NoArbiterError, match=str(short_tmp)):
        control.status(short_tmp)


def test_the_path_may_be_longer_than_a_socket_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.chdir(deep)
    played = Played(Path(), b'{"name":"a","directory":"/d","grant":"/d#5"}\n')
    try:
        assert control.make(deep, "a", []) == "/d#5"
    finally:
        played.end()


def test_a_grant_of_another_user_is_named_with_its_user(play: Play, short_tmp: Path) -> None:
    other = {**grant_words("a", slice_words()), "owner_uid": os.geteuid() + 1}
    hidden = {**other, "name": None, "directory": None, "owner_pid": None, "processes": []}
    mine = {**grant_words("a", slice_words()), "owner_uid": os.geteuid()}
    play(lambda _: status_words(mine, other, hidden))
    grants = control.status(short_tmp).grants
    uid = os.geteuid() + 1
    assert [one.name for one in grants] == ["a", f"{uid}:a", f"{uid}:-"]
    assert [one.is_hidden for one in grants] == [False, False, True]


def test_a_busy_arbiter_is_asked_again(play: Play, short_tmp: Path) -> None:
    answers = iter([{"error": "too many", "code": "busy"}] * 2 + [{"stopped": True}])
    played = play(lambda _: next(answers))
    control.stop(short_tmp)
    assert played.questions == ["stop"] * 3


def test_the_strength_of_an_unknown_model_follows_from_what_the_driver_reports(
    short_tmp: Path, play: Play
) -> None:
    figures = {
        "cores": 2560,
        "clock_mhz": 1590,
        "capability": [7, 5],
        "bus": 256,
        "memory_mhz": 5001,
    }
    known = {**gpu_words(), "name": "Voodoo 2", "figures": figures}
    unknown = {**gpu_words(1), "name": "Voodoo 2"}
    play(json.dumps(status_words(gpus=[known, unknown])).encode() + b"\n")
    strengths = [one.gpu.strength for one in control.status(short_tmp).gpus]
    assert strengths == [pytest.approx(strength_of("T4"), rel=0.25), UNKNOWN]
