"""Metrics, liveness and readiness over HTTP.

/metrics   what the arbiter knows, and what the agent does
/healthz   200: the agent is alive
/readyz    200: pods can be served; else 503, with what is missing
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import prometheus_client as prometheus
import uvicorn
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from aliquot.model.errors import ArbiterError
from aliquot.slices.prometheus import exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.core import Metric
    from starlette.requests import Request

    from aliquot.kubernetes.node.books import Books
    from aliquot.kubernetes.node.grants import Grants

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meters:
    """What the agent counts while it works."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.call_seconds = prometheus.Histogram(
            "aliquot_node_call_seconds",
            "How long the kubelet's calls took.",
            ("call", "result"),
            buckets=SECONDS,
            registry=self.registry,
        )


@dataclass(frozen=True, eq=False, slots=True)
class BooksCollector:
    """What the books say, as metrics, when they are asked for."""

    books: Books
    counters: Mapping[str, tuple[str, Callable[[], float]]]

    def collect(self) -> Iterator[Metric]:
        """As prometheus-client asks."""
        offered = GaugeMetricFamily(
            "aliquot_node_units",
            "Units that the kubelet can give or has given.",
            labels=["resource"],
        )
        free = GaugeMetricFamily(
            "aliquot_node_units_free", "Units that the kubelet can still give.", labels=["resource"]
        )
        for resource, count in self.books.counts().items():
            offered.add_metric([resource], count)
            free.add_metric([resource], self.books.free(resource))
        yield from (offered, free, self._health(), self._kinds(), self._containers())
        for name, (text, value) in self.counters.items():
            counter = CounterMetricFamily(name, text)
            counter.add_metric([], value())
            yield counter

    def _health(self) -> Metric:
        family = GaugeMetricFamily(
            "aliquot_node_gpu_healthy", "1: new containers may come.", labels=["gpu", "index"]
        )
        for card in self.books.cards.values():
            family.add_metric([card.uuid, str(card.index)], int(card.healthy))
        return family

    def _kinds(self) -> Metric:
        family = GaugeMetricFamily(
            "aliquot_node_gpu_kind", "1 for what each GPU is used as.", labels=["gpu", "kind"]
        )
        for card in self.books.cards.values():
            family.add_metric([card.uuid, self.books.kind(card.uuid) or "free"], 1)
        return family

    def _containers(self) -> Metric:
        family = GaugeMetricFamily(
            "aliquot_container_info",
            "1 for every container with a grant.",
            labels=["grant", "namespace", "pod", "container", "kind"],
        )
        for held in self.books.held.values():
            owner = held.owner
            names = [owner.namespace, owner.pod, owner.container]
            family.add_metric([held.name, *names, held.kind], 1)
        return family


def make_app(meters: Meters, grants: Grants, missing: Callable[[], list[str]]) -> Starlette:
    """The three pages; `missing` names what keeps the agent from serving pods."""

    async def metrics(_: Request) -> PlainTextResponse:
        try:
            seen = await grants.status()
        except ArbiterError:
            seen = None
        own = prometheus.generate_latest(meters.registry).decode()
        return PlainTextResponse(exposition(seen) + own)

    async def healthz(_: Request) -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> PlainTextResponse:
        lacks = missing()
        text = "".join(f"{one}\n" for one in lacks) or "ok\n"
        return PlainTextResponse(text, 503 if lacks else 200)

    pages = {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}
    return Starlette(routes=[Route(path, answer) for path, answer in pages.items()])


class _Server(uvicorn.Server):
    """Signals are the agent's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: Starlette, host: str, port: int) -> None:
    """Until cancelled."""
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", lifespan="off", access_log=False
    )
    await _Server(config).serve()
