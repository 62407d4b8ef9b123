"""Nodes that come and go under load, and a cluster in which nothing changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from cluster import comings, gangs
from cluster.cluster import Cluster
from cluster.comings import Flapper, Work
from cluster.gangs import Stage
from cluster.servers import answers
from conftest import aliquot_command

SECONDS = float(os.environ.get("ALIQUOT_FLAP_SECONDS", "60"))
PERIOD = 30.0 if SECONDS > 600 else 10.0
QUIET_SECONDS = 20.0
CONTROLLER_PORT = 8451

pytestmark = [pytest.mark.cluster, pytest.mark.shares, pytest.mark.timeout(int(SECONDS) + 600)]


@pytest.fixture(scope="module")
def whole() -> Iterator[Stage]:
    with gangs.stage(1) as stage:
        stage.replicas[0].server.start()
        stage.wait_leader()
        where = f"--host={stage.cluster.host_address}", f"--port={CONTROLLER_PORT}"
        controller = stage.cluster.server(
            "controller",
            *(aliquot_command(), "controller", f"--kubeconfig={stage.cluster.kubeconfig}"),
            *(*where, "--namespace=kube-system", "--resize-every=5", "--settle=5"),
        )
        address = f"http://{stage.cluster.host_address}:{CONTROLLER_PORT}"
        controller.ready = lambda: answers(f"{address}/readyz")
        controller.start()
        controller.wait_ready()
        with gangs.agents(stage):
            yield stage
        controller.stop()


@pytest.fixture
def stage(whole: Stage) -> Iterator[Stage]:
    yield whole
    whole.clear()


@pytest.fixture
def cluster(whole: Stage) -> Cluster:
    """This file's own, in place of the session's."""
    return whole.cluster


def test_work_of_every_kind_outlives_a_node_that_comes_and_goes(
    stage: Stage, namespace: str
) -> None:
    """No pod is bound without its GPU, no GPU is given twice, and all work runs in the end."""
    stage.add_nodes(2, gpus=4)
    flapper = Flapper(stage, "flapper")
    flapper.add()
    work = Work(stage, namespace)
    work.singles("singles", 4)
    work.gang("four", 4)
    work.gang("two", 2)
    work.elastic("elastic", 1, 4)
    until = time.monotonic() + SECONDS
    try:
        while time.monotonic() < until:
            flapper.lose_agent(PERIOD / 2)
            time.sleep(PERIOD / 2)
            flapper.check()
            stage.check_gpus(namespace)
            flapper.remove()
            time.sleep(PERIOD / 2)
            flapper.add()
            time.sleep(PERIOD / 2)
            flapper.check()
            stage.check_gpus(namespace)
        stage.cluster.wait_until(lambda: not work.missing(), 90, "all work runs", every=0.5)
    finally:
        flapper.remove()


def test_waiting_pods_cause_no_requests_while_nothing_changes(stage: Stage, namespace: str) -> None:
    """One node is full, another has free GPUs and is cordoned."""
    full, cordoned = stage.add_nodes(2, gpus=4)
    stage.cluster.kubectl("cordon", cordoned)
    work = Work(stage, namespace)
    work.singles("holders", 4)
    stage.cluster.wait_until(lambda: not work.missing(), 30, "the node is full")
    assert set(stage.bound(namespace).values()) == {full}
    waiting = Work(stage, namespace)
    waiting.singles("waiting", 200)
    waiting.gang("gang", 3)
    waiting.elastic("elastic", 2, 4)
    stage.wait_phase(namespace, "gang", "Waiting")
    calm = ("pods", "gangs/status", "elasticjobs/status", "queues/status", "events")
    seen: list[tuple[float, dict[str, int]]] = []

    def quiet() -> bool:
        """Nothing was patched for so long; what came before belongs to the arrival of the pods."""
        found = comings.patches(stage)
        now = {name: found.get(name, 0) for name in calm}
        if not seen or seen[-1][1] != now:
            seen.append((time.monotonic(), now))
        return time.monotonic() - seen[-1][0] >= QUIET_SECONDS

    stage.cluster.wait_until(quiet, 120, f"nothing is patched for {QUIET_SECONDS} s", every=1.0)
    stage.cluster.kubectl("uncordon", cordoned)
    # By single pods, which are older, or by the gang of 3: kube-scheduler and our controller race.
    # If the gang wins, the fourth GPU is kept for the planned start of the elastic job (two GPUs).
    stage.cluster.wait_until(
        lambda: [*stage.bound(namespace).values()].count(cordoned) >= 3, 60, "it is in use"
    )
