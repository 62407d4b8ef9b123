"""What the chart ships for autoscalers: rights only where they are wanted."""

from __future__ import annotations

import pytest

from aliquot.kubernetes.api.names import COUNTED, PLACEHOLDER
from kubernetes import chart
from kubernetes.shipped import container_of, find

NEEDS_HELM = "there is no Helm (make kubernetes)"


@pytest.fixture(autouse=True)
def helm() -> None:
    try:
        chart.find_helm()
    except chart.NoHelmError:
        pytest.skip(NEEDS_HELM)


def rendered(kind: str) -> chart.Objects:
    return chart.objects(chart.render(f"autoscaler.kind={kind}"))


def named(objects: chart.Objects, kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == kind}


def arguments(objects: chart.Objects) -> list[str]:
    deployment = find(objects, "Deployment", "aliquot-scheduler")
    found: list[str] = container_of(deployment)["args"]
    return found


def test_nothing_is_asked_for_and_no_right_is_given_by_default() -> None:
    every = rendered("")
    assert "aliquot-scale-up" not in named(every, "Role") | named(every, "ClusterRole")
    assert not [one for one in arguments(every) if "autoscaler" in one]


def test_karpenter_gets_placeholders_that_a_policy_holds_to_their_form() -> None:
    every = rendered("karpenter")
    assert "--autoscaler=karpenter" in arguments(every)
    (rule,) = find(every, "Role", "aliquot-scale-up")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["pods"], ["create", "delete"])
    policies = {
        one["metadata"]["name"]: one
        for one in every
        if one["kind"] == "ValidatingAdmissionPolicy" and "scale-up" in one["metadata"]["name"]
    }
    assert PLACEHOLDER in str(policies["aliquot-scale-up-only-placeholders"])
    assert COUNTED in str(policies["aliquot-scale-up-only-counts"])
    assert policies.keys() <= named(every, "ValidatingAdmissionPolicyBinding")


def test_the_cluster_autoscaler_gets_requests_and_no_right_on_nodes_is_given() -> None:
    every = rendered("cluster-autoscaler")
    assert "--autoscaler=cluster-autoscaler" in arguments(every)
    rules = find(every, "Role", "aliquot-scale-up")["rules"]
    assert [one["resources"] for one in rules] == [["podtemplates"], ["provisioningrequests"]]
    assert "aliquot-scale-up" not in named(every, "ClusterRole")
