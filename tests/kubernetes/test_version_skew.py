"""What one version writes and another reads: samples of earlier versions, and of later ones.

`docs/upgrades.md` has the table. A sample is never changed to fit the code: a field that is added
has a default, or the reader refuses the sample by its version and says what to do.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.elasticjob import ElasticJob
from aliquot.kubernetes.api.gang import GangObject
from aliquot.kubernetes.api.gpunode import GpuNodeStatus
from aliquot.kubernetes.api.objects import GpuNode, Pod, QueueObject
from aliquot.kubernetes.api.plan import decode_plan
from aliquot.kubernetes.jobs.codec import decode_state
from aliquot.kubernetes.node.grants.checkpoint import Checkpoint
from aliquot.model import Priority
from aliquot.model.errors import StateError
from aliquot.pool.store import JobStore
from kubernetes.queues.builders import know, make_queue
from kubernetes.samples import samples

SETTINGS = {"memory": [1 << 30], "compute": 20, "policy": "elastic", "priority": "latency"}
CHECKPOINT: dict[str, Any] = {
    "version": 1,
    "gpus": [{"uuid": "GPU-1", "index": 0, "memory": 80 << 30}],
    "grants": [
        {
            "name": "pod-1",
            "owner": {"uid": "u1", "namespace": "ns", "pod": "a", "container": "main"},
            "kind": "sliced",
            "allocated": [{"gpu": "GPU-1", "memory": 1 << 30, "reserved": 20}],
            "requested": SETTINGS,
            "current": SETTINGS,
            "device_ids": {"aliquot.io/vcuda-memory": ["m0", "m1", "m2", "m3"]},
            "carrier": "aliquot.io/vcuda-memory",
        }
    ],
}
GPU_NODE: dict[str, Any] = {
    "metadata": {"name": "n1"},
    "status": {
        "driverVersion": "580.95",
        "shares": 2,
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-1",
                "model": "H100",
                "memory": 80 << 30,
                "kind": "sliced",
                "grants": [
                    {
                        "podUID": "u1",
                        "namespace": "ns",
                        "pod": "a",
                        "container": "main",
                        "memory": 1 << 30,
                    }
                ],
            }
        ],
    },
}
GANG: dict[str, Any] = {
    "metadata": {"name": "g", "namespace": "ns"},
    "spec": {"size": 1, "queue": "q"},
    "status": {"phase": "Reserved", "members": [{"pod": "a", "uid": "u1", "node": "n1"}]},
}
JOB: dict[str, Any] = {
    "metadata": {"name": "j", "namespace": "ns"},
    "spec": {"workers": {"min": 1, "max": 2}, "template": {"spec": {"containers": []}}},
    "status": {"phase": "Running", "controllerState": '{"state":{"phase":"Running"}}'},
}
QUEUE: dict[str, Any] = {
    "metadata": {"name": "q"},
    "spec": {"quota": {"gpus": 2}, "namespaces": ["ns"]},
    "status": {"used": {"gpus": "1", "memory": "80Gi", "compute": 100}},
}
PLAN: dict[str, Any] = {"containers": {"main": {"kind": "whole", "gpus": ["GPU-1"], "memory": 9}}}


def later(sample: Any) -> Any:
    """The same with a field that a later version adds, in every object."""
    if isinstance(sample, list):
        return [later(one) for one in sample]
    if not isinstance(sample, dict):
        return sample
    by_name = {
        "device_ids",
        "containers",
        "metadata",
        "template",
    }  # whose keys are names, or not ours
    return {
        **{key: one if key in by_name else later(one) for key, one in sample.items()},
        "addedLater": {"is": "unknown"},
    }


@pytest.mark.parametrize("written", [CHECKPOINT, later(CHECKPOINT)], ids=["earlier", "later"])
def test_a_checkpoint_without_the_newest_fields_or_with_later_ones_is_read(
    tmp_path: Path, written: dict[str, Any]
) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(written), "utf-8")
    (grant,) = Checkpoint(path).load().grants
    assert (grant.name, grant.owner.pod, grant.kind) == ("pod-1", "a", "sliced")
    assert grant.current.priority is Priority.LATENCY
    assert grant.device_ids == {"aliquot.io/vcuda-memory": ("m0", "m1", "m2", "m3")}
    assert not grant.confirmed


@pytest.mark.parametrize("change", [later, lambda one: one], ids=["later", "earlier"])
@pytest.mark.parametrize(
    ("sample", "kind"),
    [(GPU_NODE, GpuNode), (GANG, GangObject), (JOB, ElasticJob), (QUEUE, QueueObject)],
    ids=["GPUNode", "Gang", "ElasticJob", "Queue"],
)
def test_objects_of_earlier_and_later_versions_are_read(
    sample: dict[str, Any], kind: type[Any], change: Any
) -> None:
    assert msgspec.convert(change(sample), kind) == msgspec.convert(sample, kind)


def test_plans_of_earlier_and_later_versions_are_read() -> None:
    assert decode_plan(json.dumps(later(PLAN))) == decode_plan(json.dumps(PLAN)) is not None


def test_a_jobs_state_is_read_or_refused_with_what_to_do() -> None:
    state = json.loads(JOB["status"]["controllerState"])
    both = (decode_state(json.dumps(one), 1.0) for one in (state, later(state)))
    assert {one.state.phase.value for one in both} == {"Running"}
    with pytest.raises(StateError, match="controllerState is invalid") as caught:
        decode_state('{"state":{"phase":"dancing"}}', 1.0)
    assert "Delete the job and create it again" in str(caught.value.hint)


def test_pods_that_an_earlier_scheduler_bound_count_by_their_labels() -> None:
    bound = {
        "metadata": {"name": "a", "namespace": "ns", "labels": {"aliquot.io/queue": "b"}},
        "spec": {"nodeName": "n1"},
    }
    known = know(make_queue("a", namespaces=("ns",)), make_queue("b"))
    assert known.queue_of(msgspec.convert(bound, Pod)) == "b"


# --- what programs of earlier releases wrote -----------------------------------------------------


@pytest.fixture(params=sorted(samples()))
def sample(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the programs of an earlier commit wrote (`python -m kubernetes.samples`)."""
    return samples()[request.param]


def test_a_release_wrote_each_kind_of_sample() -> None:
    assert samples()
    for one in samples().values():
        assert {
            "node.json",
            "gpunode",
            "gangs",
            "queues",
            "elasticjobs",
            "pods",
            "pool.sql",
        } <= set(one)


def test_the_checkpoint_of_an_earlier_release_is_read(
    tmp_path: Path, sample: dict[str, Any]
) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(sample["node.json"]), "utf-8")
    found = Checkpoint(path).load()
    assert sorted(one.kind for one in found.grants) == ["shared", "sliced", "whole"]
    again = msgspec.to_builtins(found)
    assert lost(sample["node.json"], again) == []


@pytest.mark.parametrize(
    ("plural", "kind"),
    [("gangs", GangObject), ("queues", QueueObject), ("elasticjobs", ElasticJob)],
)
def test_the_objects_of_an_earlier_release_are_read_without_loss(
    plural: str, kind: type[Any], sample: dict[str, Any]
) -> None:
    assert sample[plural]
    for written in sample[plural]:
        read = msgspec.to_builtins(msgspec.convert(written, kind))
        for part in ("spec", "status"):
            assert lost(written.get(part, {}), read.get(part, {})) == []


def test_the_gpunode_of_an_earlier_release_is_read_without_loss(sample: dict[str, Any]) -> None:
    found = msgspec.convert(sample["gpunode"], GpuNodeStatus)
    shares = sample["gpunode"]["shares"]
    assert found.shares == shares
    assert lost(sample["gpunode"], {**msgspec.to_builtins(found), "shares": shares}) == []
    assert sorted(str(one.kind) for one in found.gpus if one.grants) == [
        *("shared", "shared", "sliced", "whole")
    ]


def test_the_state_of_a_job_of_an_earlier_release_is_read(sample: dict[str, Any]) -> None:
    states = [one["status"]["controllerState"] for one in sample["elasticjobs"]]
    phases = {decode_state(text, 1.0).state.phase.value for text in states}
    assert phases == {"Running", "Succeeded"}


def test_the_plans_of_an_earlier_release_are_read(sample: dict[str, Any]) -> None:
    plans = [one["metadata"].get("annotations", {}).get(names.PLAN) for one in sample["pods"]]
    read = [(text, decode_plan(text)) for text in plans if text]
    assert len(read) == 2
    for text, plan in read:
        assert plan is not None
        assert lost(json.loads(text), json.loads(plan.encode())) == []


def test_the_pools_database_of_an_earlier_release_is_read(
    tmp_path: Path, sample: dict[str, Any]
) -> None:
    path = tmp_path / "pool.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript("\n".join(sample["pool.sql"]))
        database.execute(f"PRAGMA user_version = {int(sample['pool.version'])}")
    store = JobStore(path)
    found = {one.job.name: one.state.phase.value for one in store.all()}
    assert found == {
        "done": "Succeeded",
        "sweep-0": "Running",
        "sweep-1": "Running",
        "large": "Pending",
    }
    assert [len(store.events(one.job.number)) > 0 for one in store.all()] == [True] * 4
    store.close()


def lost(written: Any, read: Any, path: str = "") -> list[str]:
    """The places whose value is not in what was read; one that is equal to its default may lack."""
    if isinstance(written, dict):
        if not isinstance(read, dict):
            return [path]
        return [
            place
            for key, value in written.items()
            for place in (
                [] if key not in read and not value else lost(value, read.get(key), f"{path}.{key}")
            )
        ]
    if isinstance(written, list):
        if not isinstance(read, (list, tuple)) or len(read) != len(written):
            return [path]
        pairs = zip(written, read, strict=True)
        return [
            place
            for number, (one, other) in enumerate(pairs)
            for place in lost(one, other, f"{path}[{number}]")
        ]
    return [] if written == read else [path]
