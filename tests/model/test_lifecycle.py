"""Jobs, their sizes and their life cycle, one rule per test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.model import Request
from aliquot.model.actions import Verb, due_actions
from aliquot.model.errors import InvalidValueError
from aliquot.model.idle import IdleAction, IdleRule
from aliquot.model.job import (
    Dependency,
    Desired,
    Job,
    JobChange,
    JobPhase,
    Needs,
    Sizes,
    check_job_name,
    parse_dependency,
    parse_indices,
    parse_sizes,
)
from aliquot.model.job_state import JobState, ObservedJob, ObservedWorker, Stage, WorkerPhase
from aliquot.model.lifecycle import (
    BACKOFF_SECONDS,
    abandon,
    advance,
    follow_idle,
    resize,
    set_desired,
    start,
)

ALIVE, DONE = ObservedWorker(WorkerPhase.ALIVE), ObservedWorker(WorkerPhase.ENDED, code=0)
FAILED = ObservedWorker(WorkerPhase.ENDED, code=3)


def make_job(**more: object) -> Job:
    job = Job(1, "job", ("true",), Request(), Sizes((1, 2, 4)))
    return replace(job, **more)  # type: ignore[arg-type]


def observe(
    state: JobState, *workers: ObservedWorker | None, refused: str | None = None
) -> ObservedJob:
    """The slots of a state as observed; slots that are not closed have GPUs."""
    pairs = list(zip(state.slots, workers, strict=True))
    return ObservedJob(
        slots={slot: worker for slot, worker in pairs if worker is not None},
        allocated=frozenset(slot for slot, worker in pairs if worker is None or not worker.closed),
        refused=refused,
    )


def running(job: Job, size: int = 2) -> JobState:
    state = start(job, JobState(), 0, size, 0.0)
    return advance(job, state, observe(state, *[ALIVE] * size), 1.0)


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
    def test_sizes_are_parsed(self, text: str, sizes: tuple[int, ...]) -> None:
        assert parse_sizes(text).allowed == sizes

    @pytest.mark.parametrize(
        "text", ["", "0", "-1", "4..1", "1..", "..4", "5..7:pow2", "1..9999", "1.5", "a", "1,,2"]
    )
    def test_invalid_sizes_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidValueError):
            parse_sizes(text)

    @pytest.mark.parametrize("text", ["4", "1..4", "2,3,6"])
    def test_printed_sizes_can_be_parsed(self, text: str) -> None:
        assert str(parse_sizes(text)) == text

    def test_a_job_name_is_not_a_number(self) -> None:
        assert check_job_name("a-1") == "a-1"
        for name in ("", "12", "a.b", "a b", "-a", "x" * 31):
            with pytest.raises(InvalidValueError):
                check_job_name(name)


class TestLifecycle:
    def test_all_gpus_are_reserved_before_any_worker_starts(self) -> None:
        job = make_job()
        state = start(job, JobState(), 0, 2, 0.0)
        first, second = state.slots
        assert [action.verb for action in due_actions(state, ObservedJob())] == [Verb.RESERVE]
        half = ObservedJob(allocated=frozenset({first}))
        assert [action.verb for action in due_actions(state, half)] == [Verb.RESERVE]
        allocated = ObservedJob(allocated=frozenset({first, second}))
        assert [(one.verb, one.slots) for one in due_actions(state, allocated)] == [
            (Verb.START, (first, second))
        ]

    def test_a_request_for_an_old_generation_has_no_effect(self) -> None:
        job = make_job()
        state = running(job)
        assert start(job, state, state.generation, 1, 2.0) == state
        assert resize(job, state, state.generation - 1, 4, 2.0, "late") == state
        assert resize(job, state, state.generation, 3, 2.0, "not a size of its") == state

    def test_a_shrink_gives_notice_then_sigterm_then_sigkill(self) -> None:
        job = make_job(notice_seconds=30.0, grace_seconds=5.0)
        state = resize(job, running(job, 4), 1, 2, 100.0, "others wait")
        alive = observe(state, *[ALIVE] * 4)
        assert [action.verb for action in due_actions(state, alive)] == [Verb.NOTIFY]
        assert advance(job, state, alive, 129.0) == state
        state = advance(job, state, alive, 130.0)
        assert state.stopping is not None
        assert (state.stopping.stage, state.stopping.until) == (Stage.TERM, 135.0)
        assert [action.verb for action in due_actions(state, alive)] == [Verb.TERM]
        state = advance(job, state, alive, 135.0)
        assert [action.verb for action in due_actions(state, alive)] == [Verb.KILL]

    def test_workers_that_are_ready_are_not_waited_for(self) -> None:
        job = make_job()
        state = resize(job, running(job), 1, 1, 100.0, "others wait")
        ready = ObservedWorker(WorkerPhase.ALIVE, ready=True)
        assert advance(job, state, observe(state, ready, ALIVE), 101.0) == state
        after = advance(job, state, observe(state, ready, ready), 101.0)
        assert after.stopping is not None
        assert after.stopping.stage is Stage.TERM

    @pytest.mark.parametrize("code", [0, 1, -15, -9, None])
    def test_a_resize_costs_no_retry_however_workers_end(self, code: int | None) -> None:
        job = make_job(retries=1)
        state = resize(job, running(job), 1, 1, 100.0, "others wait")
        ended = ObservedWorker(WorkerPhase.ENDED, code=code, ready=True)
        state = advance(job, state, observe(state, ended, ended), 101.0)
        assert (state.phase, state.size, state.generation) == (JobPhase.STARTING, 1, 2)
        assert state.retries == 0

    def test_a_job_that_finishes_during_the_notice_has_succeeded(self) -> None:
        job = make_job()
        state = resize(job, running(job), 1, 1, 100.0, "others wait")
        state = advance(job, state, observe(state, DONE, DONE), 101.0)
        state = advance(job, state, observe(state, DONE, DONE), 101.0)
        assert state.phase is JobPhase.SUCCEEDED

    def test_a_failure_costs_a_retry_and_a_pause(self) -> None:
        job = make_job(retries=1)
        state = running(job)
        state = advance(job, state, observe(state, ALIVE, FAILED), 100.0)
        assert [action.verb for action in due_actions(state, observe(state, ALIVE, FAILED))] == [
            Verb.TERM
        ]
        state = advance(job, state, observe(state, FAILED, FAILED), 101.0)
        assert (state.phase, state.retries) == (JobPhase.PENDING, 1)
        assert start(job, state, state.generation, 1, 100.0) == state
        state = start(job, state, state.generation, 1, 100.0 + BACKOFF_SECONDS)
        state = advance(job, state, observe(state, FAILED), 200.0)
        state = advance(job, state, observe(state, FAILED), 200.0)
        assert (state.phase, state.reason) == (
            JobPhase.FAILED,
            "worker 0 ended with exit code 3 (1 of 1 retries used)",
        )

    def test_a_command_that_cannot_be_run_is_not_retried(self) -> None:
        job = make_job(retries=5)
        state = start(job, JobState(), 0, 1, 0.0)
        gone = ObservedWorker(WorkerPhase.ENDED, unrunnable="/x: No such file or directory")
        for _ in range(2):
            state = advance(job, state, observe(state, gone), 1.0)
        assert state.phase is JobPhase.FAILED
        assert "could not run: /x" in state.reason

    def test_workers_that_went_down_with_their_machine_cost_no_retry(self) -> None:
        job = make_job()
        state = running(job)
        lost = ObservedWorker(WorkerPhase.ENDED, disrupted=True)
        for _ in range(2):
            state = advance(job, state, observe(state, lost, lost), 1.0)
        assert (state.phase, state.retries) == (JobPhase.PENDING, 0)

    def test_a_job_whose_gpus_are_refused_waits_again(self) -> None:
        job = make_job()
        state = start(job, JobState(), 0, 2, 0.0)
        state = advance(job, state, ObservedJob(refused="no GPU is whole"), 1.0)
        void = ObservedJob(slots=dict.fromkeys(state.slots, ObservedWorker(WorkerPhase.VOID)))
        state = advance(job, state, void, 1.0)
        assert (state.phase, state.reason, state.retries) == (
            JobPhase.PENDING,
            "no GPU is whole",
            0,
        )

    def test_a_job_that_has_gpus_is_not_finished(self) -> None:
        job = make_job()
        state = running(job, 1)
        over = ObservedJob(slots={state.slots[0]: DONE}, allocated=frozenset(state.slots))
        state = advance(job, state, over, 1.0)
        state = advance(job, state, over, 2.0)
        assert not state.phase.final
        assert due_actions(state, over)[0].verb is Verb.RELEASE
        assert advance(job, state, observe(state, DONE), 3.0).phase is JobPhase.SUCCEEDED

    def test_a_cancelled_job_stays_cancelled(self) -> None:
        state = set_desired(set_desired(JobState(), Desired.CANCEL), Desired.RUN)
        assert advance(make_job(), state, ObservedJob(), 1.0).phase is JobPhase.CANCELLED

    def test_cancelling_workers_ends_in_cancelled(self) -> None:
        job = make_job()
        state = set_desired(running(job), Desired.CANCEL)
        state = advance(job, state, observe(state, ALIVE, ALIVE), 5.0)
        assert (state.phase, state.result) == (JobPhase.CANCELLING, None)
        state = advance(job, state, observe(state, DONE, DONE), 6.0)
        assert (state.phase, state.result) == (JobPhase.CANCELLED, 143)

    def test_a_job_that_can_never_start_is_cancelled_with_the_reason(self) -> None:
        state = abandon(JobState(), 1.0, "prepare (1) failed")
        assert (state.phase, state.reason) == (JobPhase.CANCELLED, "prepare (1) failed")
        has_workers = running(make_job())
        assert abandon(has_workers, 1.0, "too late") == has_workers

    @pytest.mark.parametrize(
        ("worker", "code"),
        [
            (FAILED, 3),
            (ObservedWorker(WorkerPhase.ENDED, code=-9), 137),
            (ObservedWorker(WorkerPhase.ENDED), 1),
            (ObservedWorker(WorkerPhase.ENDED, unrunnable="/x: Permission denied"), 126),
        ],
    )
    def test_a_failed_job_has_the_exit_code_of_its_worker(
        self, worker: ObservedWorker, code: int
    ) -> None:
        job = make_job()
        state = running(job, 1)
        for _ in range(2):
            state = advance(job, state, observe(state, worker), 2.0)
        assert (state.phase, state.result) == (JobPhase.FAILED, code)

    def test_a_live_job_keeps_the_workers_below_the_new_size(self) -> None:
        job = make_job(live=True)
        state = resize(job, running(job, 4), 1, 2, 100.0, "others wait")
        ready = ObservedWorker(WorkerPhase.ALIVE, ready=True)
        state = advance(job, state, observe(state, *[ready] * 4), 101.0)
        going = due_actions(state, observe(state, *[ready] * 4))
        assert [(one.verb, [slot.rank for slot in one.slots]) for one in going] == [
            (Verb.TERM, [2, 3])
        ]
        state = advance(job, state, observe(state, ready, ready, DONE, DONE), 102.0)
        assert (state.phase, state.size, state.generation) == (JobPhase.RUNNING, 2, 2)
        assert {slot.generation for slot in state.slots} == {1}


class TestEnds:
    """A controller that was down learns late how workers ended, and says when that was."""

    def test_a_job_ended_when_its_last_worker_did(self) -> None:
        job = make_job()
        state = running(job)
        seen = observe(state, replace(DONE, ended_at=30.0), replace(DONE, ended_at=40.0))
        state = advance(job, state, seen, 500.0)
        assert (state.phase, state.since) == (JobPhase.RUNNING, 40.0)
        state = advance(job, state, seen, 501.0)
        assert (state.phase, state.since) == (JobPhase.SUCCEEDED, 40.0)
        assert state.used_seconds == 40.0

    def test_the_others_are_stopped_with_grace_after_a_failure_long_ago(self) -> None:
        job = make_job(grace_seconds=5.0)
        state = running(job)
        failed = replace(FAILED, ended_at=30.0)
        state = advance(job, state, observe(state, failed, ALIVE), 500.0)
        assert state.stopping is not None
        assert (state.since, state.stopping.until) == (30.0, 505.0)
        ended = observe(state, failed, replace(FAILED, ended_at=502.0))
        state = advance(job, state, ended, 503.0)
        assert (state.phase, state.since, state.used_seconds) == (JobPhase.FAILED, 502.0, 502.0)

    def test_the_time_without_a_controller_does_not_count_before_a_retry(self) -> None:
        job = make_job(retries=1)
        state = running(job, 1)
        failed = observe(state, replace(FAILED, ended_at=30.0))
        state = advance(job, advance(job, state, failed, 500.0), failed, 500.0)
        assert (state.phase, state.used_seconds) == (JobPhase.PENDING, 30.0)
        assert state.not_before == 500.0 + BACKOFF_SECONDS

    @pytest.mark.parametrize(("said", "end"), [(None, 500.0), (0.5, 1.0), (900.0, 500.0)])
    def test_an_end_is_neither_unknown_nor_before_the_start_nor_in_the_future(
        self, said: float | None, end: float
    ) -> None:
        job = make_job()
        state = running(job, 1)
        seen = observe(state, replace(DONE, ended_at=said))
        state = advance(job, advance(job, state, seen, 500.0), seen, 500.0)
        assert (state.phase, state.since) == (JobPhase.SUCCEEDED, end)


class TestTimeLimit:
    def test_at_its_limit_a_job_gets_a_notice_is_stopped_and_has_failed(self) -> None:
        job = make_job(time_seconds=100.0, notice_seconds=30.0)
        state = running(job, 1)
        alive = observe(state, ALIVE)
        assert advance(job, state, alive, 99.0) == state
        state = advance(job, state, alive, 100.0)
        assert [action.verb for action in due_actions(state, alive)] == [Verb.NOTIFY]
        state = advance(job, state, alive, 130.0)
        assert [action.verb for action in due_actions(state, alive)] == [Verb.TERM]
        state = advance(job, state, observe(state, DONE), 131.0)
        assert (state.phase, state.result, state.reason) == (
            JobPhase.FAILED,
            124,
            "it has reached its time limit of 1 min 40 s",
        )

    def test_a_job_that_finishes_during_that_notice_has_succeeded(self) -> None:
        job = make_job(time_seconds=100.0)
        state = running(job, 1)
        state = advance(job, state, observe(state, ALIVE), 100.0)
        for _ in range(2):
            state = advance(job, state, observe(state, DONE), 101.0)
        assert (state.phase, state.result) == (JobPhase.SUCCEEDED, 0)

    def test_suspended_time_does_not_count(self) -> None:
        job = make_job(time_seconds=100.0, retries=1)
        state = set_desired(running(job, 1), Desired.SUSPEND)
        state = advance(job, state, observe(state, ALIVE), 60.0)
        saved = ObservedWorker(WorkerPhase.ENDED, code=0, ready=True)
        state = advance(job, state, observe(state, saved), 60.0)
        assert (state.phase, state.used(5000.0)) == (JobPhase.SUSPENDED, 60.0)
        state = advance(job, set_desired(state, Desired.RUN), ObservedJob(), 5000.0)
        state = start(job, state, state.generation, 1, 5000.0)
        state = advance(job, state, observe(state, ALIVE), 5039.0)
        assert (state.phase, state.stopping) == (JobPhase.RUNNING, None)
        assert advance(job, state, observe(state, ALIVE), 5040.0).stopping is not None

    def test_a_run_that_was_lost_with_its_machine_does_not_count(self) -> None:
        job = make_job(time_seconds=100.0)
        state = running(job, 1)
        lost = ObservedWorker(WorkerPhase.ENDED, disrupted=True)
        for _ in range(2):
            state = advance(job, state, observe(state, lost), 9999.0)
        assert (state.phase, state.used(9999.0)) == (JobPhase.PENDING, 0.0)

    def test_a_job_without_time_left_does_not_start_again(self) -> None:
        state = JobState(used_seconds=100.0)
        state = advance(make_job(time_seconds=100.0), state, ObservedJob(), 1.0)
        assert (state.phase, state.result) == (JobPhase.FAILED, 124)

    def test_a_job_that_is_cancelled_at_its_limit_is_not_waited_for(self) -> None:
        job = make_job(time_seconds=100.0)
        state = running(job, 1)
        state = advance(job, state, observe(state, ALIVE), 100.0)
        state = advance(job, set_desired(state, Desired.CANCEL), observe(state, ALIVE), 101.0)
        assert state.phase is JobPhase.CANCELLING
        assert state.stopping is not None
        assert state.stopping.stage is Stage.TERM


class TestArrays:
    @pytest.mark.parametrize(
        ("text", "indices", "at_once"),
        [
            ("1-3", (1, 2, 3), None),
            ("7", (7,), None),
            ("4,1,7", (1, 4, 7), None),
            ("0-3%2", (0, 1, 2, 3), 2),
            ("1-2,5-6%1", (1, 2, 5, 6), 1),
        ],
    )
    def test_indices_are_parsed(
        self, text: str, indices: tuple[int, ...], at_once: int | None
    ) -> None:
        assert parse_indices(text) == (indices, at_once)

    @pytest.mark.parametrize(
        "text", ["", "a", "3-1", "1-", "-3", "1,1", "1-3%0", "0-1000", "1-99999", "1%x"]
    )
    def test_invalid_indices_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidValueError):
            parse_indices(text)


def test_a_dependency_is_parsed() -> None:
    assert parse_dependency("prepare") == Dependency("prepare", Needs.OK)
    assert parse_dependency("prepare:any") == Dependency("prepare", Needs.ANY)
    assert parse_dependency("alice:prepare") == Dependency("alice:prepare", Needs.OK)
    assert parse_dependency("alice:prepare:ok") == Dependency("alice:prepare", Needs.OK)


@pytest.mark.parametrize("text", ["afterok:5", "afterany:5:6", "afternotok:train"])
def test_a_dependency_in_slurms_form_is_refused_with_ours(text: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        parse_dependency(text)
    assert "JOB:any" in str(refused.value)


def test_a_change_of_a_job_keeps_the_rest() -> None:
    job = make_job(time_seconds=60.0, urgency=3)
    assert JobChange().apply(job) == job
    changed = JobChange(compute_percent=30, time_seconds=0, urgency=5)
    assert changed.needs_waiting == ("--compute",)
    after = changed.apply(job)
    assert (after.request.compute_percent, after.time_seconds, after.urgency) == (30, None, 5)
    assert after.sizes == job.sizes


class TestIdleJobs:
    RULE = IdleRule(after_seconds=600.0, action=IdleAction.END, grace_seconds=3600.0)

    def test_a_job_that_uses_no_gpu_is_reported_once(self) -> None:
        job, rule = make_job(queue="lab"), IdleRule(after_seconds=600.0)
        state = running(job, 1)
        assert follow_idle(job, state, 599.0, rule, 1000.0) == state
        reported = follow_idle(job, state, 600.0, rule, 1000.0)
        assert (reported.phase, reported.idle_reported) == (JobPhase.RUNNING, 1000.0)
        assert reported.reason == "idle: it has used no GPU for 10 min"
        assert follow_idle(job, reported, 1e6, rule, 1e6) == reported

    def test_one_that_uses_a_gpu_again_is_not_idle(self) -> None:
        job = make_job()
        state = follow_idle(job, running(job, 1), 600.0, self.RULE, 1000.0)
        again = follow_idle(job, state, 0.0, self.RULE, 1001.0)
        assert (again.idle_reported, again.stopping) == (None, None)
        assert again.reason == "running with 1 worker: it uses its GPUs again"
        assert follow_idle(job, again, 0.0, self.RULE, 1002.0) == again

    def test_its_queue_ends_it_as_at_a_time_limit_after_the_grace_time(self) -> None:
        job = make_job(queue="lab", retries=3)
        state = follow_idle(job, running(job, 1), 600.0, self.RULE, 1000.0)
        told = "idle: it has used no GPU for 10 min; queue lab ends it in 1 h unless it uses one"
        assert state.reason == told
        assert follow_idle(job, state, 4199.0, self.RULE, 4599.0) == state
        state = follow_idle(job, state, 4200.0, self.RULE, 4600.0)
        alive = observe(state, ALIVE)
        assert [action.verb for action in due_actions(state, alive)] == [Verb.NOTIFY]
        state = advance(job, state, alive, 4600.0 + job.notice_seconds)
        assert [action.verb for action in due_actions(state, alive)] == [Verb.TERM]
        state = advance(job, state, observe(state, DONE), 4700.0)
        why = "idle for 1 h 10 min: queue lab ends jobs that use no GPU for 1 h 10 min"
        assert (state.phase, state.result, state.reason) == (JobPhase.FAILED, 124, why)

    def test_a_new_rule_is_reported_before_it_ends_anything(self) -> None:
        job = make_job()
        state = follow_idle(job, running(job, 1), 600.0, IdleRule(600.0), 1000.0)
        state = follow_idle(job, state, 1e6, self.RULE, 1e6)
        assert (state.stopping, state.idle_reported) == (None, 1e6)
        assert follow_idle(job, state, 1e6, self.RULE, 1e6 + 3599.0) == state
        assert follow_idle(job, state, 1e6, self.RULE, 1e6 + 3600.0).stopping is not None

    def test_without_its_rule_a_job_is_no_longer_reported(self) -> None:
        job = make_job()
        state = follow_idle(job, running(job, 1), 600.0, self.RULE, 1000.0)
        state = follow_idle(job, state, 700.0, None, 1100.0)
        assert (state.idle_reported, state.reason) == (None, "running with 1 worker")

    def test_nor_if_nobody_knows_how_long_it_was_idle(self) -> None:
        job = make_job()
        state = follow_idle(job, running(job, 1), 600.0, self.RULE, 1000.0)
        assert follow_idle(job, state, None, self.RULE, 1100.0) == state
        assert follow_idle(job, state, None, None, 1100.0).idle_reported is None

    def test_a_clock_that_is_set_forward_ends_no_job(self) -> None:
        job = make_job()
        state = follow_idle(job, running(job, 1), 600.0, self.RULE, 1000.0)
        assert follow_idle(job, state, 601.0, self.RULE, 1e6) == state
        assert follow_idle(job, state, 4200.0, self.RULE, 1e6).stopping is not None

    def test_the_time_before_it_ran_does_not_count(self) -> None:
        job = make_job()
        state = running(job, 1)  # since 1.0
        assert follow_idle(job, state, 1e6, self.RULE, 600.0) == state
        assert follow_idle(job, state, 1e6, self.RULE, 601.0).idle_reported == 601.0

    def test_a_suspended_job_is_not_idle(self) -> None:
        job = make_job()
        state = follow_idle(job, running(job, 1), 600.0, self.RULE, 1000.0)
        state = set_desired(state, Desired.SUSPEND)
        assert follow_idle(job, state, 1e6, self.RULE, 1e6) == state, "it is being suspended"
        can = replace(observe(state, ALIVE), unfreezable=None)
        state = advance(job, state, can, 1001.0)
        frozen = replace(ALIVE, frozen=True, confirmed=True)
        parked = ObservedJob({state.slots[0]: frozen}, parked=frozenset(state.slots))
        state = advance(job, state, replace(parked, unfreezable=None), 1002.0)
        assert (state.phase, state.idle_reported) == (JobPhase.SUSPENDED, None)
        assert follow_idle(job, state, 1e6, self.RULE, 1e6) == state

    def test_what_is_not_known_changes_nothing(self) -> None:
        job = make_job()
        state = follow_idle(job, running(job, 1), 600.0, self.RULE, 1000.0)
        assert follow_idle(job, state, None, self.RULE, 1e6) == state
