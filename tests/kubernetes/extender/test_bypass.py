"""Pods that ask for GPUs without asking Aliquot get one event that says so."""

from __future__ import annotations

import asyncio
from typing import Any

from aliquot.kubernetes.api.objects import PODS
from kubernetes.builders import make_node, make_pod
from kubernetes.extender.replica import put_node, replica
from kubernetes.fake_api import FakeApi, as_json, until


def put(api: FakeApi, name: str, spec: dict[str, Any], **asked: Any) -> None:
    body = as_json(PODS, make_pod(name, **asked))
    body["spec"] |= spec
    api.put("pods", body)


def told(api: FakeApi, name: str) -> list[tuple[str, str]]:
    return [
        (one["reason"], one["message"])
        for one in api.all("events")
        if one["involvedObject"]["name"] == name
    ]


def test_pods_of_other_schedulers_get_one_event() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 2))
        other = {"schedulerName": "default-scheduler"}
        put(api, "before", other, gpu=1)
        async with api.serving(), replica(api, scheduler_names=("aliquot", "volcano")) as one:
            await one.ready()
            put(api, "ours", {"schedulerName": "volcano"}, gpu=1)
            put(api, "without", other, cpu=1)
            put(api, "past", {"schedulerName": "aliquot", "nodeName": "n1"}, gpu=1)
            put(api, "other", other, gpu=1)
            for name in ("before", "other", "past"):
                await until(lambda name=name: told(api, name))  # type: ignore[misc]
            put(api, "other", {**other, "nodeName": "n1"}, gpu=1)
            put(api, "last", other, gpu=1)
            await until(lambda: told(api, "last"))
            reason, text = told(api, "other")[0]
            assert reason == "BypassesAliquot"
            assert "waits for the scheduler 'default-scheduler', which does not ask Aliquot" in text
            assert "schedulerName: aliquot" in text
            assert "got node n1 without Aliquot" in told(api, "past")[0][1]
            assert len(told(api, "other")) == 1
            assert told(api, "ours") == told(api, "without") == []

    asyncio.run(run())


def test_a_pod_that_aliquot_has_bound_gets_no_such_event() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 2))
        async with api.serving(), replica(api) as one:
            await one.ready()
            pod = make_pod("a", gpu=1)
            api.put("pods", as_json(PODS, pod))
            await until(lambda: one.scheduler._watches.pods.get("a", "ns"))
            assert (await one.filter(pod, "n1"))["NodeNames"] == ["n1"]
            assert await one.bind(pod, "n1") == ""
            put(api, "past", {"nodeName": "n1"}, gpu=1)
            await until(lambda: told(api, "past"))
            assert told(api, "a") == []

    asyncio.run(run())
