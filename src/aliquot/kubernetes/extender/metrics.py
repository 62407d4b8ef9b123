"""The metrics of the scheduler. Gauges are computed when Prometheus reads them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from aliquot.placement.choose.forecast import ANYTHING, outlook
from aliquot.placement.choose.strategies import Fragmentation
from aliquot.placement.core.demand import WHOLE_MILLI, Kind
from aliquot.placement.core.fit import all_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from aliquot.kubernetes.cluster.cluster import Cluster

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0)


Gauges = dict[str, tuple[str, "Callable[[], float]"]]  # by name: its help, and its value


class Metrics:
    """All metrics of one scheduler; `gauges` are added to those of the cluster."""

    def __init__(self, cluster: Cluster, gauges: Gauges) -> None:
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            "aliquot_scheduler_decisions",
            "Answers to kube-scheduler, by verb and result.",
            ["verb", "result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "aliquot_scheduler_decision_seconds",
            "Seconds from a call of kube-scheduler to its answer, by verb.",
            ["verb"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.registry.register(_ClusterCollector(cluster, gauges))

    @contextmanager
    def deciding(self, verb: str) -> Iterator[Callable[[str], None]]:
        """Measure a decision; call the returned function with its result."""
        start = time.perf_counter()
        try:
            yield lambda result: self._decisions.labels(verb, result).inc()
        finally:
            self._seconds.labels(verb).observe(time.perf_counter() - start)

    def exposition(self) -> bytes:
        """In the text format of Prometheus."""
        return generate_latest(self.registry)


class _ClusterCollector:
    """Gauges about the cluster as it is when they are read."""

    def __init__(self, cluster: Cluster, gauges: Gauges) -> None:
        self._cluster = cluster
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        allocations = self._cluster.chooser.allocations
        hardware, present = allocations.hardware, allocations.hardware.present
        gpus = int(present.sum())
        milli = WHOLE_MILLI * gpus - int(allocations.milli_free[present].sum())
        total = int((present * hardware.gpu_bytes[:, None]).sum())
        free = int(allocations.bytes_free[present].sum())
        lost = Fragmentation(outlook(ANYTHING, hardware)).lost(all_rows(allocations))
        kinds = GaugeMetricFamily(
            "aliquot_scheduler_gpus",
            "Healthy GPUs of usable nodes, by kind of use.",
            labels=["kind"],
        )
        for kind in Kind:
            kinds.add_metric([kind.name.lower()], int((allocations.kind[present] == kind).sum()))
        yield kinds
        yield _gauge("nodes", "Nodes that can get pods with GPUs.", self._cluster.usable_nodes)
        yield _gauge(
            "allocated_compute_ratio",
            "Ratio of the compute of healthy GPUs that is allocated or reserved.",
            milli / (WHOLE_MILLI * gpus) if gpus else 0.0,
        )
        yield _gauge(
            "allocated_memory_ratio",
            "Ratio of the memory of healthy GPUs that is allocated or reserved.",
            (total - free) / total if total else 0.0,
        )
        yield _gauge(
            "fragmentation_ratio",
            "Ratio of free GPU capacity that no likely request can use.",
            lost,
        )
        for name, (text, value) in self._gauges.items():
            yield _gauge(name, text, value())


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aliquot_scheduler_{name}", text, value=value)
