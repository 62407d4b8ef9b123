"""Disruption budgets: which pods count, and for how many evictions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from aliquot.kubernetes.api.budget import PodDisruptionBudget
from aliquot.kubernetes.api.names import JOB
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.cluster.budgets import Budgets
from aliquot.kubernetes.cluster.workloads import Workloads
from aliquot.placement.queues.question import DisruptionBudget
from kubernetes.builders import make_pod

WEB = {"app": "web"}
ALL: dict[str, Any] = {}


def with_budgets(**selectors: dict[str, Any] | None) -> Budgets:
    """Budgets of one eviction each, by name."""
    found = Budgets()
    for name, selector in selectors.items():
        spec = {} if selector is None else {"selector": selector}
        body = {"spec": spec, "status": {"disruptionsAllowed": 1}}
        found.set("ns", name, msgspec.convert(body, PodDisruptionBudget))
    return found


def runs(name: str, labels: dict[str, str], phase: str = "Running", **meta: Any) -> Pod:
    pod = make_pod(name, gpu=1, node="n1", phase=phase)
    changed = msgspec.structs.replace(pod.metadata, labels=labels, **meta)
    return msgspec.structs.replace(pod, metadata=changed)


def counted(budgets: Budgets, *pods: Pod, victims: Collection[str] = ()) -> list[DisruptionBudget]:
    workloads = Workloads(lambda _: "default", lambda _: True, 3600.0)
    for pod in pods:
        workloads.change(pod.metadata.uid, pod, 0.0)
    return budgets.of_workloads(workloads, [one.metadata.uid for one in pods], victims)


def test_a_budget_counts_the_pods_that_it_selects_in_its_namespace() -> None:
    budgets = with_budgets(web={"matchLabels": WEB}, nobody=None)
    elsewhere = runs("c", WEB, namespace="other")
    found = counted(budgets, runs("a", WEB), runs("b", {"app": "db"}), elsewhere)
    assert found == [DisruptionBudget(1, {"pod ns/a": 1})]
    budgets.set("ns", "web", None)
    assert counted(budgets, runs("a", WEB)) == []


def test_expressions_select_too() -> None:
    expression = {"key": "app", "operator": "NotIn", "values": ["db"]}
    budgets = with_budgets(web={"matchExpressions": [expression]})
    pods = runs("a", WEB), runs("b", {"app": "db"}), runs("c", {})
    assert counted(budgets, *pods) == [DisruptionBudget(1, {"pod ns/a": 1, "pod ns/c": 1})]


def test_pods_that_no_budget_protects_do_not_count() -> None:
    ending = runs("ending", WEB, deletion_timestamp="2026-11-15T12:00:00Z")
    starting, worker = runs("starting", WEB, phase="Pending"), runs("worker", {**WEB, JOB: "j"})
    assert counted(with_budgets(all=ALL), ending, starting, worker) == []


def test_pods_whose_eviction_is_decided_have_used_the_budget() -> None:
    found = counted(with_budgets(all=ALL), runs("a", WEB), runs("b", WEB), victims={"uid-a"})
    assert found == [DisruptionBudget(0, {"pod ns/b": 1})]


def test_a_pod_with_several_budgets_cannot_be_evicted() -> None:
    budgets = with_budgets(all=ALL, web={"matchLabels": WEB})
    assert counted(budgets, runs("a", WEB)) == [DisruptionBudget(0, {"pod ns/a": 1})]
