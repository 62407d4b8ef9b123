"""Which nodes a pod may go to, as kube-scheduler would say it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.objects import Node
from aliquot.kubernetes.cluster.constraints import BLOCKS, RACKS, NodeConstraints, label_of
from kubernetes.builders import pod_of

NODE = msgspec.convert(
    {"metadata": {"name": "n1", "labels": {"zone": "a", "size": "8", "disk": "ssd"}}}, Node
)
GPU = {"key": "gpu", "effect": "NoSchedule"}


def allowed(node: Node = NODE, **spec: Any) -> bool:
    return NodeConstraints.of(pod_of({"spec": spec})).allow("n1", node)


def tainted(*taints: dict[str, str], **more: Any) -> Node:
    return msgspec.convert({"spec": {"taints": list(taints), **more}}, Node)


@pytest.mark.parametrize(
    ("key", "operator", "values", "so"),
    [
        ("zone", "In", ["a", "b"], True),
        ("zone", "In", ["b"], False),
        ("zone", "NotIn", ["b"], True),
        ("none", "NotIn", ["b"], True),
        ("zone", "Exists", [], True),
        ("none", "Exists", [], False),
        ("none", "DoesNotExist", [], True),
        ("size", "Gt", ["7"], True),
        ("size", "Lt", ["7"], False),
        ("zone", "Gt", ["7"], False),
    ],
)
def test_required_affinity(key: str, operator: str, values: list[str], so: object) -> None:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
    required = {"nodeSelectorTerms": [term]}
    near = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert allowed(affinity=near) is so


def test_one_affinity_term_is_enough_and_an_empty_one_matches_nothing() -> None:
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    cases: list[tuple[list[dict[str, Any]], bool]] = [([{}], False), ([{}, fields], True)]
    for terms, so in cases:
        required = {"nodeSelectorTerms": terms}
        near = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        assert allowed(affinity=near) is so


def test_selectors_taints_and_cordons() -> None:
    assert allowed(nodeSelector={"zone": "a", "disk": "ssd"})
    assert not allowed(nodeSelector={"zone": "b"})
    assert not allowed(tainted(GPU))
    assert allowed(tainted({**GPU, "effect": "PreferNoSchedule"}))
    assert allowed(tainted(GPU), tolerations=[{"operator": "Exists"}])
    assert allowed(tainted({**GPU, "value": "x"}), tolerations=[{"key": "gpu", "value": "x"}])
    assert not allowed(tainted({**GPU, "value": "x"}), tolerations=[{"key": "gpu", "value": "y"}])
    assert not allowed(tainted(unschedulable=True))
    assert allowed(tainted(unschedulable=True), tolerations=[{"operator": "Exists"}])


def test_a_rejected_node_is_barred() -> None:
    assert not NodeConstraints.of(pod_of({}), ["n1"]).allow("n1", NODE)


def test_the_first_known_label_names_the_rack() -> None:
    labels = {"topology.kubernetes.io/rack": "r1", "cloud.provider.com/topology-rack": "r2"}
    node = msgspec.convert({"metadata": {"labels": labels}}, Node)
    assert label_of(node, RACKS) == "r1"
    assert label_of(node, BLOCKS) == ""
    assert label_of(None, RACKS) == ""
