"""Workers that do not answer a notice are told again: the kubelet may not have shown it to them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.kubernetes.api.names import NOTICE
from kubernetes.jobs.test_jobs import scenario, started
from kubernetes.jobs.world import World


class Told:
    """Notes each notice that the API server takes for a pod, and how many requests that were."""

    def __init__(self, world: World, pod: str) -> None:
        self.requests = 0
        self._world, self._pod = world, pod
        self.notices: list[dict[str, Any]] = []
        world.api.faults.refuse = self._hear

    def _hear(self, method: str, path: str) -> int | None:
        self.requests += method == "PATCH" and path.endswith(f"/pods/{self._pod}")
        return None

    def look(self) -> None:
        pod = self._world.pods().get(self._pod, {"metadata": {}})
        text = pod["metadata"].get("annotations", {}).get(NOTICE)
        if text and json.loads(text) not in self.notices:
            self.notices.append(json.loads(text))


@scenario
async def test_a_worker_that_did_not_see_its_notice_is_told_again_and_saves() -> None:
    world = await started(least=2, backoffLimit=0, resizeSeconds=30)
    world.unheard = {"train-1": 1}
    world.change(suspend=True)
    await world.go(4)
    assert (world.phase(), set(world.running())) == ("Suspending", {"train-1"})
    await world.go(4)
    assert world.phase() == "Suspended"
    late = world.pods()["train-1"]
    assert '"ready"' in late["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert "deletionTimestamp" not in late["metadata"]


@pytest.mark.parametrize("dies", [False, True])
def test_one_that_never_answers_is_told_a_few_times_of_the_same_change(*, dies: bool) -> None:
    @scenario
    async def run() -> None:
        world = await started(least=2, resizeSeconds=60)
        world.cooperative = False
        told = Told(world, "train-1")
        world.change(suspend=True)
        for _ in range(58):
            if dies:
                world.begin()  # it knows only what the API server has
            await world.round(1.0)
            told.look()
        assert [one.pop("told") for one in told.notices] == [1, 2, 3, 4, 5]
        assert all(one == told.notices[0] for one in told.notices)
        assert told.requests == 5
        assert (world.phase(), len(world.running())) == ("Suspending", 2)

    run()


@scenario
async def test_one_that_was_told_is_told_nothing_new_when_it_has_gone() -> None:
    world = await started(least=2, resizeSeconds=60)
    world.unheard = {"train-0": 9}
    told = Told(world, "train-1")
    world.change(suspend=True)
    await world.go(20)
    assert (world.phase(), set(world.running())) == ("Suspending", {"train-0"})
    assert told.requests == 1
