"""Which gang a pod belongs to, whatever object people wrote it with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kubernetes.api.objects import Gate, OwnerReference
from aliquot.kubernetes.cluster.membership import (
    GangKey,
    Source,
    foreign_gates,
    is_gated,
    membership_of,
    object_name,
    seconds_of,
)
from aliquot.kubernetes.gangs.sizes import size_in
from kubernetes.builders import pod_of


def pod(
    labels: dict[str, str] | None = None, notes: dict[str, str] | None = None, **spec: Any
) -> Any:
    meta: dict[str, Any] = {"name": "p", "namespace": "ns", "uid": "u"}
    owners = spec.pop("owners", [])
    meta |= {"labels": labels or {}, "annotations": notes or {}, "ownerReferences": owners}
    return pod_of({"metadata": meta, "spec": spec})


@pytest.mark.parametrize("how", ["labels", "notes"])
def test_pods_name_their_gang_and_its_size(how: str) -> None:
    words = {"aliquot.io/gang": "train", "aliquot.io/gang-size": "4"}
    membership = membership_of(pod(**{how: words}))
    assert membership is not None
    assert (membership.key, membership.size, membership.source) == (GangKey("ns", "train"), 4, None)


def test_a_pod_without_a_gang_is_single() -> None:
    assert membership_of(pod({"app": "x"})) is None
    jobset = {"jobset.sigs.k8s.io/jobset-name": "js"}
    assert membership_of(pod(jobset, {"aliquot.io/gang": "none"})) is None


@pytest.mark.parametrize(
    ("labels", "notes", "source"),
    [
        (
            {"scheduling.x-k8s.io/pod-group": "pg"},
            {},
            Source("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", "pg"),
        ),
        (
            {},
            {"scheduling.k8s.io/group-name": "pg"},
            Source("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups", "pg"),
        ),
        (
            {"jobset.sigs.k8s.io/jobset-name": "pg"},
            {},
            Source("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", "pg"),
        ),
    ],
)
def test_the_object_that_a_pod_names_knows_the_size(
    labels: dict[str, str], notes: dict[str, str], source: Source
) -> None:
    membership = membership_of(pod(labels, notes))
    assert membership is not None
    assert (membership.key.name, membership.size, membership.source) == ("pg", None, source)


def test_a_kubeflow_job_is_found_by_its_owner_reference() -> None:
    labels = {"training.kubeflow.org/job-name": "bert"}
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "bert", "uid": "o"}
    membership = membership_of(pod(labels, owners=[owner]))
    assert membership is not None
    assert membership.source == Source("kubeflow.org/v1", "PyTorchJob", "pytorchjobs", "bert")
    assert membership_of(pod(labels)) is None


@pytest.mark.parametrize("size", ["", "0", "four", "-1", "1.5", "10001"])
def test_the_reason_names_an_invalid_size(size: str) -> None:
    membership = membership_of(pod({"aliquot.io/gang": "g"}, {"aliquot.io/gang-size": size}))
    assert membership is not None
    assert membership.size is None
    assert "aliquot.io/gang-size" in membership.problem


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        ("PodGroup", {"minMember": 3}, 3),
        ("PodGroup", {}, None),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {"replicas": 2, "template": {"spec": {"parallelism": 4}}},
                    {"template": {"spec": {}}},
                ]
            },
            9,
        ),
        ("JobSet", {"replicatedJobs": "?"}, None),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 7}}},
            8,
        ),
        ("MPIJob", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}}, 3),
        ("TFJob", {}, None),
    ],
)
def test_sizes_in_other_objects(kind: str, spec: dict[str, Any], size: int | None) -> None:
    assert size_in(kind, spec) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("5m", 300),
        ("1.5h", 5400),
        ("2d", 172800),
        ("x", 60),
        ("0", 60),
        ("9" * 20 + "d", 60),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(pod(notes={"aliquot.io/duration": text}), 60) == seconds


def test_a_deadline_is_a_duration() -> None:
    assert seconds_of(pod(activeDeadlineSeconds=120), 60) == 120
    assert seconds_of(pod(), 60) == 60


def test_foreign_gates_are_distinguished() -> None:
    one = pod(schedulingGates=[{"name": "aliquot.io/gang"}, {"name": "kueue.x-k8s.io/admission"}])
    assert one.spec.scheduling_gates[0] == Gate("aliquot.io/gang")
    assert is_gated(one)
    assert foreign_gates(one) == ("kueue.x-k8s.io/admission",)
    assert OwnerReference() == OwnerReference(controller=False)


@given(st.text(min_size=1, max_size=300))
def test_every_gang_has_an_object_of_its_own(name: str) -> None:
    made = object_name(name)
    assert len(made) <= 200
    assert made == object_name(made)
    assert made == name or object_name(name + "x") != made
