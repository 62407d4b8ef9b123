"""What pages of a cluster get live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from aliquot.console import deltas
from aliquot.console.cluster.entrance import TokenEntrance
from aliquot.console.cluster.rights import AccessReviews
from aliquot.console.cluster.stream import LiveStreams
from aliquot.console.cluster.watched import Watched
from aliquot.kubernetes.api.client import Client
from aliquot.kubernetes.api.gpunode import NodeGrant
from aliquot.kubernetes.api.server import Credentials, Server
from console.team_cluster import LIST, Team, TeamApi, as_plain, fill, gang, gpu_node
from kubernetes.fake_api import until

ALICE = "token-of-alice"


class Follower:
    """A page: its views, as events change them. It reads no further than `jobs` until `go_on`."""

    def __init__(self, events: AsyncIterator[bytes], go_on: asyncio.Event | None = None) -> None:
        self.views: dict[str, Any] = {}
        self.kinds: list[str] = []
        self.ended = False
        self._events = events
        self._go_on = go_on

    async def run(self) -> None:
        async for content in self._events:
            for event in content.decode().split("\n\n"):
                if event.startswith("event: "):
                    self._receive(*event.removeprefix("event: ").split("\ndata: "))
            if self._go_on is not None and "jobs" in self.views:
                await self._go_on.wait()
        self.ended = True

    def _receive(self, kind: str, data: str) -> None:
        self.kinds.append(kind)
        name, _, delta = kind.partition("-")
        content = json.loads(data)
        self.views[name] = deltas.apply(self.views[name], content) if delta else content

    def jobs(self) -> set[str]:
        return {one["name"] for one in self.views.get("jobs", {}).get("items", ())}


def with_pages(act: Callable[[TeamApi, Callable[..., Follower]], Awaitable[None]]) -> None:
    """Run with a console of a cluster; a function opens a page for a token."""

    async def run() -> None:
        api = TeamApi()
        fill(api)
        async with api.serving():
            server = Server(api.url, Credentials()).with_token("token-of-console")
            async with Client(server) as client, asyncio.TaskGroup() as tasks:
                watched = Watched(client, ("aliquot",))
                streams = LiveStreams(watched, AccessReviews(client), TokenEntrance(client))
                watching = tasks.create_task(watched.run())
                await until(lambda: watched.synced and watched.jobs.synced and watched.gangs.synced)

                def follow(token: str, go_on: asyncio.Event | None = None) -> Follower:
                    page = Follower(streams.follow(token), go_on)
                    tasks.create_task(page.run())
                    return page

                await act(api, follow)
                streams.end()
                watching.cancel()

    asyncio.run(run())


def test_pages_get_all_once_and_then_what_changed() -> None:
    async def act(api: TeamApi, follow: Callable[[str], Follower]) -> None:
        first, second = follow(ALICE), follow(ALICE)
        await until(lambda: "large" in first.jobs() and "large" in second.jobs())
        api.put("gangs", gang("team-a", "evening", phase="Waiting", reason="needs a node"))
        await until(lambda: "evening" in first.jobs() and "evening" in second.jobs())
        third = follow(ALICE)
        await until(lambda: "evening" in third.jobs())
        for page in (first, second, third):
            assert page.kinds[:2] == ["machine", "jobs"]
            assert not {"machine", "jobs"} & {*page.kinds[2:]}
            assert page.views["jobs"] == first.views["jobs"]
            assert page.views["machine"]["gpus"] == first.views["machine"]["gpus"]

    with_pages(act)


def test_a_page_that_reads_slowly_misses_no_change() -> None:
    async def act(api: TeamApi, follow: Callable[..., Follower]) -> None:
        go_on = asyncio.Event()
        quick, slow = follow(ALICE), follow(ALICE, go_on)
        await until(lambda: "large" in quick.jobs() and "large" in slow.jobs())
        api.put("gangs", gang("team-a", "evening", phase="Waiting", reason="needs a node"))
        await until(lambda: "evening" in quick.jobs())
        go_on.set()
        await until(lambda: "evening" in slow.jobs())
        assert slow.views["jobs"] == quick.views["jobs"]

    with_pages(act)


def test_a_change_in_another_namespace_reaches_no_page() -> None:
    async def act(api: TeamApi, follow: Callable[[str], Follower]) -> None:
        alice, bob = follow(ALICE), follow("token-of-bob")
        await until(lambda: alice.jobs() and bob.jobs())
        api.put("gangs", gang("team-b", "evening", phase="Waiting", reason="of team b"))
        await until(lambda: "evening" in bob.jobs())
        before = len(alice.kinds)
        await until(lambda: len(alice.kinds) > before)
        assert "of team b" not in json.dumps(alice.views)
        assert {one["namespace"] for one in alice.views["jobs"]["items"]} == {"team-a"}
        assert "team-a" not in json.dumps(bob.views)

    with_pages(act)


def test_each_grant_has_an_id_of_its_own() -> None:
    async def act(api: TeamApi, follow: Callable[..., Follower]) -> None:
        node = gpu_node()
        node["status"]["gpus"][2]["kind"] = "sliced"
        node["status"]["gpus"][2]["grants"] = [
            as_plain(NodeGrant("", team, "", "", 8 << 30, claim="same", claim_uid=f"uid-{team}"))
            for team in ("team-a", "team-b")
        ]
        api.put("gpunodes", node)
        page = follow(ALICE)
        await until(lambda: len(page.views.get("machine", {}).get("grants", ())) == 5)
        assert len({one["id"] for one in page.views["machine"]["grants"]}) == 5

    with_pages(act)


def test_a_page_loses_what_its_user_may_no_longer_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.console.cluster.rights.SECONDS", 0.0)
    monkeypatch.setattr("aliquot.console.cluster.entrance.SECONDS", 0.0)

    async def act(api: TeamApi, follow: Callable[[str], Follower]) -> None:
        page = follow(ALICE)
        await until(lambda: page.views.get("machine", {}).get("gpus") and page.jobs())
        api.users[ALICE] = Team("alice", {"team-a": {"pods": LIST}})
        await until(lambda: not page.views["machine"]["gpus"])
        assert page.jobs() == {"notebook"}
        del api.users[ALICE]
        await until(lambda: page.ended)

    with_pages(act)
