"""How long the API server's answers about users count, and what happens without one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aliquot.console.cluster.entrance import TokenEntrance
from aliquot.console.cluster.rights import AccessReviews
from aliquot.console.problems import ProblemError
from aliquot.kubernetes.api.client import ApiError, Client
from aliquot.kubernetes.api.objects import GPU_NODES, PODS
from aliquot.kubernetes.api.reviews import ReviewedUser
from aliquot.kubernetes.api.server import Credentials, Server
from console.team_cluster import LIST, Team, TeamApi

Act = Callable[[TeamApi, TokenEntrance, AccessReviews], Awaitable[None]]
USER = ReviewedUser("alice")
ENTRANCE, RIGHTS = "aliquot.console.cluster.entrance", "aliquot.console.cluster.rights"


def with_reviews(act: Act) -> None:
    """Run with the console's account against an API server that knows alice and bob."""

    async def run() -> None:
        api = TeamApi()
        async with api.serving():
            server = Server(api.url, Credentials()).with_token("token-of-console")
            async with Client(server) as client:
                await act(api, TokenEntrance(client), AccessReviews(client))

    asyncio.run(run())


def reviews(api: TeamApi, plural: str) -> int:
    return sum(path.endswith(f"/{plural}") for _, path in api.requests)


async def status_of(asked: Awaitable[object]) -> int:
    with pytest.raises(ProblemError) as refused:
        await asked
    return int(refused.value.status)


def test_a_token_is_reviewed_once_a_minute() -> None:
    async def act(api: TeamApi, entrance: TokenEntrance, _: AccessReviews) -> None:
        for _again in range(3):
            assert (await entrance.caller_of("token-of-alice")).user.username == "alice"
            assert await status_of(entrance.caller_of("wrong")) == 401
        assert reviews(api, "tokenreviews") == 2

    with_reviews(act)


def test_a_token_that_was_taken_back_is_refused_at_the_next_review(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{ENTRANCE}.SECONDS", 0.0)

    async def act(api: TeamApi, entrance: TokenEntrance, _: AccessReviews) -> None:
        await entrance.caller_of("token-of-alice")
        del api.users["token-of-alice"]
        assert await status_of(entrance.caller_of("token-of-alice")) == 401

    with_reviews(act)


def test_nobody_is_let_in_while_the_api_server_does_not_answer() -> None:
    async def act(api: TeamApi, entrance: TokenEntrance, rights: AccessReviews) -> None:
        del api.users["token-of-console"]
        assert await status_of(entrance.caller_of("token-of-alice")) == 503
        with pytest.raises(ApiError):
            await rights.may_list(USER, PODS, "team-a")

    with_reviews(act)


def test_a_right_that_was_taken_back_is_gone_at_the_next_review(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{RIGHTS}.SECONDS", 0.0)

    async def act(api: TeamApi, _: TokenEntrance, rights: AccessReviews) -> None:
        assert await rights.may_list(USER, GPU_NODES)
        api.users["token-of-alice"] = Team("alice", {"team-a": {"pods": LIST}})
        assert not await rights.may_list(USER, GPU_NODES)

    with_reviews(act)


def test_only_namespaces_that_have_something_are_reviewed() -> None:
    async def act(api: TeamApi, _: TokenEntrance, rights: AccessReviews) -> None:
        seen = await rights.namespaces(USER, PODS, ["team-a", "team-b"])
        assert "team-a" in seen
        assert "team-b" not in seen
        assert "team-c" not in seen
        assert reviews(api, "subjectaccessreviews") == 3, "all namespaces at once, then each"

    with_reviews(act)
