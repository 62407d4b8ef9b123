"""Jobs, their sizes and their life, one rule at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.model import Request
from aliquot.model.due import due
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Job, Sizes, State, Wish, check_job_name, parse_sizes
from aliquot.model.lifecycle import BACKOFF_SECONDS, advance, resize, start, want
from aliquot.model.record import Phase, Record, Seen, Sight, Stage, Verb

ALIVE, DONE = Sight(Phase.ALIVE), Sight(Phase.ENDED, code=0)
FAILED = Sight(Phase.ENDED, code=3)


def make_job(**more: object) -> Job:
    job = Job(1, "job", ("true",), Request(), Sizes((1, 2, 4)))
    return replace(job, **more)  # type: ignore[arg-type]


def seen(record: Record, *sights: Sight | None, refused: str | None = None) -> Seen:
    """All slots of a record, as they are seen; GPUs are held for those that are not over."""
    pairs = list(zip(record.slots, sights, strict=True))
    return Seen(
        slots={slot: sight for slot, sight in pairs if sight is not None},
        held=frozenset(slot for slot, sight in pairs if sight is None or not sight.closed),
        refused=refused,
    )


def running(job: Job, size: int = 2) -> Record:
    record = start(job, Record(), 0, size, 0.0)
    return advance(job, record, seen(record, *[ALIVE] * size), 1.0)


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "sizes"),
        [
            ("4", (4,)),
            ("1..4", (1, 2, 3, 4)),
            ("1..8:pow2", (1, 2, 4, 8)),
            ("3..9:pow2", (4, 8)),
            ("6,2,3,2", (2, 3, 6)),
            (" 2..2 ", (2,)),
        ],
    )
    def test_they_are_read_as_people_write_them(self, text: str, sizes: tuple[int, ...]) -> None:
        assert parse_sizes(text).allowed == sizes

    @pytest.mark.parametrize(
        "text", ["", "0", "-1", "4..1", "1..", "..4", "5..7:pow2", "1..9999", "1.5", "a", "1,,2"]
    )
    def test_what_cannot_be_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidValueError):
            parse_sizes(text)

    @pytest.mark.parametrize("text", ["4", "1..4", "2,3,6"])
    def test_what_is_printed_can_be_read(self, text: str) -> None:
        assert str(parse_sizes(text)) == text

    def test_a_number_is_no_name(self) -> None:
        assert check_job_name("a-1") == "a-1"
        for name in ("", "12", "a.b", "a b", "-a", "x" * 31):
            with pytest.raises(InvalidValueError):
                check_job_name(name)


class TestLife:
    def test_gpus_are_held_for_all_before_any_is_started(self) -> None:
        job = make_job()
        record = start(job, Record(), 0, 2, 0.0)
        first, second = record.slots
        assert [action.verb for action in due(record, Seen())] == [Verb.RESERVE]
        half = Seen(held=frozenset({first}))
        assert [action.verb for action in due(record, half)] == [Verb.RESERVE]
        held = Seen(held=frozenset({first, second}))
        assert [(one.verb, one.slots) for one in due(record, held)] == [
            (Verb.START, (first, second))
        ]

    def test_an_old_word_does_nothing(self) -> None:
        job = make_job()
        record = running(job)
        assert start(job, record, record.generation, 1, 2.0) == record
        assert resize(job, record, record.generation - 1, 4, 2.0, "late") == record
        assert resize(job, record, record.generation, 3, 2.0, "not a size of its") == record

    def test_a_shrink_is_asked_for_before_anything_is_taken(self) -> None:
        job = make_job(notice_seconds=30.0, grace_seconds=5.0)
        record = resize(job, running(job, 4), 1, 2, 100.0, "others wait")
        alive = seen(record, *[ALIVE] * 4)
        assert [action.verb for action in due(record, alive)] == [Verb.NOTIFY]
        assert advance(job, record, alive, 129.0) == record
        record = advance(job, record, alive, 130.0)
        assert record.leaving is not None
        assert (record.leaving.stage, record.leaving.until) == (Stage.TERM, 135.0)
        assert [action.verb for action in due(record, alive)] == [Verb.TERM]
        record = advance(job, record, alive, 135.0)
        assert [action.verb for action in due(record, alive)] == [Verb.KILL]

    def test_who_is_ready_is_not_waited_for(self) -> None:
        job = make_job()
        record = resize(job, running(job), 1, 1, 100.0, "others wait")
        ready = Sight(Phase.ALIVE, ready=True)
        assert advance(job, record, seen(record, ready, ALIVE), 101.0) == record
        after = advance(job, record, seen(record, ready, ready), 101.0)
        assert after.leaving is not None
        assert after.leaving.stage is Stage.TERM

    @pytest.mark.parametrize("code", [0, 1, -15, -9, None])
    def test_a_restart_for_a_resize_costs_no_retry_however_workers_end(
        self, code: int | None
    ) -> None:
        job = make_job(retries=1)
        record = resize(job, running(job), 1, 1, 100.0, "others wait")
        ended = Sight(Phase.ENDED, code=code, ready=True)
        record = advance(job, record, seen(record, ended, ended), 101.0)
        assert (record.state, record.size, record.generation) == (State.STARTING, 1, 2)
        assert record.retries == 0

    def test_a_job_that_finishes_while_it_is_asked_has_succeeded(self) -> None:
        job = make_job()
        record = resize(job, running(job), 1, 1, 100.0, "others wait")
        record = advance(job, record, seen(record, DONE, DONE), 101.0)
        record = advance(job, record, seen(record, DONE, DONE), 101.0)
        assert record.state is State.SUCCEEDED

    def test_a_failure_costs_a_retry_and_some_time(self) -> None:
        job = make_job(retries=1)
        record = running(job)
        record = advance(job, record, seen(record, ALIVE, FAILED), 100.0)
        assert [action.verb for action in due(record, seen(record, ALIVE, FAILED))] == [Verb.TERM]
        record = advance(job, record, seen(record, FAILED, FAILED), 101.0)
        assert (record.state, record.retries) == (State.PENDING, 1)
        assert start(job, record, record.generation, 1, 100.0) == record
        record = start(job, record, record.generation, 1, 100.0 + BACKOFF_SECONDS)
        record = advance(job, record, seen(record, FAILED), 200.0)
        record = advance(job, record, seen(record, FAILED), 200.0)
        assert (record.state, record.reason) == (
            State.FAILED,
            "worker 0 ended with exit code 3 (1 of 1 retries used)",
        )

    def test_a_command_that_cannot_be_run_is_not_tried_again(self) -> None:
        job = make_job(retries=5)
        record = start(job, Record(), 0, 1, 0.0)
        gone = Sight(Phase.ENDED, unrunnable="/x: No such file or directory")
        for _ in range(2):
            record = advance(job, record, seen(record, gone), 1.0)
        assert record.state is State.FAILED
        assert "could not run: /x" in record.reason

    def test_workers_that_went_with_their_machine_are_excused(self) -> None:
        job = make_job()
        record = running(job)
        lost = Sight(Phase.ENDED, excused=True)
        for _ in range(2):
            record = advance(job, record, seen(record, lost, lost), 1.0)
        assert (record.state, record.retries) == (State.PENDING, 0)

    def test_a_job_for_which_there_was_no_room_waits_again(self) -> None:
        job = make_job()
        record = start(job, Record(), 0, 2, 0.0)
        record = advance(job, record, Seen(refused="no GPU is whole"), 1.0)
        void = Seen(slots=dict.fromkeys(record.slots, Sight(Phase.VOID)))
        record = advance(job, record, void, 1.0)
        assert (record.state, record.reason, record.retries) == (
            State.PENDING,
            "no GPU is whole",
            0,
        )

    def test_a_job_that_holds_something_is_not_over(self) -> None:
        job = make_job()
        record = running(job, 1)
        over = Seen(slots={record.slots[0]: DONE}, held=frozenset(record.slots))
        record = advance(job, record, over, 1.0)
        record = advance(job, record, over, 2.0)
        assert not record.state.final
        assert due(record, over)[0].verb is Verb.RELEASE
        assert advance(job, record, seen(record, DONE), 3.0).state is State.SUCCEEDED

    def test_who_is_cancelled_stays_cancelled(self) -> None:
        record = want(want(Record(), Wish.CANCEL), Wish.RUN)
        assert advance(make_job(), record, Seen(), 1.0).state is State.CANCELLED

    def test_a_live_job_keeps_the_workers_that_are_not_too_many(self) -> None:
        job = make_job(live=True)
        record = resize(job, running(job, 4), 1, 2, 100.0, "others wait")
        ready = Sight(Phase.ALIVE, ready=True)
        record = advance(job, record, seen(record, *[ready] * 4), 101.0)
        going = due(record, seen(record, *[ready] * 4))
        assert [(one.verb, [slot.rank for slot in one.slots]) for one in going] == [
            (Verb.TERM, [2, 3])
        ]
        record = advance(job, record, seen(record, ready, ready, DONE, DONE), 102.0)
        assert (record.state, record.size, record.generation) == (State.RUNNING, 2, 2)
        assert {slot.generation for slot in record.slots} == {1}
