"""Evictions: refusals by budgets, and pods that are already gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.evict import Refusal, evict
from aliquot.kubernetes.api.objects import Meta, Pod
from kubernetes.fake_api import FakeApi


def try_it(api: FakeApi, *, uid: str = "", **how: Any) -> Refusal | None:
    pod = Pod(Meta(name="p", namespace="ns", uid=uid))

    async def play() -> Refusal | None:
        async with api.serving(), api.client() as client:
            return await evict(client, pod, **how)

    return asyncio.run(play())


def api_with_pod() -> FakeApi:
    api = FakeApi()
    api.put("pods", {"metadata": {"name": "p", "namespace": "ns", "uid": "u1"}})
    return api


def test_a_pod_is_evicted_and_not_deleted() -> None:
    api = api_with_pod()
    assert try_it(api, uid="u1", grace_seconds=5) is None
    assert not api.all("pods")
    assert api.requests == [("POST", "/api/v1/namespaces/ns/pods/p/eviction")]


def test_a_pod_that_is_gone_counts_as_evicted() -> None:
    assert try_it(FakeApi(), uid="u1") is None


def test_another_pod_of_the_same_name_is_left_alone() -> None:
    api = api_with_pod()
    assert try_it(api, uid="u0") is None
    assert api.all("pods")


def test_a_budget_that_refuses_is_named() -> None:
    api = api_with_pod()
    api.faults.budgets["p"] = "at-least-one"
    refusal = try_it(api, uid="u1")
    assert refusal is not None
    assert refusal.budget == "at-least-one"
    assert str(refusal) == (
        "ns/p may not be evicted now: The disruption budget at-least-one needs 1 healthy pods and"
        " has 1 currently"
    )
    assert api.all("pods")


@pytest.mark.parametrize("status", [429, 500, 403, 409])
def test_a_busy_or_refusing_server_is_not_a_budget(status: int) -> None:
    api = api_with_pod()
    api.faults.refuse = lambda method, _: status if method == "POST" else None
    with pytest.raises(ApiError) as error:
        try_it(api, uid="u1")
    assert error.value.status == status
    assert api.all("pods")
