"""Gangs with the real kube-scheduler and API server, on nodes that kwok keeps."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import gangs
from cluster.api import ApiError
from cluster.cluster import Cluster
from cluster.gangs import Stage
from cluster.manifests import pod
from cluster.registry import ClusterError
from kubernetes import chart

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

QUEUES = "/apis/aliquot.io/v1alpha1/queues"
RECLAIM_SECONDS = 14.0  # of one GPU, by the peer's figure
HOUR, MINUTES = {"aliquot.io/duration": "1h"}, {"aliquot.io/duration": "10m"}


@pytest.fixture(scope="module")
def whole() -> Iterator[Stage]:
    with gangs.running_stage() as stage:
        yield stage


@pytest.fixture
def stage(whole: Stage) -> Iterator[Stage]:
    yield whole
    whole.clear()


@pytest.fixture
def cluster(whole: Stage) -> Cluster:
    """This file's own, in place of the session's."""
    return whole.cluster


def test_a_small_gang_backfills_before_the_planned_start_of_a_big_one(
    stage: Stage, namespace: str
) -> None:
    stage.add_nodes(2, gpus=2)
    first = stage.submit(namespace, "first", 2, notes=HOUR)
    stage.wait_phase(namespace, "first", "Bound")
    big = stage.submit(namespace, "big", 4, notes=HOUR)
    stage.wait_phase(namespace, "big", "Waiting")
    assert "4 GPUs requested; 2 free; planned for about" in stage.why(namespace, "big")
    assert f"after {namespace}/first" in stage.why(namespace, "big")
    small = stage.submit(namespace, "small", 2, notes=MINUTES)
    stage.wait_phase(namespace, "small", "Bound")
    assert set(stage.bound(namespace)) == {*first, *small}
    wait_told(stage, namespace, big[0], "gang big: 4 GPUs requested; 2 free")
    stage.end(namespace, first)
    stage.end(namespace, small)
    stage.wait_phase(namespace, "big", "Bound")
    assert set(stage.bound(namespace)) == set(big)
    stage.check_gpus(namespace)
    shown = stage.cluster.kubectl("get", "gangs", f"--namespace={namespace}")
    assert shown.split()[:5] == ["NAME", "SIZE", "QUEUE", "PHASE", "START"]


def test_two_gangs_that_could_deadlock_run_one_after_the_other(
    stage: Stage, namespace: str
) -> None:
    stage.add_nodes(2, gpus=2)
    ours: dict[str, list[str]] = {"a": [], "b": []}
    for number in range(3):  # by turns and without gates: else halves of both would start
        for name, names in ours.items():
            names.extend(stage.submit(namespace, name, 3, pods=1, first=number, gated=False))
    stage.cluster.wait_until(lambda: len(stage.bound(namespace)) == 3, 30, "one of them runs")
    bound = set(stage.bound(namespace))
    first, other = ("a", "b") if bound == set(ours["a"]) else ("b", "a")
    assert bound == set(ours[first])
    stage.wait_phase(namespace, other, "Waiting")
    stage.end(namespace, ours[first])
    stage.wait_phase(namespace, other, "Bound")
    assert set(stage.bound(namespace)) == set(ours[other])


def test_a_gang_that_cannot_start_is_refused_at_once(stage: Stage, namespace: str) -> None:
    stage.add_nodes(2, gpus=2)
    stage.submit(namespace, "huge", 5)
    stage.submit(namespace, "many", 1, pods=2)
    stage.wait_phase(namespace, "huge", "Refused", 10)
    stage.wait_phase(namespace, "many", "Refused", 10)
    assert "it asks for 5 GPUs, and there are 4" in stage.why(namespace, "huge")
    assert "2 pods belong to it, and they say that it has 1" in stage.why(namespace, "many")
    assert not stage.bound(namespace)


def test_policies_add_the_gate_and_let_the_scheduler_remove_only_that(
    stage: Stage, namespace: str
) -> None:
    try:
        objects = chart.templates("gang-gate", "scheduler-rbac")
    except chart.NoHelmError as error:
        pytest.skip(str(error))
    policies = [one for one in objects if "AdmissionPolicy" in one["kind"]]
    assert len(policies) == 4
    stage.cluster.apply(*policies)
    scheduler = f"--as=system:serviceaccount:{chart.NAMESPACE}:aliquot-scheduler"
    admin = "--clusterrole=cluster-admin"
    user = f"--user={scheduler.removeprefix('--as=')}"
    stage.cluster.kubectl("create", "clusterrolebinding", "trial", admin, user)

    def gates() -> object:
        stage.submit(namespace, "x", 9, pods=1, gated=False, schedulerName="nobody")
        found = stage.pods(namespace)["x-0"]["spec"].get("schedulingGates")
        if not found:  # the API server does not know the policy yet
            stage.end(namespace, ["x-0"])
            stage.cluster.wait_until(lambda: not stage.pods(namespace), 10, "it is gone")
        return found

    stage.cluster.wait_until(gates, 20, "a pod of a gang gets the gate")

    def patch(body: str) -> str:
        where = ("pod", "x-0", f"--namespace={namespace}", "--type=merge", f"--patch={body}")
        return stage.cluster.kubectl(scheduler, "patch", *where)

    for forbidden in ('{"metadata":{"labels":{"a":"b"}}}', '{"spec":{"activeDeadlineSeconds":9}}'):
        with pytest.raises(ClusterError, match="takes its own gates away, nothing else"):
            patch(forbidden)
    patch('{"spec":{"schedulingGates":null},"metadata":{"annotations":{"aliquot.io/retry":"now"}}}')
    assert "schedulingGates" not in stage.pods(namespace)["x-0"]["spec"]
    kinds = {one["kind"] for one in policies}
    for kind in sorted(kinds):
        stage.cluster.kubectl("delete", kind, "--all")


def test_the_next_extender_continues_a_reserved_gang(stage: Stage, namespace: str) -> None:
    stage.add_nodes(4, gpus=4)
    server = stage.replicas[0].server
    names = stage.submit(namespace, "a", 16)
    stage.cluster.wait_until(
        lambda: stage.phase(namespace, "a") in {"Reserved", "Bound"},
        30,
        "a is reserved",
        every=0.01,
    )
    server.kill()
    server.start()
    stage.wait_leader()
    stage.cluster.wait_until(lambda: set(stage.bound(namespace)) == set(names), 60, "all are bound")
    stage.wait_phase(namespace, "a", "Bound")
    stage.check_gpus(namespace)


def test_a_higher_priority_preempts_a_lower_one_in_seconds(stage: Stage, namespace: str) -> None:
    stage.add_nodes(1, gpus=1)
    began = time.monotonic()
    stage.submit(namespace, "low", 1)
    stage.wait_phase(namespace, "low", "Bound")
    alone, began = time.monotonic() - began, time.monotonic()
    stage.submit(namespace, "high", 1, priorityClassName="high")
    stage.cluster.wait_until(
        lambda: set(stage.bound(namespace)) == {"high-0"}, 30, "the claimant has its node"
    )
    assert time.monotonic() - began < in_seconds(10.0, alone)
    wait_told(stage, namespace, "low-0", "Preempted")


def test_a_queue_reclaims_its_quota_from_a_borrowing_gang_in_seconds(
    stage: Stage, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (node,) = stage.cluster.nodes  # a real one: what ends and begins there are processes
    stage.add_gpus(node.name, 2)
    for name, quota in {"owner": 2, "borrower": 0}.items():
        one = {"metadata": {"name": name}, "spec": {"quota": {"gpus": quota}}}
        kind = {"apiVersion": "aliquot.io/v1alpha1", "kind": "Queue"}
        stage.cluster.api.create(QUEUES, {**kind, **one})
    real: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": node.name}}
    began = time.monotonic()
    guests = stage.submit(namespace, "guest", 2, labels={"aliquot.io/queue": "borrower"}, **real)

    stage.cluster.wait_until(lambda: running(stage, namespace) == set(guests), 30, "the guests run")
    alone, began = time.monotonic() - began, time.monotonic()
    mine = stage.submit(namespace, "host", 2, labels={"aliquot.io/queue": "owner"}, **real)
    stage.cluster.wait_until(
        lambda: running(stage, namespace) == set(mine), 30, "the claimant runs"
    )
    took = time.monotonic() - began
    with capsys.disabled():
        sys.stdout.write(f" reclaimed by quota: 2 pods run {took:.2f} s after they were made ")
    assert took < in_seconds(RECLAIM_SECONDS, alone)
    borrows = "queue borrower borrows from the quota of queue owner"
    wait_told(stage, namespace, "guest-0", borrows)
    stage.check_gpus(namespace)
    stage.cluster.kubectl("delete", "queues", "--all")


def test_an_extender_killed_between_evictions_leaves_no_half_victim(
    stage: Stage, namespace: str
) -> None:
    """The API server keeps one half of them while it dies.

    A disruption budget would keep all of them: nobody is chosen whom one protects.
    """
    stage.add_nodes(8, gpus=8)
    for name, quota in {"owner": 1, "borrower": 63}.items():
        one = {"metadata": {"name": name}, "spec": {"quota": {"gpus": quota}}}
        kind = {"apiVersion": "aliquot.io/v1alpha1", "kind": "Queue"}
        stage.cluster.api.create(QUEUES, {**kind, **one})
    guests = stage.submit(namespace, "guest", 64, labels={"aliquot.io/queue": "borrower"})
    stage.wait_phase(namespace, "guest", "Bound", 60)
    stage.cluster.apply(*keeping(guests[:32]))
    path = f"/api/v1/namespaces/{namespace}/pods/{guests[0]}/eviction"
    trial = {"metadata": {"name": guests[0]}, "deleteOptions": {"dryRun": ["All"]}}

    def is_kept() -> bool:
        try:
            stage.cluster.api.create(path, {**EVICTION, **trial})
        except ApiError:
            return True
        return False

    stage.cluster.wait_until(is_kept, 30, "the API server knows the policy")
    stage.submit(namespace, "host", 1, labels={"aliquot.io/queue": "owner"})

    def staying() -> int:
        pods = stage.pods(namespace)
        return sum(
            not pods[one]["metadata"].get("deletionTimestamp") for one in pods.keys() & {*guests}
        )

    stage.cluster.wait_until(lambda: staying() == 32, 30, "all are evicted that may be")
    server = stage.replicas[0].server
    server.kill()
    stage.cluster.kubectl("delete", "validatingadmissionpolicybinding", "kept")
    assert staying() == 32
    server.start()
    stage.wait_leader()
    stage.cluster.wait_until(lambda: set(stage.bound(namespace)) == {"host-0"}, 60, "all have gone")
    stage.cluster.kubectl("delete", "validatingadmissionpolicy", "kept")
    stage.cluster.kubectl("delete", "queues", "--all")


EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction"}
ADMISSION = "admissionregistration.k8s.io/v1"


def keeping(names: list[str]) -> list[dict[str, Any]]:
    """A policy that lets nobody evict these pods."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods/eviction"],
        "operations": ["CREATE"],
    }
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": f"!(object.metadata.name in {names})"}],
    }
    binding = {"policyName": "kept", "validationActions": ["Deny"]}
    kind = "ValidatingAdmissionPolicy"
    return [
        {"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": "kept"}, "spec": policy},
        {
            "apiVersion": ADMISSION,
            "kind": f"{kind}Binding",
            "metadata": {"name": "kept"},
            "spec": binding,
        },
    ]


def in_seconds(limit: float, alone: float) -> float:
    """The limit on this machine, on which the same pods took `alone` seconds with no victims.

    An idle machine takes less than 4 s for them.
    """
    return limit * max(1.0, alone / 4.0)


def wait_told(stage: Stage, namespace: str, name: str, words: str) -> None:
    """Wait until an event of the pod contains these words."""
    events = ("events", f"--namespace={namespace}", f"--for=pod/{name}")
    what = f"an event of {name}: {words}"
    stage.cluster.wait_until(lambda: words in stage.cluster.kubectl(*events), 30, what)


def running(stage: Stage, namespace: str) -> set[str]:
    pods = stage.pods(namespace).items()
    return {name for name, one in pods if one["status"].get("phase") == "Running"}


def test_a_gang_lands_in_one_rack_and_says_so(stage: Stage, namespace: str) -> None:
    rack = "topology.kubernetes.io/rack"
    racks = {}
    for number in range(6):  # by turns, so that neighbours are in different racks
        for name in stage.add_nodes(1, gpus=1, **{rack: f"r{number % 3}"}):
            racks[name] = f"r{number % 3}"
    stage.submit(namespace, "a", 2)
    stage.wait_phase(namespace, "a", "Bound")
    assert len({racks[node] for node in stage.bound(namespace).values()}) == 1
    assert stage.gang(namespace, "a")["status"]["topology"] == "2 nodes of one rack"
    shown = stage.cluster.kubectl("get", "gang", "a", f"--namespace={namespace}", "-o", "wide")
    assert "2 nodes of one rack" in shown


def test_a_pod_group_starts_with_its_min_members(stage: Stage, namespace: str) -> None:
    stage.cluster.apply(POD_GROUPS)
    stage.cluster.kubectl("wait", "--for=condition=established", f"crd/{POD_GROUPS_NAME}")
    stage.add_nodes(1, gpus=2)
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "pg", "namespace": namespace},
        "spec": {"minMember": 2},
    }
    stage.cluster.apply(group)

    def submit(name: str) -> None:
        labels = {"scheduling.x-k8s.io/pod-group": "pg"}
        limits, selector = {"aliquot.io/gpu": 1}, {"type": "kwok"}
        one = pod(name, namespace=namespace, labels=labels, limits=limits, nodeSelector=selector)
        stage.cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", one)

    submit("p0")
    stage.wait_phase(namespace, "pg", "Gathering")
    assert stage.why(namespace, "pg") == "1 of its 2 pods exist"
    assert not stage.bound(namespace)
    submit("p1")
    stage.wait_phase(namespace, "pg", "Bound")
    assert set(stage.bound(namespace)) == {"p0", "p1"}
    owner = stage.gang(namespace, "pg")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("PodGroup", "pg")


POD_GROUPS_NAME = "podgroups.scheduling.x-k8s.io"
POD_GROUPS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": POD_GROUPS_NAME,
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
