"""The driver's capabilities that a pod's containers ask for, from the pod to the grant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.node_pods import CAPABILITIES, NodePod
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint
from aliquot.kubernetes.node.pods import GpuPod
from kubernetes.builders import make_pod
from kubernetes.node.rig import Node, on_node


def pod_with(name: str, *variables: dict[str, Any], **asked: Any) -> NodePod:
    """A pod of one container with these variables."""
    fields = msgspec.to_builtins(make_pod(name, **asked))
    fields["spec"]["containers"][0]["env"] = list(variables)
    return msgspec.convert(fields, NodePod)


def said(value: str) -> dict[str, Any]:
    return {"name": CAPABILITIES, "value": value}


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ([], None),
        ([{"name": "OTHER", "value": "video"}], None),
        ([said("all")], None),
        ([{"name": CAPABILITIES}], {"compute", "utility"}),  # as the API server has an empty value
        ([said("video"), said("compute,utility")], {"compute", "utility"}),
        ([said("$(FROM_ANOTHER)")], None),
        ([{"name": CAPABILITIES, "valueFrom": {"configMapKeyRef": {"name": "c"}}}], None),
    ],
)
def test_only_what_a_pod_says_itself_counts(
    variables: list[dict[str, Any]], wanted: set[str] | None
) -> None:
    pod = GpuPod(pod_with("a", *variables, gpu=1))
    assert pod.capabilities("main") == wanted
    assert pod.capabilities("another") is None


def test_a_container_that_starts_has_its_capabilities_in_its_grant(short_tmp: Path) -> None:
    async def play(node: Node) -> None:
        asked = {"some": [said("compute,utility")], "every": []}
        for name, variables in asked.items():
            await node.run(pod_with(name, *variables, memory=4))
        grants = Checkpoint(node.home / "node.json").load().grants
        assert {one.owner.pod: one.capabilities for one in grants} == {
            "some": ("compute", "utility"),
            "every": None,
        }

    on_node(play, short_tmp)
