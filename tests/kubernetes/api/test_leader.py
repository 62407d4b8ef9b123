"""Of several replicas one leads: never two at once, and soon another when it is gone."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from aliquot.kubernetes.api import leader
from aliquot.kubernetes.api.client import Client
from aliquot.kubernetes.api.leader import Elector, LeaseTimes
from kubernetes.fake_api import FakeApi, until

QUICK = LeaseTimes(duration=3.0, deadline=2.0, retry=0.05)


class Replica:
    """An elector with what it was told."""

    def __init__(self, client: Client, identity: str, leaders: set[str]) -> None:
        self.told: list[bool] = []
        self.leaders = leaders
        self.elector = Elector(
            client,
            namespace="ns",
            name="lease",
            identity=identity,
            on_change=self.hear,
            times=QUICK,
        )
        self.task = asyncio.create_task(self.elector.run())

    def hear(self, leading: bool) -> None:  # noqa: FBT001 - the callback's form
        self.told.append(leading)
        (self.leaders.add if leading else self.leaders.discard)(self.elector.identity)
        assert len(self.leaders) <= 1

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def test_one_of_two_leads_and_the_other_takes_over_when_it_stops() -> None:
    async def play() -> None:
        api = FakeApi()
        async with api.serving(), api.client() as client:
            leaders: set[str] = set()
            a, b = (Replica(client, name, leaders) for name in "ab")
            await until(lambda: leaders)
            first, second = (a, b) if a.elector.leading else (b, a)
            await until(lambda: second.elector.holder == first.elector.identity)
            released = asyncio.get_running_loop().time()
            await first.stop()
            assert first.told == [True, False]
            await until(lambda: second.elector.leading)
            # Given back, not run out.
            assert asyncio.get_running_loop().time() - released < QUICK.duration
            await second.stop()
            assert api.all("leases")[0]["spec"]["holderIdentity"] == ""

    asyncio.run(play())


def test_a_dead_leader_is_replaced_when_its_lease_expires() -> None:
    async def play() -> None:
        api = FakeApi()
        spec = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "leaseTransitions": 3}
        api.put("leases", {"metadata": {"name": "lease", "namespace": "ns"}, "spec": spec})
        async with api.serving(), api.client() as client:
            heir = Replica(client, "heir", set())
            await until(lambda: heir.elector.holder == "dead")
            assert not heir.elector.leading
            await until(lambda: heir.elector.leading)
            assert api.all("leases")[0]["spec"]["leaseTransitions"] == 4
            await heir.stop()

    asyncio.run(play())


def test_a_leader_that_cannot_renew_stops_before_another_can_start() -> None:
    async def play() -> None:
        api = FakeApi()
        async with api.serving(), api.client() as client, api.client() as other:
            leaders: set[str] = set()
            a = Replica(client, "a", leaders)
            await until(lambda: a.elector.leading)
            b = Replica(other, "b", leaders)
            await until(lambda: b.elector.holder == "a")
            await client.close()  # a no longer reaches the server
            await until(lambda: b.elector.leading)
            assert a.told == [True, False]
            await a.stop()
            await b.stop()

    asyncio.run(play())


def test_a_replica_that_lost_its_lease_stops_leading() -> None:
    async def play() -> None:
        api = FakeApi()
        async with api.serving(), api.client() as client:
            a = Replica(client, "a", set())
            await until(lambda: a.elector.leading)
            lease = api.all("leases")[0]
            lease["spec"]["holderIdentity"] = "usurper"
            api.put("leases", lease)
            await until(lambda: a.told == [True, False])
            assert api.all("leases")[0]["spec"]["holderIdentity"] == "usurper"
            await a.stop()

    asyncio.run(play())


def test_a_replica_stopped_for_longer_than_its_lease_does_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        api = FakeApi()
        async with api.serving(), api.client() as client:
            a = Replica(client, "a", set())
            await until(lambda: a.elector.leading)
            later = SimpleNamespace(monotonic=lambda: time.monotonic() + QUICK.deadline)
            with monkeypatch.context() as patch:  # nothing else has run meanwhile
                patch.setattr(leader, "time", later)
                assert not a.elector.leading
            await until(lambda: a.elector.leading)
            assert a.told == [True]
            await a.stop()

    asyncio.run(play())


def test_a_replica_that_leads_again_gets_both_callbacks() -> None:
    async def play() -> None:
        api = FakeApi()
        async with api.serving(), api.client() as client:
            a = Replica(client, "a", set())
            await until(lambda: a.elector.leading)
            lease = api.all("leases")[0]
            given_back = {**lease["spec"], "holderIdentity": "", "leaseTransitions": 7}
            api.put("leases", {**lease, "spec": given_back})
            await until(lambda: a.told == [True, False, True])
            await a.stop()

    asyncio.run(play())
