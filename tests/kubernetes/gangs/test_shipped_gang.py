"""What is shipped for gangs fits the code: the custom resource, the example, the page."""

from __future__ import annotations

from aliquot.kubernetes.api.gang import GANGS, GangSpec, GangStatus, Phase
from aliquot.kubernetes.cluster.constraints import BLOCKS, RACKS
from aliquot.kubernetes.cluster.membership import (
    BY_LABEL,
    KUBEFLOW,
    KUBEFLOW_JOBS,
    LWS_GROUP,
    LWS_SET,
    is_gated,
    membership_of,
)
from kubernetes import chart
from kubernetes.builders import pod_of
from kubernetes.shipped import find, pod_in, shape_of_schema, shape_of_type

PAGE = (chart.ROOT / "docs" / "gangs.md").read_text("utf-8")


def test_the_custom_resource_has_the_fields_of_the_object() -> None:
    text = (chart.CHART / "files" / "gang.yaml").read_text("utf-8")
    assert text == (chart.ROOT / "deploy" / "crds" / "gang.yaml").read_text("utf-8")
    (crd,) = chart.objects(text)
    assert crd["spec"]["names"]["plural"] == GANGS.plural
    (version,) = crd["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]
    assert shape_of_schema(fields["spec"]) == shape_of_type(GangSpec)
    assert shape_of_schema(fields["status"]) == shape_of_type(GangStatus)
    assert fields["status"]["properties"]["phase"]["enum"] == list(Phase)


def test_the_example_is_a_gang_of_four() -> None:
    (job,) = chart.objects((chart.ROOT / "examples/kubernetes/gang.yaml").read_text("utf-8"))
    pod = pod_of(pod_in(job))
    membership = membership_of(pod)
    assert membership is not None
    assert (membership.key.name, membership.size) == ("workers", job["spec"]["parallelism"])
    assert is_gated(pod)


def test_the_scheduler_may_read_the_sources_of_sizes() -> None:
    manifest = chart.objects(chart.MANIFEST.read_text("utf-8"))
    rules = find(manifest, "ClusterRole", "aliquot-gangs")["rules"]
    may = {
        (group, one) for rule in rules for group in rule["apiGroups"] for one in rule["resources"]
    }
    for version, _, plural in (*BY_LABEL.values(), LWS_SET):
        assert (version.partition("/")[0], plural) in may
    assert {("kubeflow.org", plural) for plural in KUBEFLOW_JOBS.values()} <= may


def test_the_page_names_every_label_kind_and_phase() -> None:
    labels = (*BY_LABEL, LWS_GROUP, KUBEFLOW, *RACKS, *BLOCKS)
    assert [one for one in labels if f"`{one}`" not in PAGE] == []
    assert [one for one in KUBEFLOW_JOBS if one not in PAGE] == []
    assert [one for one in Phase if f"| `{one}` |" not in PAGE] == []
