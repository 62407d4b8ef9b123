"""Events reach the API server, are counted, and never block the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api import events
from aliquot.kubernetes.api.events import Recorder
from aliquot.kubernetes.api.objects import PODS, Meta, Pod
from kubernetes.fake_api import FakeApi, until

POD = Pod(Meta(name="p", namespace="ns", uid="u1"))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def recording(api: FakeApi, clock: Clock | None = None) -> AsyncIterator[Recorder]:
    async with api.serving(), api.client() as client:
        recorder = Recorder(client, "tester", now=clock or Clock())
        writing = asyncio.create_task(recorder.run())
        yield recorder
        writing.cancel()
        await asyncio.wait([writing])


def test_an_event_names_its_object_reason_and_component() -> None:
    async def play() -> None:
        api = FakeApi()
        async with recording(api) as recorder:
            recorder.record(PODS, POD, "Warning", "InsufficientGPUs", "no GPU has room")
            await until(lambda: api.all("events"))
        (event,) = api.all("events")
        assert event["involvedObject"]["name"] == "p"
        assert event["involvedObject"]["uid"] == "u1"
        assert event["metadata"]["namespace"] == "ns"
        assert (event["type"], event["reason"]) == ("Warning", "InsufficientGPUs")
        assert event["message"] == "no GPU has room"
        assert event["source"]["component"] == "tester"
        assert event["count"] == 1

    asyncio.run(play())


def test_a_repeated_event_increases_its_count() -> None:
    async def play() -> None:
        api, clock = FakeApi(), Clock()
        async with recording(api, clock) as recorder:
            recorder.record(PODS, POD, "Warning", "InsufficientGPUs", "no GPU has room")
            await until(lambda: api.all("events"))
            for _ in range(5):
                recorder.record(PODS, POD, "Warning", "InsufficientGPUs", "no GPU has room")
            clock.now += events.AGAIN
            recorder.record(PODS, POD, "Warning", "InsufficientGPUs", "no GPU has room")
            await until(lambda: api.all("events")[0]["count"] == 7)
            assert [method for method, _ in api.requests] == ["POST", "PATCH"]
        assert len(api.all("events")) == 1

    asyncio.run(play())


def test_events_of_an_object_are_rate_limited() -> None:
    async def play() -> None:
        api, clock = FakeApi(), Clock()
        other = Pod(Meta(name="q", namespace="ns", uid="u2"))
        async with recording(api, clock) as recorder:
            for number in range(events.BURST + 5):
                recorder.record(PODS, POD, "Normal", "Noise", f"number {number}")
            recorder.record(PODS, other, "Normal", "Calm", "still heard")
            assert recorder.dropped == 4  # the last is held
            clock.now += events.REFILL
            recorder.record(PODS, POD, "Normal", "Noise", "one more")
            await until(lambda: len(api.all("events")) == events.BURST + 2)
            assert recorder.dropped == 5

    asyncio.run(play())


def messages(api: FakeApi) -> list[str]:
    return [event["message"] for event in api.all("events")]


def test_after_a_storm_the_last_event_of_each_reason_is_written() -> None:
    async def play() -> None:
        api, clock = FakeApi(), Clock()
        async with recording(api, clock) as recorder:
            for number in range(events.BURST + 5):
                recorder.record(PODS, POD, "Normal", "Resized", f"to {number}")
                recorder.record(PODS, POD, "Warning", "ResizeRefused", f"not to {number}")
            await until(lambda: len(messages(api)) == events.BURST)
            clock.now += events.REFILL
            await until(lambda: len(messages(api)) == events.BURST + 1)
            assert messages(api)[-1] == "not to 14"  # what was said last comes first
            clock.now += events.REFILL
            await until(lambda: len(messages(api)) == events.BURST + 2)
            assert messages(api)[-1] == "to 14"
            clock.now += events.REFILL
        assert len(messages(api)) == events.BURST + 2
        assert recorder.dropped == 2 * (events.BURST + 5) - len(messages(api))

    asyncio.run(play())


def test_a_count_is_written_later_if_repeated_too_soon() -> None:
    async def play() -> None:
        api, clock = FakeApi(), Clock()
        async with recording(api, clock) as recorder:
            for _ in range(3):
                recorder.record(PODS, POD, "Normal", "Resized", "to 50%")
                await until(lambda: api.all("events"))
            assert api.all("events")[0]["count"] == 1
            clock.now += events.AGAIN
            await until(lambda: api.all("events")[0]["count"] == 3)
        assert recorder.dropped == 0

    asyncio.run(play())


def test_delayed_events_are_written_at_the_end() -> None:
    async def play() -> None:
        api = FakeApi()
        async with recording(api) as recorder:
            for number in range(events.BURST + 5):
                recorder.record(PODS, POD, "Normal", "Resized", f"to {number}")
            await until(lambda: len(messages(api)) == events.BURST)
        assert messages(api)[-1] == "to 14"

    asyncio.run(play())


WORDS = st.tuples(st.sampled_from("ABC"), st.integers(0, 9), st.sampled_from([0.0, 4.0, 31.0]))


@settings(max_examples=15, deadline=None)
@given(said=st.lists(WORDS, min_size=1, max_size=60))
def test_the_last_event_of_each_reason_is_never_lost(said: list[tuple[str, int, float]]) -> None:
    async def play() -> None:
        api, clock = FakeApi(), Clock()
        async with recording(api, clock) as recorder:
            recorder.record(PODS, POD, "Normal", "First", "said")
            await until(lambda: api.all("events"))
            for reason, number, seconds in said:
                recorder.record(PODS, POD, "Normal", reason, f"number {number}")
                clock.now += seconds
        counts = {(one["reason"], one["message"]): one["count"] for one in api.all("events")}
        for reason, number in {reason: number for reason, number, _ in said}.items():
            times = sum(one[:2] == (reason, number) for one in said)
            assert counts[reason, f"number {number}"] == times

    asyncio.run(play())


@pytest.mark.parametrize("kept", [1, 3])
def test_delayed_events_are_bounded(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT", kept)
    monkeypatch.setattr(events, "BURST", 1)

    async def play() -> None:
        api = FakeApi()
        async with recording(api) as recorder:
            recorder.record(PODS, POD, "Normal", "First", "said")
            await until(lambda: api.all("events"))
            for number in range(5):
                recorder.record(PODS, POD, "Normal", f"Reason{number}", "said")
            assert recorder.dropped == 5 - kept
        reasons = {event["reason"] for event in api.all("events")}
        assert reasons == {f"Reason{number}" for number in range(5 - kept, 5)} | {"First"}

    asyncio.run(play())


def test_events_recorded_before_the_end_are_written() -> None:
    async def play() -> None:
        api = FakeApi()
        async with recording(api) as recorder:
            recorder.record(PODS, POD, "Normal", "Early", "first")
            await until(lambda: api.all("events"))
            for number in range(3):
                recorder.record(PODS, POD, "Normal", "Late", f"number {number}")
        assert len(api.all("events")) == 4

    asyncio.run(play())


def test_a_server_that_is_away_for_a_moment_gets_the_event_later() -> None:
    async def play() -> None:
        api = FakeApi()
        answers = [503, 503]
        api.faults.refuse = lambda *_: answers.pop() if answers else None
        async with recording(api) as recorder:
            recorder.record(PODS, POD, "Normal", "Patient", "in the end")
            await until(lambda: api.all("events"))
        assert recorder.dropped == 0

    asyncio.run(play())


@pytest.mark.parametrize("code", [403, 404])
def test_a_refused_event_is_counted_and_blocks_nothing(code: int) -> None:
    async def play() -> None:
        api = FakeApi()
        api.faults.refuse = lambda *_: code
        async with recording(api) as recorder:
            recorder.record(PODS, POD, "Normal", "Refused", "never")
            await until(lambda: recorder.dropped == 1)
            api.faults.refuse = lambda *_: None
            recorder.record(PODS, POD, "Normal", "Heard", "now")
            await until(lambda: api.all("events"))

    asyncio.run(play())


def test_a_full_queue_drops_and_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUEUE", 2)

    async def play() -> None:
        api = FakeApi()
        async with api.client() as client:
            recorder = Recorder(client, "tester")
            for number in range(5):
                recorder.record(PODS, POD, "Normal", "Many", f"number {number}")
            assert recorder.dropped == 3

    asyncio.run(play())
