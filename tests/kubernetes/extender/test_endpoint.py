"""The Service leads to the leader alone, also after takeovers, deaths and upgrades."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aliquot.kubernetes.extender import endpoint
from aliquot.kubernetes.extender.endpoint import OwnEndpoint
from kubernetes.builders import make_node
from kubernetes.extender.replica import put_node, replica
from kubernetes.fake_api import FakeApi, Json, until


def own(number: int) -> OwnEndpoint:
    return OwnEndpoint("extender", f"pod-{number}", f"uid-{number}", f"10.0.0.{number}", 8443)


def leads_to(api: FakeApi) -> list[str]:
    """The addresses that connections to the Service go to."""
    slices = [
        one
        for one in api.all("endpointslices")
        if one["metadata"]["labels"]["kubernetes.io/service-name"] == "extender"
    ]
    return [
        address
        for one in slices
        for each in one["endpoints"]
        if each["conditions"]["ready"]
        for address in each["addresses"]
    ]


def foreign(name: str, service: str = "extender") -> Json:
    labels = {"kubernetes.io/service-name": service}
    meta: dict[str, Any] = {"name": name, "namespace": "ns", "labels": labels}
    ends = [{"addresses": ["10.9.9.9"], "conditions": {"ready": True}}]
    return {"metadata": meta, "addressType": "IPv4", "endpoints": ends, "ports": []}


def test_the_service_leads_to_the_leader_and_then_to_the_next() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        async with api.serving(), AsyncExitStack() as living:
            first = await living.enter_async_context(replica(api, endpoint=own(1)))
            await first.ready()
            async with replica(api, endpoint=own(2)) as second:
                await until(lambda: second.scheduler.why_not().endswith("leads"))
                assert not second.scheduler.not_ready()
                await until(lambda: leads_to(api) == ["10.0.0.1"])
                (one,) = api.all("endpointslices")
                assert one["ports"] == [{"name": "https", "port": 8443, "protocol": "TCP"}]
                assert one["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
                await living.aclose()
                await second.ready()
                await until(lambda: leads_to(api) == ["10.0.0.2"])
            assert leads_to(api) == []

    asyncio.run(run())


def test_what_a_dead_leader_or_a_selector_left_behind_is_removed() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        api.put("endpointslices", foreign("extender-x7k2p"))
        api.put("endpointslices", foreign("other-a1b2c", "other"))
        api.put("endpoints", {"metadata": {"name": "extender", "namespace": "ns"}})
        async with api.serving(), replica(api, endpoint=own(1)) as one:
            await one.ready()
            await until(lambda: leads_to(api) == ["10.0.0.1"])
            names = {each["metadata"]["name"] for each in api.all("endpointslices")}
            assert names == {"pod-1", "other-a1b2c"}
            assert api.all("endpoints") == []

    asyncio.run(run())


def test_a_slice_that_somebody_changes_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REPEAT_SECONDS", 0.0)

    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        async with api.serving(), replica(api, endpoint=own(1)) as one:
            await until(lambda: leads_to(api) == ["10.0.0.1"])
            api.delete("endpointslices", "pod-1", "ns")
            await until(lambda: leads_to(api) == ["10.0.0.1"])
            api.put("endpointslices", foreign("pod-1"))  # its pod has a new address now
            await until(lambda: leads_to(api) == ["10.0.0.1"])
            assert not one.scheduler.why_not()

    asyncio.run(run())


def test_a_refused_slice_is_tried_again_and_stops_nothing() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        failures = iter([403, 500])
        api.faults.refuse = lambda method, path: (
            next(failures, None) if method == "POST" and path.endswith("/endpointslices") else None
        )
        async with api.serving(), replica(api, endpoint=own(1)) as one:
            await one.ready()
            await until(lambda: leads_to(api) == ["10.0.0.1"])

    asyncio.run(run())


def test_an_ipv6_pod_has_a_slice_of_its_kind() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        six = OwnEndpoint("extender", "pod-6", "uid-6", "fd00::6", 8443)
        async with api.serving(), replica(api, endpoint=six):
            await until(lambda: leads_to(api) == ["fd00::6"])
            assert api.all("endpointslices")[0]["addressType"] == "IPv6"

    asyncio.run(run())
