"""The copy of the API server's objects converges, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api.objects import PODS, Pod
from aliquot.kubernetes.api.watch import Watch
from kubernetes.fake_api import FakeApi, Faults, until

NAMES = ("a", "b", "c", "d")
PATIENCE = 60.0  # a machine may have much else to do

STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("again"), st.sampled_from(NAMES)),  # deleted and made anew
    st.tuples(st.just("cut"), st.just("")),
    st.tuples(st.just("compact"), st.just("")),
    st.tuples(st.just("cut line"), st.just("")),
    st.tuples(st.just("garbage"), st.just("")),
    st.tuples(st.just("repeat"), st.integers(1, 4)),
    st.tuples(st.just("list fails"), st.integers(1, 2)),
    st.tuples(st.just("small pages"), st.integers(1, 3)),
    st.tuples(st.just("rest"), st.just("")),  # let the watch get on
    st.tuples(st.just("refresh"), st.just("")),
)


@dataclass(frozen=True)
class Served:
    runner: asyncio.Runner
    api: FakeApi


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One server for all examples."""
    with asyncio.Runner() as runner:
        api = runner.run(_make())
        serving = api.serving()
        runner.run(serving.__aenter__())
        yield Served(runner, api)
        runner.run(serving.__aexit__(None, None, None))


async def _make() -> FakeApi:
    return FakeApi()


class Heard:
    """What a callback was told, checked as it comes."""

    def __init__(self) -> None:
        self.objects: dict[str, Pod] = {}
        self.versions: list[tuple[str, str]] = []

    def __call__(self, old: Pod | None, new: Pod | None) -> None:
        one = new or old
        assert one is not None
        name = one.metadata.name
        assert self.objects.get(name) == old
        if new is None:
            del self.objects[name]
            return
        assert old is None or old.metadata.uid == new.metadata.uid
        assert old is None or old.metadata.resource_version != new.metadata.resource_version
        self.objects[name] = new


def pod(name: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "annotations": annotations}}


def do(api: FakeApi, what: str, which: Any, step: int) -> None:
    if what in {"delete", "again"}:
        api.delete("pods", which, "ns")
    if what in {"put", "again"}:
        api.put("pods", pod(which, step=str(step)))
    if what == "cut":
        api.cut()
    elif what == "compact":
        api.compact()
    elif what == "cut line":
        api.faults.cut_line = True
    elif what == "garbage":
        api.faults.garbage = True
    elif what == "repeat":
        api.faults.repeat = which
    elif what == "list fails":
        api.faults.list_fails = which
    elif what == "small pages":
        api.faults.page = which


def truth(api: FakeApi) -> dict[str, tuple[str, str]]:
    return {
        one["metadata"]["name"]: (one["metadata"]["uid"], one["metadata"]["resourceVersion"])
        for one in api.all("pods")
    }


def seen(objects: dict[str, Pod]) -> dict[str, tuple[str, str]]:
    return {
        name: (one.metadata.uid, one.metadata.resource_version) for name, one in objects.items()
    }


@pytest.mark.timeout(300)
@settings(max_examples=40)
@given(before=st.lists(st.sampled_from(NAMES)), steps=st.lists(STEPS, max_size=25))
def test_the_copy_converges_to_the_servers_state(
    served: Served, before: list[str], steps: list[tuple[str, Any]]
) -> None:
    async def play(api: FakeApi) -> None:
        api.reset()
        for name in before:
            api.put("pods", pod(name))
        async with api.client() as client:
            heard = Heard()
            watch = Watch(client, PODS, heard, namespace="ns")
            watch._backoff._first = 0.001
            watch._backoff._most = 0.01
            following = asyncio.create_task(watch.run())
            asking: list[asyncio.Task[None]] = []
            for number, (what, which) in enumerate(steps):
                if what == "rest":
                    await asyncio.sleep(0.002)
                if what == "refresh":
                    asking.append(asyncio.create_task(watch.refresh()))
                do(api, what, which, number)
            api.faults = Faults()
            api.put("pods", pod("last"))
            await until(lambda: following.done() or seen(heard.objects) == truth(api), PATIENCE)
            assert not following.done()
            assert {key[1]: one for key, one in watch.objects.items()} == heard.objects
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*asking)
            assert watch.synced
            following.cancel()
            await asyncio.wait([following])

    served.runner.run(play(served.api))


def test_only_selected_objects_are_copied() -> None:
    async def play() -> None:
        api = FakeApi()
        api.put("pods", pod("here") | {"spec": {"nodeName": "n1"}})
        api.put("pods", pod("there") | {"spec": {"nodeName": "n2"}})
        async with api.serving(), api.client() as client:
            watch = Watch(client, PODS, fields="spec.nodeName=n1")
            following = asyncio.create_task(watch.run())
            await watch.wait_synced()
            api.put("pods", pod("there") | {"spec": {"nodeName": "n2"}})
            api.put("pods", pod("also-here") | {"spec": {"nodeName": "n1"}})
            await until(lambda: watch.get("also-here", "ns"))
            assert {name for _, name in watch.objects} == {"here", "also-here"}
            following.cancel()

    asyncio.run(play())


def test_objects_that_are_not_kept_are_left_out() -> None:
    async def play() -> None:
        api = FakeApi()
        api.put("pods", pod("a", keep="yes"))
        api.put("pods", pod("b"))
        async with api.serving(), api.client() as client:
            heard = Heard()
            watch = Watch(client, PODS, heard, keep=lambda one: bool(one.metadata.annotations))
            following = asyncio.create_task(watch.run())
            await watch.wait_synced()
            assert heard.objects.keys() == {"a"}
            api.put("pods", pod("b", keep="yes"))
            await until(lambda: heard.objects.keys() == {"a", "b"})
            api.put("pods", pod("a"))
            await until(lambda: heard.objects.keys() == {"b"})
            following.cancel()
            await asyncio.wait([following])

    asyncio.run(play())


def test_a_refresh_copies_all_earlier_changes() -> None:
    async def play() -> None:
        api = FakeApi()
        async with api.serving(), api.client() as client:
            watch = Watch(client, PODS)
            following = asyncio.create_task(watch.run())
            await watch.wait_synced()
            for number in range(20):
                api.put("pods", pod(f"p{number}"))
                await watch.refresh()
                assert watch.get(f"p{number}", "ns") is not None
            following.cancel()
            await asyncio.wait([following])

    asyncio.run(play())


def test_an_exception_of_the_callback_ends_the_watch() -> None:
    class BrokenError(Exception):
        pass

    def broken(_old: Pod | None, _new: Pod | None) -> None:
        raise BrokenError

    async def play() -> None:
        api = FakeApi()
        api.put("pods", pod("a"))
        async with api.serving(), api.client() as client:
            following = asyncio.create_task(Watch(client, PODS, broken).run())
            await until(following.done)
            assert isinstance(following.exception(), BrokenError)

    asyncio.run(play())
