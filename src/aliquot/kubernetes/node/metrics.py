"""The agent's metrics, liveness and readiness, as pages over HTTP.

/metrics   the arbiter's metrics, and the agent's own
/livez     200: the agent runs
/readyz    200: pods can be served; else 503, with the reasons
/healthz   200: all checks pass; else 503; with each check and why it fails

A restart of the agent mends nothing that /healthz says, so it is not for a liveness probe: if the
API server is away, all agents would be restarted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from aliquot.kubernetes.api.http_server import pages, text
from aliquot.model.errors import AliquotError, ArbiterError
from aliquot.slices.prometheus import exposition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from aliquot.kubernetes.api.http_server import Handler, HttpResponse
    from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds
    from aliquot.kubernetes.node.grants.allocations import NodeAllocations
    from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COUNTERS: Mapping[str, str] = {
    "aliquot_node_registrations": "How often a kubelet registered the device plugins or driver.",
    "aliquot_node_arbiter_starts": "How often the arbiter was started.",
    "aliquot_node_corrections": "Grants whose container was guessed wrong and then corrected.",
    "aliquot_node_events_dropped": "Events that could not be written.",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Why a check fails, or empty; `for_pods`: no pod can be served while it fails."""

    problem: str
    for_pods: bool = True


Checks = Callable[[], Awaitable[Mapping[str, CheckResult]]]


class CallMetrics:
    """How long the kubelet's calls take."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.seconds = prometheus.Histogram(
            "aliquot_node_call_seconds",
            "How long the kubelet's calls took.",
            ("call", "result"),
            buckets=BUCKETS,
            registry=self.registry,
        )

    async def timed(self, call: str, answer: Awaitable[T]) -> T:
        """Await an answer and record how long it took, and whether it was refused or failed."""
        began, result = time.perf_counter(), "failed"
        try:
            got = await answer
            result = "done"
        except AliquotError:
            result = "refused"
            raise
        finally:
            took = time.perf_counter() - began
            self.seconds.labels(call, result).observe(took)
        return got


@dataclass(frozen=True, eq=False, slots=True)
class AllocationsCollector:
    """The allocations and counters as metrics. `counters` has the value of each of COUNTERS.

    `ids` are the units that the kubelet counts; None: it counts none.
    """

    allocations: NodeAllocations
    ids: DeviceIds | None
    counters: Mapping[str, Callable[[], float]]

    def collect(self) -> Iterator[Metric]:
        """The metrics, when prometheus-client asks for them."""
        allocatable = GaugeMetricFamily(
            "aliquot_node_units",
            "Units that the kubelet can give or has given.",
            labels=["resource"],
        )
        free = GaugeMetricFamily(
            "aliquot_node_units_free", "Units that the kubelet can still give.", labels=["resource"]
        )
        if (ids := self.ids) is not None:
            for resource, count in ids.counts().items():
                allocatable.add_metric([resource], count)
                free.add_metric([resource], ids.free(resource))
        yield from (allocatable, free, self._health(), self._kinds(), self._containers())
        for name, value in self.counters.items():
            counter = CounterMetricFamily(name, COUNTERS[name])
            counter.add_metric([], value())
            yield counter

    def _health(self) -> Metric:
        family = GaugeMetricFamily(
            "aliquot_node_gpu_healthy",
            "1: the GPU is healthy and takes new containers.",
            labels=["gpu", "index"],
        )
        for gpu in self.allocations.gpus.values():
            family.add_metric([gpu.uuid, str(gpu.index)], int(gpu.healthy))
        return family

    def _kinds(self) -> Metric:
        family = GaugeMetricFamily(
            "aliquot_node_gpu_kind", "1 for what each GPU is used as.", labels=["gpu", "kind"]
        )
        allocations = self.allocations
        for gpu in allocations.gpus.values():
            family.add_metric([gpu.uuid, allocations.kind(gpu.uuid) or "free"], 1)
        return family

    def _containers(self) -> Metric:
        family = GaugeMetricFamily(
            "aliquot_container_info",
            "1 for every container with a grant.",
            labels=["grant", "namespace", "pod", "container", "kind"],
        )
        for grant in self.allocations.grants.values():
            owner = grant.owner
            names = [owner.namespace, owner.pod, owner.container]
            family.add_metric([grant.name, *names, grant.kind], 1)
        return family


def node_pages(metrics: CallMetrics, arbiter: ArbiterGrants, checks: Checks) -> Handler:
    """The pages; `checks` gives the result of each check by its name."""

    async def metrics_page() -> HttpResponse:
        try:
            status = await arbiter.status()
        except ArbiterError:
            status = None
        own = prometheus.generate_latest(metrics.registry).decode()
        return text(exposition(status) + own)

    async def livez() -> HttpResponse:
        return text("ok\n")

    async def healthz() -> HttpResponse:
        results = await checks()
        lines = [f"{name}: {one.problem or 'ok'}\n" for name, one in results.items()]
        failed = any(one.problem for one in results.values())
        return text("".join(lines), 503 if failed else 200)

    async def readyz() -> HttpResponse:
        results = await checks()
        failed = {name: one for name, one in results.items() if one.problem and one.for_pods}
        lines = [f"{name}: {one.problem}\n" for name, one in failed.items()]
        return text("".join(lines) or "ok\n", 503 if failed else 200)

    return pages(
        {"/metrics": metrics_page, "/livez": livez, "/healthz": healthz, "/readyz": readyz}
    )
