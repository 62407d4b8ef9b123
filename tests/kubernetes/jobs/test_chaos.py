"""Random events in random order: no worker is lost or doubled, and every job finishes.

Watches lag; the controller dies before or after any request and another one starts; pods end, fail
and are deleted; users suspend, resume and scale; other gangs take GPUs and give them back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.model.job import JobPhase
from kubernetes.jobs.job_cluster import DiedError, JobCluster

ROUNDS = 120  # more than any fair run needs


@dataclass(frozen=True)
class Act:
    """What happens next; `number` says to which pod, how often or how much."""

    what: str
    number: int = 0


ACTS = st.one_of(
    st.builds(Act, st.just("all"), st.integers(1, 4)),
    st.builds(Act, st.sampled_from(["round", "place", "kubelet", "lag", "tell"])),
    st.builds(Act, st.just("later"), st.sampled_from([3, 11, 40])),
    st.builds(Act, st.sampled_from(["dies early", "dies late"]), st.integers(1, 6)),
    st.builds(Act, st.sampled_from(["finish", "fail", "take away", "drain"]), st.integers(0, 3)),
    st.builds(Act, st.sampled_from(["suspend", "resume", "come", "go"])),
    st.builds(Act, st.just("scale"), st.integers(0, 4)),
    st.builds(Act, st.just("claim"), st.integers(0, 9)),
    st.builds(Act, st.just("evict")),
)


async def do(cluster: JobCluster, act: Act) -> None:
    match act.what:
        case "all":
            await cluster.go(act.number)
        case "round":
            await cluster.round(0.3)
        case "place":
            cluster.place()
        case "kubelet":
            cluster.run_pods()
        case "later":
            cluster.now += act.number
        case "lag" | "tell":
            cluster.sync()
            cluster.behind = act.what == "lag"
        case "dies early" | "dies late":
            cluster.behind = False
            cluster.begin(act.number, late=act.what == "dies late")
            with suppress(DiedError):
                await cluster.round(0.3)
                await cluster.round(1.1)
            cluster.begin()
        case _:
            intervene(cluster, act)


def intervene(cluster: JobCluster, act: Act) -> None:
    """Acts of programs and users."""
    pod = f"train-{act.number}"
    match act.what:
        case "finish" | "fail" if pod in cluster.running():
            code = int(act.what == "fail")
            cluster.failures += code
            cluster.finished += 1 - code
            cluster.exit(pod, code)
        case "take away" if pod in cluster.pods():
            cluster.api.delete("pods", pod, "ns")
        case "drain" if pod in cluster.pods():
            cluster.drain(pod)
        case "suspend" | "resume":
            cluster.change(suspend=act.what == "suspend")
        case "scale":
            cluster.change(replicas=act.number)
        case "claim" if cluster.running():
            cluster.preempt(f"train-{max(cluster.running().values())}", act.number)
        case "evict":
            cluster.evict()
        case "come" if not cluster.pods("static"):
            cluster.gang("static", 2)
        case "go":
            cluster.end_gang("static")


def check(cluster: JobCluster, *, live: bool) -> None:
    status, running = cluster.status(), cluster.running()
    if not live:
        assert len(set(running.values())) <= 1, "workers of two generations run at once"
    if status.phase and JobPhase(status.phase).inactive and not cluster.behind:
        held = [name for name, one in cluster.pods().items() if one["spec"].get("nodeName")]
        alive = [name for name in held if cluster.pods()[name]["status"]["phase"] == "Running"]
        assert not alive, f"{alive} run, and the job is {status.phase}"
    assert status.restarts <= cluster.failures, "a restart for what was not the job's fault"
    assert status.phase != "Failed" or cluster.failures > 0
    assert "Cancelled" not in status.phase
    assert status.phase != "Succeeded" or cluster.finished, "nobody has finished"
    assert not cluster.api.forgotten, "a pod that may run was deleted without grace"


async def come_to_an_end(cluster: JobCluster) -> None:
    """Run without further faults until the programs finish."""
    cluster.behind = False
    cluster.begin()
    cluster.end_gang("static")
    cluster.change(suspend=False, replicas=4)
    for _ in range(ROUNDS):
        if cluster.phase() and JobPhase(cluster.phase()).final:
            break
        cluster.now += 5  # pauses between restarts grow
        await cluster.go(1)
        if cluster.phase() == "Running":
            for name in cluster.running():
                cluster.exit(name, 0)
    assert JobPhase(cluster.phase()).final, cluster.status()
    cluster.run_pods()
    assert not cluster.running()
    assert len(cluster.free()) == 4


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(acts=st.lists(ACTS, min_size=8, max_size=30), live=st.booleans(), cooperative=st.booleans())
def test_no_worker_is_lost_or_doubled_and_every_job_finishes(
    acts: list[Act], *, live: bool, cooperative: bool
) -> None:
    async def run() -> None:
        cluster = JobCluster()
        cluster.cooperative = cooperative
        cluster.submit(most=4, live=live, backoffLimit=2, resizeSeconds=5)
        await cluster.go(4)
        for act in acts:
            await do(cluster, act)
            check(cluster, live=live)
        await come_to_an_end(cluster)

    asyncio.run(run())


def test_a_controller_that_dies_after_every_request_still_finishes_the_job() -> None:
    async def run(lives: int, *, late: bool) -> None:
        cluster = JobCluster()
        cluster.submit(most=4, resizeSeconds=5)
        for step in range(40):
            cluster.begin(lives, late=late)
            with suppress(DiedError):
                await cluster.round(1.1)
                await cluster.round(0.1)
            cluster.place()
            cluster.run_pods()
            if step == 20:
                cluster.change(replicas=2)
            check(cluster, live=False)
        assert (cluster.phase(), len(cluster.running())) == ("Running", 2)

    for late in (False, True):
        for lives in (1, 2, 3) if late else (2, 3):
            asyncio.run(run(lives, late=late))
