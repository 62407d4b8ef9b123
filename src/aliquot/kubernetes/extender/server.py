"""The extender's HTTP API: answers to kube-scheduler's calls, health, and metrics.

kube-scheduler takes only HTTP 200 as an answer; after anything else it tries the pod again later.
So a replica that may not decide answers 503. It is ready nevertheless, to take over: `endpoint`
leads kube-scheduler to the replica that decides.

Of the pod in a call only the identity counts: `pods` finds the rest. kube-scheduler has one time
limit for all calls, which a bind may need; the other calls are answered within 5 s, or refused.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.extender.bind import NotBoundError
from aliquot.kubernetes.extender.messages import (
    BindingArgs,
    BindingResult,
    ExtenderArgs,
    FilterResult,
    HostPriority,
    MetaVictims,
    NamedPod,
    PreemptionArgs,
    PreemptionResult,
)
from aliquot.kubernetes.extender.pods import UnknownPodError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.extender.bind import Binder
    from aliquot.kubernetes.extender.metrics import Metrics
    from aliquot.kubernetes.extender.planner import Answer, Planner
    from aliquot.kubernetes.extender.pods import PodFinder
    from aliquot.kubernetes.extender.waiting import WaitingPods

ANSWER_SECONDS = 5.0
NAMES_WANTED = "kube-scheduler sends whole nodes and not their names: set nodeCacheCapable: true"

_log = structlog.get_logger(__name__)


class Readiness(Protocol):
    """Whether this replica may decide, and whether it could take over."""

    def why_not(self) -> str:
        """Why it may not decide; empty if it may."""

    def not_ready(self) -> str:
        """Why it could not take over; empty if it could."""


class ExtenderRules(Protocol):
    """What gangs and queues say about a pod, apart from what fits."""

    def answer(self, pod: Pod, names: Sequence[str]) -> Answer | None:
        """Where a pod may go, or why nowhere; None if it may go anywhere."""

    def advised(self, pod: Pod, answer: Answer) -> Answer:
        """The refusal of a single pod, with what people can do."""

    def may_end_others(self, pod: Pod, victims: Collection[str]) -> bool:
        """Whether these pods, by UID, may be evicted for it."""


class Extender:
    """Answers the calls of kube-scheduler."""

    def __init__(  # noqa: PLR0913, PLR0917 - what the answers depend on
        self,
        pods: PodFinder,
        planner: Planner,
        rules: ExtenderRules,
        binder: Binder,
        waiting: WaitingPods,
        metrics: Metrics,
        readiness: Readiness,
    ) -> None:
        self._pods = pods
        self._planner = planner
        self._rules = rules
        self._binder = binder
        self._waiting = waiting
        self._metrics = metrics
        self._readiness = readiness

    def app(self) -> ASGIApp:
        """The application. Calls of kube-scheduler bypass Starlette's routes, for speed."""
        asked = {
            ("POST", "/filter"): self._filter,
            ("POST", "/prioritize"): self._prioritize,
            ("POST", "/bind"): self._bind,
            ("POST", "/preempt"): self._preempt,
        }
        others = self.pages()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            answer = asked.get((scope.get("method", ""), scope.get("path", "")))
            if answer is None:
                await others(scope, receive, send)
                return
            response = await self._when_ready(answer, Request(scope, receive))
            await response(scope, receive, send)

        return app

    def pages(self) -> Starlette:
        """The pages for the kubelet's probes and for Prometheus."""
        return Starlette(
            routes=[
                Route("/healthz", _healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._show_metrics),
            ]
        )

    async def _filter(self, request: Request) -> Response:
        with self._metrics.deciding("filter") as count:
            args = msgspec.json.decode(await request.body(), type=ExtenderArgs)
            names = args.names
            if names is None:
                count("error")
                return _json(FilterResult([], error=NAMES_WANTED))
            try:
                pod = await self._find(args.pod)
            except UnknownPodError as error:
                count("unknown pod")
                return _json(FilterResult([], error=str(error)))
            answer = self._planner.being_bound(pod, names)
            if answer is None:
                answer = self._rules.answer(pod, names)
            if answer is None:
                answer = self._planner.filter(pod, names)
            if answer.names:
                count("fits")
                self._waiting.done(pod.metadata.uid)
                asyncio.get_running_loop().call_soon(self._planner.prepare)  # after the answer
            elif answer.by_gang:
                count("gang waits")
            else:
                count("invalid request" if answer.invalid else "insufficient GPUs")
                self._waiting.refused(pod, self._rules.advised(pod, answer))
            return _json(
                FilterResult(list(answer.names), failed_and_unresolvable_nodes=dict(answer.refused))
            )

    async def _prioritize(self, request: Request) -> Response:
        with self._metrics.deciding("prioritize") as count:
            args = msgspec.json.decode(await request.body(), type=ExtenderArgs)
            try:
                pod = await self._find(args.pod)
            except UnknownPodError as error:
                count("unknown pod")
                return Response(str(error), 404)
            scores = self._planner.scores(pod, args.names or [])
            count("scored")
            return _json([HostPriority(name, score) for name, score in scores])

    async def _bind(self, request: Request) -> Response:
        with self._metrics.deciding("bind") as count:
            args = msgspec.json.decode(await request.body(), type=BindingArgs)
            try:
                await self._binder.bind(args.pod_namespace, args.pod_name, args.pod_uid, args.node)
            except NotBoundError as error:
                count("failed")
                _log.info(
                    "a pod was not bound",
                    pod=f"{args.pod_namespace}/{args.pod_name}",
                    why=str(error),
                )
                return _json(BindingResult(str(error)))
            count("bound")
            self._waiting.done(args.pod_uid)
            return _json(BindingResult())

    async def _preempt(self, request: Request) -> Response:
        with self._metrics.deciding("preempt") as count:
            args = msgspec.json.decode(await request.body(), type=PreemptionArgs)
            try:
                pod = await self._find(args.pod)
            except UnknownPodError as error:
                count("unknown pod")
                return Response(str(error), 404)
            asked = args.node_name_to_meta_victims or {}
            every = {node: _uids(one) for node, one in asked.items()}
            victims = {
                node: uids for node, uids in every.items() if self._rules.may_end_others(pod, uids)
            }
            try:
                possible = self._planner.nodes_after_eviction(pod, victims)
            except InvalidRequestError:
                possible = []
            count("allowed" if possible else "refused")
            found = {node: asked[node] for node in possible}
            return _json(
                PreemptionResult({node: one for node, one in found.items() if one is not None})
            )

    async def _readyz(self, _: Request) -> Response:
        why = self._readiness.not_ready()
        if why:
            return Response(why, 503)
        return Response("follows" if self._readiness.why_not() else "leads")

    async def _show_metrics(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def _when_ready(
        self, answer: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        why = self._readiness.why_not()
        if why:
            return Response(why, 503)
        limit = None if answer == self._bind else ANSWER_SECONDS
        try:
            async with asyncio.timeout(limit):
                return await answer(request)
        except TimeoutError:
            return Response(f"no answer within {ANSWER_SECONDS:.0f} s", 503)
        except msgspec.DecodeError as error:
            return Response(f"invalid request: {error}", 400)

    async def _find(self, named: NamedPod) -> Pod:
        """The pod that a call names. UnknownPodError if there is none."""
        one = named.metadata
        return await self._pods.get(one.namespace, one.name, one.uid)


async def _healthz(_: Request) -> Response:
    return Response("alive")


def _json(message: object) -> Response:
    return Response(msgspec.json.encode(message), media_type="application/json")


def _uids(victims: MetaVictims | None) -> list[str]:
    return [one.uid for one in (victims.pods if victims else None) or ()]
