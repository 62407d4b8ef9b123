"""Agents and kubelets that end again and again while pods come and go.

ALIQUOT_CRASH_SECONDS, ALIQUOT_KUBELET_RESTARTS and ALIQUOT_KUBELET_PODS make the runs longer, as
`make soak` does.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from cluster.agent import Agent
from cluster.churn import Churn
from cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.shares, pytest.mark.timeout(3600)]

CRASH_SECONDS = float(os.environ.get("ALIQUOT_CRASH_SECONDS", "60"))
RESTARTS = int(os.environ.get("ALIQUOT_KUBELET_RESTARTS", "4"))
PODS = int(os.environ.get("ALIQUOT_KUBELET_PODS", "20"))


def test_an_agent_that_crash_loops_loses_no_pod(
    cluster: Cluster, namespace: str, agent: Agent, tmp_path: Path
) -> None:
    rng = random.Random(7)  # noqa: S311 - chance, not secrets
    churn = Churn(cluster, namespace, agent, tmp_path)
    left = CRASH_SECONDS
    while left > 0:
        agent.server.kill()
        # Some are killed while they start, some while they register, some while they serve.
        down, up = rng.uniform(0, 2), rng.choice((0.5, 2.0, 4.0, 8.0))
        churn.go_on_for(down)
        agent.server.start()
        churn.go_on_for(up)
        left -= down + up
    agent.server.wait_ready()
    churn.go_on_to(churn.succeeded + 3)
    churn.finish()
    agent.until_counts(gpu=4, sgpu=8, vcuda_memory=344, vcuda_core=400)


def test_a_kubelet_that_restarts_while_pods_come_and_go_loses_none(
    cluster: Cluster, namespace: str, agent: Agent, tmp_path: Path
) -> None:
    churn = Churn(cluster, namespace, agent, tmp_path)
    for number in range(1, RESTARTS + 1):
        churn.go_on_to(PODS * number // (RESTARTS + 1))
        agent.node.kubelet.restart()
    churn.go_on_to(PODS)
    churn.finish()
    cluster.wait_ready()
    agent.until_counts(gpu=4, sgpu=8, vcuda_memory=344, vcuda_core=400)
