"""The modules of elastic jobs on Kubernetes, each by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aliquot.kubernetes.api.elasticjob import ElasticJob, ElasticJobSpec
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.jobs.codec import SavedState, decode_state, encode_state
from aliquot.kubernetes.jobs.manifests import pod_body, service_body
from aliquot.kubernetes.jobs.sizes import Candidate
from aliquot.kubernetes.jobs.spec import parse_job, worker_pod, worker_requests, worker_sizes
from aliquot.model.errors import StateError
from aliquot.model.job import JobPhase
from aliquot.model.job_state import JobState, Slot, Stage, Stopping
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Placement, Running
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.feasibility import ClusterCapacity, Feasibility, JobWorkers
from kubernetes.jobs.job_cluster import TEMPLATE


def job(**spec: object) -> ElasticJob:
    body = {
        "metadata": {"name": "train", "namespace": "ns", "uid": "u1"},
        "spec": {"workers": {"min": 1, "max": 4}, "template": TEMPLATE, **spec},
    }
    return msgspec.convert(body, ElasticJob, strict=False)


STATE = JobState(JobPhase.STARTING, generation=3, slots=(Slot(2, 0), Slot(3, 1), Slot(3, 2)))


# --- spec -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "replicas", "sizes"),
    [
        ({"min": 1, "max": 4}, 1024, (1, 2, 3, 4)),
        ({"min": 1, "max": 4}, 2, (1, 2)),
        ({"min": 2, "max": 4}, 0, (2,)),
        ({"min": 1, "max": 8, "sizes": [8, 4, 2, 1, 4]}, 5, (1, 2, 4)),
    ],
)
def test_the_sizes_of_a_job(
    workers: dict[str, object], replicas: int, sizes: tuple[int, ...]
) -> None:
    spec = msgspec.convert(
        {"workers": workers, "replicas": replicas, "template": {}}, ElasticJobSpec
    )
    assert worker_sizes(spec).allowed == sizes


def test_the_grace_period_comes_from_the_template() -> None:
    template = {"spec": {**TEMPLATE["spec"], "terminationGracePeriodSeconds": 7}}
    assert parse_job(job()).grace_seconds == 30
    assert parse_job(job(template=template)).grace_seconds == 7


# --- manifests ------------------------------------------------------------------------------------


def environment(**spec: object) -> dict[str, str]:
    body = pod_body(job(**spec), STATE, Slot(3, 1))
    return {one["name"]: one["value"] for one in body.spec["containers"][0]["env"]}


def test_a_worker_has_the_variables_of_plain_programs_and_torchrun() -> None:
    env = environment()
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_PORT"]) == ("1", "3", "29500")
    assert env["MASTER_ADDR"] == "train-0.train"
    assert (env["PET_NNODES"], env["PET_NODE_RANK"]) == ("3", "1")
    assert env["PET_MASTER_ADDR"] == env["MASTER_ADDR"]
    live = environment(live=True, port=1234)
    assert (live["PET_NNODES"], live["PET_RDZV_ENDPOINT"]) == ("1:4", "train-0.train:1234")
    assert "PET_NODE_RANK" not in live


def test_variables_in_the_template_win() -> None:
    own = {"name": "main", "env": [{"name": "MASTER_PORT", "value": "7"}]}
    assert environment(template={"spec": {"containers": [own]}})["MASTER_PORT"] == "7"


def test_the_pods_that_a_generation_adds_are_one_gang() -> None:
    body = pod_body(job(queue="red"), STATE, Slot(3, 2))
    meta, spec = body.metadata, body.spec
    assert (meta.name, spec["hostname"], spec["subdomain"]) == ("train-2", "train-2", "train")
    assert meta.annotations["aliquot.io/gang"] == "train-3"
    assert meta.annotations["aliquot.io/gang-size"] == "2"
    assert meta.labels["aliquot.io/queue"] == "red"
    assert spec["schedulingGates"] == [{"name": "aliquot.io/gang"}]
    assert (spec["restartPolicy"], spec["schedulerName"]) == ("Never", "aliquot")


def test_the_template_is_not_modified() -> None:
    one = job()
    before = json.dumps(one.spec.template)
    pod_body(one, STATE, Slot(3, 1))
    assert json.dumps(one.spec.template) == before


def test_the_service_is_headless_and_owned_by_the_job() -> None:
    body = service_body(job())
    assert body.spec["clusterIP"] == "None"
    assert body.metadata.owner_references[0].uid == "u1"


# --- the status codec -----------------------------------------------------------------------------


def test_a_saved_state_survives_the_codec() -> None:
    stopping = Stopping(JobPhase.STARTING, Stage.TERM, 5.5, 1, 2)
    state = msgspec.structs.replace(
        SavedState(STATE, (Slot(3, 1),), {2: 1.5}),
        state=JobState(JobPhase.SHRINKING, slots=(Slot(1, 0),), stopping=stopping),
    )
    assert decode_state(encode_state(state), 0.0) == state
    assert decode_state("", 7.0) == SavedState(JobState(since=7.0))
    with pytest.raises(StateError, match=r"status\.controllerState is invalid"):
        decode_state("nonsense", 0.0)


# --- feasibility


def test_room_counts_who_stays_where_they_are_and_who_moves() -> None:
    allocations = Allocations(empty([NodeHardware("a", 2), NodeHardware("b", 2)]))
    held = []
    for rank, place in enumerate([Placement(0, (0,)), Placement(1, (0,)), Placement(0, (1,))]):
        one = Running(Gang(f"w{rank}", (Demand(),)), (place,), 0.0, 1.0)
        allocations.take_gang(one)
        held.append(one)
    pair = JobWorkers[Running]("pair", (Demand(gpus=2),))
    for live in (False, True):
        parties = {"job": JobWorkers("job", (Demand(),), tuple(held), 3, live=live), "pair": pair}
        room = Feasibility(
            ClusterCapacity(allocations, strategy("fragmentation", allocations.hardware)), parties
        )
        assert room.fits({"job": 3})
        assert room.fits({"job": 4})
        assert not room.fits({"job": 5})
        assert not room.fits({"job": 3, "pair": 1})
        assert room.fits({"job": 2, "pair": 1}) == (not live)  # ranks 0 and 1 are on two nodes
        assert room.fits({"job": 1, "pair": 1})
        assert room.after_resize("job", 4) is not None
        assert room.after_resize("pair", 1) is None


def test_a_job_on_its_way_has_its_place_or_is_left_out() -> None:
    allocations = Allocations(empty([NodeHardware("a", 4)]))
    parties = {name: JobWorkers[Running](name, (Demand(),)) for name in ("coming", "huge", "other")}
    room = Feasibility(
        ClusterCapacity(allocations, strategy("fragmentation", allocations.hardware)), parties
    )
    there = room.after_arrival({"coming": 2, "huge": 9})
    assert there.fits({"coming": 2, "huge": 9, "other": 2})
    assert not there.fits({"coming": 2, "huge": 9, "other": 3})


def test_only_some_of_many_sizes_are_considered() -> None:
    def sizes(most: int, size: int, limit: int | None = None) -> tuple[int, ...]:
        one = job(workers={"min": 1, "max": most})
        state = JobState(JobPhase.RUNNING, slots=tuple(Slot(1, rank) for rank in range(size)))
        pod = worker_pod(one)
        return Candidate(
            "job",
            parse_job(one),
            SavedState(state),
            pod,
            worker_requests(pod, (ALIQUOT,)),
            size_limit=limit,
        ).sizes.allowed

    assert sizes(16, 1) == tuple(range(1, 17))
    assert sizes(16, 1, limit=3) == (1, 2, 3)
    considered = sizes(1000, 77)
    assert {1, 2, 77, 1000} <= set(considered)
    assert len(considered) < 24


# --- the worker's side ----------------------------------------------------------------------------


def test_a_worker_reads_notices_and_writes_its_termination_message(tmp_path: Path) -> None:
    notices, message = tmp_path / "attempt", tmp_path / "message"
    notices.mkdir()
    message.touch()
    (notices / "size").touch()  # the annotation is not set yet
    notice = {"generation": 2, "kind": "shrink", "size": 2, "deadline": 2e9}
    (notices / "notice").write_text(json.dumps(notice))
    program = (
        "from aliquot import worker\n"
        "worker.report(step=7, samples_per_second=3.5)\n"
        "assert worker.notice().size == 2\n"
        "worker.ready()\n"
    )
    env = {
        "ALIQUOT_NOTICES": str(notices),
        "ALIQUOT_MESSAGE": str(message),
        "ALIQUOT_GENERATION": "2",
        "WORLD_SIZE": "4",
    }
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    assert json.loads(message.read_text()) == {
        "ready": 2,
        "report": {"step": 7, "samples_per_second": 3.5, "size": 4},
    }


def test_concurrent_processes_of_a_worker_write_a_readable_message(tmp_path: Path) -> None:
    notices, message = tmp_path / "attempt", tmp_path / "message"
    notices.mkdir()
    notice = {"generation": 2, "kind": "shrink", "size": 2, "deadline": 2e9}
    (notices / "notice").write_text(json.dumps(notice))
    program = (
        "import fcntl, json, os\n"
        "from aliquot import worker\n"
        "worker.ready()\n"
        "children = set()\n"
        "for _ in range(4):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        for step in range(200):\n"
        "            worker.report(step=step)\n"
        "            worker.ready()\n"
        "        os._exit(0)\n"
        "    children.add(child)\n"
        "while children:\n"
        "    with open(os.environ['ALIQUOT_MESSAGE']) as file:\n"
        "        fcntl.flock(file, fcntl.LOCK_SH)\n"
        "        assert json.load(file)['ready'] == 2\n"
        "    child, status = os.waitpid(-1, os.WNOHANG)\n"
        "    assert status == 0\n"
        "    children -= {child}\n"
    )
    env = {"ALIQUOT_NOTICES": str(notices), "ALIQUOT_MESSAGE": str(message), "WORLD_SIZE": "4"}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    assert json.loads(message.read_text())["report"]["size"] == 4


def test_the_worker_module_can_be_imported_without_fcntl(tmp_path: Path) -> None:
    message = tmp_path / "message"
    program = (
        "import sys\n"
        "sys.modules['fcntl'] = None\n"
        "from aliquot import worker\n"
        "worker.report(step=7)\n"
    )
    env = {"ALIQUOT_MESSAGE": str(message)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    assert json.loads(message.read_text())["report"]["step"] == 7
