"""The extender's HTTP API: answers to kube-scheduler's calls, health, and metrics.

kube-scheduler takes only HTTP 200 as an answer; after anything else it tries the pod again later.
So a replica that may not decide answers 503. It is ready nevertheless, to take over: `endpoint`
leads kube-scheduler to the replica that decides.

Of the pod in a call only the identity counts: `pods` finds the rest. kube-scheduler has one time
limit for all calls, which a bind may need; the other calls are answered within 5 s, or refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from aliquot.kubernetes.api.decode import decode_json
from aliquot.kubernetes.api.http_server import JSON, HttpResponse, pages, text
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
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from aliquot.kubernetes.api.http_server import Handler, HttpRequest
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.extender.bind import Binder
    from aliquot.kubernetes.extender.metrics import Metrics
    from aliquot.kubernetes.extender.planner import Answer, Planner
    from aliquot.kubernetes.extender.pods import PodFinder
    from aliquot.kubernetes.extender.waiting import WaitingPods

ANSWER_SECONDS = 5.0
NAMES_WANTED = "kube-scheduler sends whole nodes and not their names: set nodeCacheCapable: true"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods that kube-scheduler proposes to evict on a node, by UID.

    `violates_budgets`: their PodDisruptionBudgets do not allow it.
    """

    uids: frozenset[str]
    violates_budgets: bool = False


@dataclass(frozen=True, slots=True)
class CpuPreemption:
    """The nodes on which kube-scheduler may evict, and those where GPUs are missing too."""

    allowed: tuple[str, ...] = ()
    short_of_gpus: tuple[str, ...] = ()


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

    def may_evict(self, pod: Pod, proposed: Mapping[str, Victims]) -> CpuPreemption:
        """On which of these nodes kube-scheduler may evict the victims that it proposes."""


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

    def handler(self) -> Handler:
        """Answers the calls of kube-scheduler, and shows the pages."""
        asked = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/bind": self._bind,
            "/preempt": self._preempt,
        }
        others = self.pages()

        async def handle(request: HttpRequest) -> HttpResponse:
            answer = asked.get(request.path) if request.method == "POST" else None
            if answer is None:
                return await others(request)
            return await self._when_ready(answer, request.body)

        return handle

    def pages(self) -> Handler:
        """The pages for the kubelet's probes and for Prometheus."""
        return pages(
            {"/healthz": _healthz, "/readyz": self._readyz, "/metrics": self._show_metrics}
        )

    async def _filter(self, body: bytes) -> HttpResponse:
        with self._metrics.deciding("filter") as count:
            args = decode_json(body, ExtenderArgs)
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
                self._waiting.done(pod.metadata.uid)
            else:
                count("invalid request" if answer.invalid else "insufficient GPUs")
                self._waiting.refused(pod, self._rules.advised(pod, answer))
            return _json(
                FilterResult(list(answer.names), failed_and_unresolvable_nodes=dict(answer.refused))
            )

    async def _prioritize(self, body: bytes) -> HttpResponse:
        with self._metrics.deciding("prioritize") as count:
            args = decode_json(body, ExtenderArgs)
            try:
                pod = await self._find(args.pod)
            except UnknownPodError as error:
                count("unknown pod")
                return text(str(error), 404)
            scores = self._planner.scores(pod, args.names or [])
            count("scored")
            return _json([HostPriority(name, score) for name, score in scores])

    async def _bind(self, body: bytes) -> HttpResponse:
        with self._metrics.deciding("bind") as count:
            args = decode_json(body, BindingArgs)
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

    async def _preempt(self, body: bytes) -> HttpResponse:
        with self._metrics.deciding("preempt") as count:
            args = decode_json(body, PreemptionArgs)
            try:
                pod = await self._find(args.pod)
            except UnknownPodError as error:
                count("unknown pod")
                return text(str(error), 404)
            asked = {
                node: one
                for node, one in (args.node_name_to_meta_victims or {}).items()
                if one is not None
            }
            proposed = {node: _victims(one) for node, one in asked.items()}
            found = self._rules.may_evict(pod, proposed)
            count("allowed" if found.allowed else "refused")
            if found.short_of_gpus and not found.allowed:
                self._note_lack(pod, found.short_of_gpus)
            return _json(PreemptionResult({node: asked[node] for node in found.allowed}))

    def _note_lack(self, pod: Pod, names: Sequence[str]) -> None:
        """A pod that kube-scheduler offered no node lacks GPUs too: it waits for them."""
        answer = self._rules.answer(pod, names) or self._planner.filter(pod, names)
        if not (answer.names or answer.by_gang):
            self._waiting.refused(pod, self._rules.advised(pod, answer))

    async def _readyz(self) -> HttpResponse:
        why = self._readiness.not_ready()
        if why:
            return text(why, 503)
        return text("follows" if self._readiness.why_not() else "leads")

    async def _show_metrics(self) -> HttpResponse:
        return HttpResponse(self._metrics.exposition(), content_type=CONTENT_TYPE_LATEST)

    async def _when_ready(
        self, answer: Callable[[bytes], Awaitable[HttpResponse]], body: bytes
    ) -> HttpResponse:
        why = self._readiness.why_not()
        if why:
            return text(why, 503)
        try:
            return await answer(body)
        except TimeoutError:
            return text(f"no answer within {ANSWER_SECONDS:.0f} s", 503)
        except msgspec.DecodeError as error:
            return text(f"invalid request: {error}", 400)

    async def _find(self, named: NamedPod) -> Pod:
        """The pod that a call names. UnknownPodError if there is none.

        All else in an answer takes no time but the processor's, so the limit of time is here.
        """
        one = named.metadata
        pod = self._pods.seen(one.namespace, one.name, one.uid)
        if pod is not None:
            return pod
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self._pods.get(one.namespace, one.name, one.uid)


async def _healthz() -> HttpResponse:
    return text("alive")


def _json(message: object) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(message), content_type=JSON)


def _victims(one: MetaVictims) -> Victims:
    return Victims(frozenset(pod.uid for pod in one.pods or ()), one.num_pdb_violations > 0)
