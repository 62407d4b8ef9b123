"""Whatever happens in whatever order: no worker lost, none twice, every job comes to its end.

The controller dies before or after any of its requests, is told late what is so, and is told the
same again; pods end, fail and are taken away; people suspend, resume and scale; others take GPUs,
also those that its workers have.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.model.job import State
from kubernetes.jobs.world import DiedError, World

ROUNDS = 120  # more than any fair way needs


@dataclass(frozen=True)
class Act:
    """What happens next; `number` says to whom, how often or how much."""

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


async def do(world: World, act: Act) -> None:
    match act.what:
        case "all":
            await world.go(act.number)
        case "round":
            await world.round(0.3)
        case "place":
            world.place()
        case "kubelet":
            world.run_pods()
        case "later":
            world.now += act.number
        case "lag" | "tell":
            world.tell()
            world.behind = act.what == "lag"
        case "dies early" | "dies late":
            world.behind = False
            world.begin(act.number, late=act.what == "dies late")
            with suppress(DiedError):
                await world.round(0.3)
                await world.round(1.1)
            world.begin()
        case _:
            intervene(world, act)


def intervene(world: World, act: Act) -> None:
    """What programs and people do."""
    pod = f"train-{act.number}"
    match act.what:
        case "finish" | "fail" if pod in world.running():
            code = int(act.what == "fail")
            world.failures += code
            world.finished += 1 - code
            world.exit(pod, code)
        case "take away" if pod in world.pods():
            world.api.delete("pods", pod, "ns")
        case "drain" if pod in world.pods():
            world.drain(pod)
        case "suspend" | "resume":
            world.change(suspend=act.what == "suspend")
        case "scale":
            world.change(replicas=act.number)
        case "claim" if world.running():
            world.claim(f"train-{max(world.running().values())}", act.number)
        case "evict":
            world.evict()
        case "come" if not world.pods("static"):
            world.gang("static", 2)
        case "go":
            world.end_gang("static")


def check(world: World, *, live: bool) -> None:
    status, running = world.status(), world.running()
    if not live:
        assert len(set(running.values())) <= 1, "workers of two generations run at once"
    if status.phase and State(status.phase).resting and not world.behind:
        held = [name for name, one in world.pods().items() if one["spec"].get("nodeName")]
        alive = [name for name in held if world.pods()[name]["status"]["phase"] == "Running"]
        assert not alive, f"{alive} run, and the job is {status.phase}"
    assert status.restarts <= world.failures, "a restart for what was not the job's fault"
    assert status.phase != "Failed" or world.failures > 0
    assert "Cancelled" not in status.phase
    assert status.phase != "Succeeded" or world.finished, "nobody has finished"
    assert not world.api.forgotten, "a pod that may run was deleted without grace"


async def come_to_an_end(world: World) -> None:
    """Nothing more goes wrong, and the programs finish."""
    world.behind = False
    world.begin()
    world.end_gang("static")
    world.change(suspend=False, replicas=4)
    for _ in range(ROUNDS):
        if world.phase() and State(world.phase()).final:
            break
        world.now += 5  # pauses grow
        await world.go(1)
        if world.phase() == "Running":
            for name in world.running():
                world.exit(name, 0)
    assert State(world.phase()).final, world.status()
    world.run_pods()
    assert not world.running()
    assert len(world.free()) == 4


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(acts=st.lists(ACTS, min_size=8, max_size=30), live=st.booleans(), cooperative=st.booleans())
def test_no_worker_is_lost_or_doubled_and_every_job_ends(
    acts: list[Act], *, live: bool, cooperative: bool
) -> None:
    async def run() -> None:
        world = World()
        world.cooperative = cooperative
        world.submit(most=4, live=live, backoffLimit=2, resizeSeconds=5)
        await world.go(4)
        for act in acts:
            await do(world, act)
            check(world, live=live)
        await come_to_an_end(world)

    asyncio.run(run())


def test_a_controller_that_dies_after_every_single_request_comes_through() -> None:
    async def run(lives: int, *, late: bool) -> None:
        world = World()
        world.submit(most=4, resizeSeconds=5)
        for step in range(40):
            world.begin(lives, late=late)
            with suppress(DiedError):
                await world.round(1.1)
                await world.round(0.1)
            world.place()
            world.run_pods()
            if step == 20:
                world.change(replicas=2)
            check(world, live=False)
        assert (world.phase(), len(world.running())) == ("Running", 2)

    for late in (False, True):
        for lives in (1, 2, 3) if late else (2, 3):
            asyncio.run(run(lives, late=late))
