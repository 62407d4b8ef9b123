"""What one tenant writes into its pods keeps nobody else's gang from being planned."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.cluster.cluster import Cluster
from aliquot.kubernetes.cluster.membership import membership_of
from aliquot.kubernetes.extender.planner import Planner
from kubernetes.builders import make_node, make_pod
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, played

DEEP = "[" * 20_000
NESTED = '{"containers":' * 5_000 + "{}" + "}" * 5_000
DIGITS = "9" * 5_000
HUGE = (1 << 63) - 1


@pytest.mark.parametrize("value", [NESTED, DIGITS], ids=["nested", "digits"])
def test_annotations_of_a_tenant_stop_no_other_gang(value: str) -> None:
    read = [names.PLAN, names.ADMITTED_SIZE, names.ELASTIC, names.MEMORY, names.GPUS]
    read += [names.GANG_SIZE, names.DURATION, names.MIN_STRENGTH, names.JOB_RANK]

    async def play(world: World, _: Replica) -> None:
        for number, name in enumerate(read):
            notes = {name: value}
            world.pod(f"alone-{number}", annotations=notes, gpu=1)
            world.pod(f"there-{number}", annotations=notes, node="n0", memory=1)
            world.gang(f"gang-{number}", 1, annotations=notes)
        world.gang("honest", 2)
        await is_bound(world, "honest", 2)

    played(World(8, 32), play)


@pytest.mark.parametrize("value", ["9" * 200_000, "x," * 100_000], ids=["digits", "words"])
def test_a_long_annotation_is_not_repeated_for_every_node(value: str) -> None:
    """An answer about 5,000 nodes would have a gigabyte, for the extender and kube-scheduler."""
    cluster = Cluster()
    cluster.set_node("n1", make_node("n1", 2))
    planner = Planner(cluster, (ALIQUOT,))
    refused = 0
    for name in (one for one in vars(names).values() if str(one).startswith(f"{names.GROUP}/")):
        pod = make_pod(memory=8, annotations={names.GANG: "g", name: value})
        answer = planner.filter(pod, ["n1"]).refused.get("n1", "")
        refused += bool(answer)
        membership = membership_of(pod)
        assert membership is not None
        assert max(len(answer), len(membership.problem)) < 1500, name
    assert refused > 5


@pytest.mark.parametrize(
    "asked",
    [
        {"memory": HUGE},
        {"memory": 4 * HUGE, "core": 10},
        {"gpu": HUGE},
        {"core": HUGE},
    ],
)
def test_a_gang_that_asks_for_too_much_stops_no_other_gang(asked: dict[str, Any]) -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("huge", 2, **asked)
        world.pod("single", **asked)
        await until(lambda: world.phase("huge") != "")
        world.gang("honest", 2)
        await is_bound(world, "honest", 2)

    played(World(4), play)
