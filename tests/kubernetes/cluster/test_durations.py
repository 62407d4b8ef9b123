"""Declared durations: how far a namespace is believed."""

from __future__ import annotations

import msgspec
import pytest

from aliquot.kubernetes.api.names import DURATION
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.times import stamp
from aliquot.kubernetes.cluster.workloads import Workloads
from kubernetes.builders import make_pod

ASSUMED = 3600.0
BEGIN = 10_000.0


def running(name: str, duration: str, node: str = "n1", **meta: str) -> Pod:
    pod = make_pod(name, gpu=1, node=node, annotations={DURATION: duration} if duration else {})
    status = msgspec.structs.replace(pod.status, start_time=stamp(BEGIN))
    named = msgspec.structs.replace(pod.metadata, **meta)
    return msgspec.structs.replace(pod, metadata=named, status=status)


def workloads(*pods: Pod) -> Workloads:
    found = Workloads(lambda _: "default", lambda _: True, ASSUMED)
    for pod in pods:
        found.change(pod.metadata.uid, pod, BEGIN)
    return found


def test_a_namespace_is_believed_until_a_pod_runs_twice_as_long() -> None:
    found = workloads(running("a", "10m"))
    assert found.waiting_seconds("ns", 60.0, BEGIN + 1190) == 60.0
    assert found.waiting_seconds("ns", 60.0, BEGIN + 1210) == ASSUMED
    assert found.waiting_seconds("ns", 2 * ASSUMED, BEGIN + 1210) == 2 * ASSUMED
    assert found.waiting_seconds("other", 60.0, BEGIN + 1210) == 60.0


def test_a_short_duration_may_be_overrun_by_a_minute() -> None:
    found = workloads(running("a", "1s"))
    assert found.waiting_seconds("ns", 1.0, BEGIN + 60) == 1.0
    assert found.waiting_seconds("ns", 1.0, BEGIN + 62) == ASSUMED


def test_a_namespace_is_believed_again_after_as_long_as_it_overran() -> None:
    pod = running("a", "10m")
    found = workloads(pod)
    end = BEGIN + 2000  # 1400 s late
    found.change(pod.metadata.uid, None, end)
    assert found.waiting_seconds("ns", 60.0, end + 1390) == ASSUMED
    assert found.waiting_seconds("ns", 60.0, end + 1410) == 60.0


def test_only_a_duration_that_was_declared_can_be_overrun() -> None:
    undeclared, waits = running("a", ""), running("b", "1m", node="")
    limited = running("c", "")
    spec = msgspec.structs.replace(limited.spec, active_deadline_seconds=60)
    found = workloads(undeclared, waits, msgspec.structs.replace(limited, spec=spec))
    assert found.waiting_seconds("ns", 60.0, BEGIN + 10 * ASSUMED) == 60.0


@pytest.mark.parametrize("later", ["5h", "", "nonsense"])
def test_a_running_pod_is_held_to_the_shortest_duration_that_it_declared(later: str) -> None:
    pod = running("a", "10m")
    found = workloads(pod)
    found.change(pod.metadata.uid, running("a", later), BEGIN + 500)
    found.change(pod.metadata.uid, running("a", later), BEGIN + 600)
    assert found.waiting_seconds("ns", 60.0, BEGIN + 1190) == 60.0
    assert found.waiting_seconds("ns", 60.0, BEGIN + 1210) == ASSUMED


def test_a_waiting_pod_may_declare_another_duration() -> None:
    waits = running("a", "1m", node="")
    found = workloads(waits)
    found.change(waits.metadata.uid, running("a", "1h"), BEGIN)
    assert found.waiting_seconds("ns", 60.0, BEGIN + 7000) == 60.0


def test_a_pod_that_is_being_deleted_overruns_no_more() -> None:
    """A node that does not answer keeps its pods for ever."""
    pod = running("a", "10m")
    found = workloads(pod)
    leaving = running("a", "10m", deletion_timestamp=stamp(BEGIN + 300))
    found.change(pod.metadata.uid, leaving, BEGIN + 300)
    assert found.waiting_seconds("ns", 60.0, BEGIN + 5000) == 60.0
