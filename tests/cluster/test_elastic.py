"""An elastic job on a real cluster, with simulated GPUs: it fills the node, gives back, grows."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aliquot
from aliquot.kubernetes.api.names import GANG, GANG_SIZE, GATE, QUEUE
from cluster.cluster import Cluster
from cluster.installed import IMAGE, SPACE, install, label
from cluster.manifests import pod
from cluster.registry import ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

EVERY = 20  # steps between two checkpoints
PATH = "/apis/aliquot.io/v1alpha1/namespaces/default/elasticjobs"

# What it does is in one file, line by line: where it goes on, each step, what it is told and when.
PROGRAM = f"""
import json, os, sys, time
from aliquot import worker

first = worker.rank() == 0
saved, log = "/saved/step.json", open("/saved/log", "a", buffering=1)
step = json.load(open(saved))["step"] if os.path.exists(saved) else 0

def save():
    with open(saved + ".new", "w") as file:
        json.dump({{"step": step}}, file)
    os.replace(saved + ".new", saved)

while True:
    time.sleep(0.05)
    if worker.notice():
        if first:
            save()
            left = worker.notice().seconds_left
            log.write(f"{{worker.notice().kind}} {{worker.notice().size}} {{left}}\\n")
        worker.ready()
        sys.exit()
    if first:
        step += 1
        log.write(f"step {{step}}\\n")
        worker.report(step=step, samples_per_second=20 * worker.size())
        if step % {EVERY} == 0:
            save()
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    with Cluster() as cluster:
        install(cluster, "h100:4", "controller.resizeEvery=2", "controller.settle=2")
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Cluster:
    """This file's own, in place of the session's."""
    return installed


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where workers save; a folder of the node, which is this machine."""
    path = Path(tempfile.mkdtemp(prefix="aliquot-elastic-"))
    yield path
    shutil.rmtree(path)


def elastic(folder: Path, **spec: Any) -> dict[str, Any]:
    """A job of 1 to 4 workers with a GPU each."""
    made = pod(
        "worker",
        ["python3", "-c", PROGRAM],
        image=f"{IMAGE}:{aliquot.__version__}",
        limits={"aliquot.io/gpu": 1},
    )
    share(made["spec"], folder)
    return {
        "apiVersion": "aliquot.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "counting", "namespace": "default"},
        "spec": {
            "workers": {"min": 1, "max": 4},
            "resizeSeconds": 20,
            "template": {"spec": made["spec"]},
            **spec,
        },
    }


def gang(
    name: str, size: int, folder: Path, labels: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """A static gang, which ends when there is a file `go`."""
    made = [
        pod(
            f"{name}-{number}",
            ["/bin/sh", "-c", "until [ -e /saved/go ]; do sleep 0.1; done"],
            limits={"aliquot.io/gpu": 1},
            annotations={GANG: name, GANG_SIZE: str(size)},
            labels=labels,
            schedulerName="aliquot",
            schedulingGates=[{"name": GATE}],
        )
        for number in range(size)
    ]
    for one in made:
        share(one["spec"], folder)
    return made


def share(spec: dict[str, Any], folder: Path) -> None:
    spec["volumes"] = [{"name": "saved", "hostPath": {"path": str(folder)}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "saved", "mountPath": "/saved"}]


def status(cluster: Cluster) -> dict[str, Any]:
    return dict(cluster.api.get(f"{PATH}/counting").get("status", {}))


def wait_workers(cluster: Cluster, count: int, seconds: float = 30) -> None:
    def so() -> bool:
        now = status(cluster)
        return (now.get("phase"), now.get("ready"), now.get("workers")) == ("Running", count, count)

    cluster.wait_until(so, seconds, f"it runs with {count} workers")


def wait_gang(cluster: Cluster, name: str) -> None:
    cluster.wait_until(lambda: phases(cluster, name) == {"Running"}, 40, f"gang {name} runs")


def phases(cluster: Cluster, name: str) -> set[str]:
    found = cluster.api.get("/api/v1/namespaces/default/pods")["items"]
    return {
        one["status"]["phase"] for one in found if one["metadata"]["name"].startswith(f"{name}-")
    }


def test_a_job_fills_the_node_shrinks_for_a_gang_and_grows_back(
    cluster: Cluster, folder: Path
) -> None:
    cluster.apply(elastic(folder))
    wait_workers(cluster, 4)
    cluster.apply(*gang("static", 2, folder))
    wait_gang(cluster, "static")
    wait_workers(cluster, 2)
    (folder / "go").touch()
    wait_workers(cluster, 4)
    cluster.kubectl("scale", "elasticjob", "counting", "--replicas=1")
    wait_workers(cluster, 1)
    suspend = '--patch={"spec":{"suspend":true}}'
    cluster.kubectl("patch", "elasticjob", "counting", "--type=merge", suspend)
    cluster.wait_until(lambda: status(cluster)["phase"] == "Suspended", 30, "it is suspended")
    assert status(cluster)["restarts"] == 0
    shown = cluster.kubectl("get", "elasticjobs")
    assert shown.split()[:4] == ["NAME", "PHASE", "WORKERS", "READY"]
    check_log((folder / "log").read_text())
    cluster.kubectl("delete", "elasticjob", "counting", "--wait")
    cluster.wait_until(lambda: not phases(cluster, "counting"), 30, "its pods are gone")


def check_log(text: str) -> None:
    """It was told of each change, in time, and never went back by more than a checkpoint."""
    told = [line.split() for line in text.splitlines()]
    notices = [words for words in told if words[0] != "step"]
    kinds = [" ".join(words[:2]) for words in notices]
    # It grows in two steps where the gang's GPUs do not become free together.
    assert [one for one in kinds if one != "grow 3"] == [
        "shrink 2",
        "grow 4",
        "shrink 1",
        "suspend 0",
    ]
    late = [20 - float(words[2]) for words in notices]
    seconds = ", ".join(f"{one:.1f}" for one in late)
    sys.stdout.write(f" seconds from the decision to the program: {seconds} ")
    assert max(late) < 10
    steps = [int(words[1]) for words in told if words[0] == "step"]
    assert len(steps) > 50
    for before, after in itertools.pairwise(steps):
        assert before - EVERY <= after <= before + 1, (before, after)


def test_quota_is_reclaimed_from_a_job_whose_workers_get_a_notice(
    cluster: Cluster, folder: Path
) -> None:
    kind = {"apiVersion": "aliquot.io/v1alpha1", "kind": "Queue"}
    own = {**kind, "metadata": {"name": "own"}, "spec": {"quota": {"gpus": 4}}}
    cluster.apply(own, elastic(folder))
    wait_workers(cluster, 4)
    for name in ("first", "second"):
        cluster.apply(*gang(name, 2, folder, {QUEUE: "own"}))
        wait_gang(cluster, name)
        if name == "first":  # it can do without two; then only without one
            wait_workers(cluster, 2)
    told = [line.split()[:2] for line in (folder / "log").read_text().splitlines()]
    assert [words for words in told if words[0] != "step"] == [["shrink", "2"], ["suspend", "0"]]
    cluster.wait_until(lambda: status(cluster)["ready"] == 0, 30, "its status has no worker")
    now = status(cluster)
    assert now["restarts"] == 0
    phase = {one["phase"]: one["reason"] for one in now["history"]}
    why = "asked to save: preempted for default/second: queue default"
    assert phase["Suspending"].startswith(why)
    (folder / "go").touch()
    wait_workers(cluster, 4)
    cluster.kubectl("delete", "elasticjob", "counting", "--wait")
    cluster.kubectl("delete", "queue", "own")
    cluster.wait_until(lambda: not phases(cluster, "counting"), 30, "its pods are gone")


def test_an_invalid_job_is_refused_or_gets_a_condition(cluster: Cluster, folder: Path) -> None:
    with pytest.raises(ClusterError, match="max is below min"):
        cluster.apply(elastic(folder, workers={"min": 3, "max": 2}))
    job = elastic(folder, workers={"min": 1, "max": 1})
    job["spec"]["template"]["spec"]["containers"][0]["command"] = ["/no/such/program"]
    cluster.apply(job)
    cluster.wait_until(lambda: status(cluster).get("phase") == "Failed", 30, "it has failed")
    assert "worker 0 could not run" in status(cluster)["reason"]
    events = ("events", "--for=elasticjob/counting")
    cluster.wait_until(lambda: "Failed" in cluster.kubectl(*events), 30, "an event says so")
    cluster.kubectl("delete", "elasticjob", "counting", "--wait")
    log = cluster.kubectl("logs", "-n", SPACE, f"--selector={label('controller')}", "--tail=-1")
    assert "forbidden" not in log.lower()
    assert "Traceback" not in log
