"""Where a gang's pods were put and how near that is, by links of GPUs and labels of nodes."""

from __future__ import annotations

import pytest

from kubernetes.builders import make_node, node_json
from kubernetes.extender.replica import Replica, put_node
from kubernetes.gangs.world import World, is_bound, played

CLIQUE, RACK, BLOCK = "nvidia.com/gpu.clique", "aliquot.io/rack", "aliquot.io/block"


def label(world: World, **labels: dict[str, str]) -> None:
    for name, one in labels.items():
        world.api.put("nodes", node_json(name, labels=one))


def topology(world: World, gang: str) -> str:
    found = world.status(gang)
    return found.status.topology if found else ""


def test_the_topology_of_linked_gpus_is_nvlink() -> None:
    async def play(world: World, _: Replica) -> None:
        put_node(world.api, make_node("n0", 4, linked=True))
        world.gang("pair", 2)
        await is_bound(world, "pair", 2)
        assert topology(world, "pair") == "one node, NVLink"
        world.gang("alone", 1)
        await is_bound(world, "alone", 1)
        assert topology(world, "alone") == "one node"

    played(World(4), play)


@pytest.mark.parametrize("kind", [CLIQUE, RACK])
def test_a_gang_is_placed_in_one_domain_if_it_fits(kind: str) -> None:
    async def play(world: World, _: Replica) -> None:
        label(world, n0={kind: "a"}, n1={kind: "b"}, n2={kind: "c"}, n3={kind: "b"})
        world.gang("a", 2)
        await is_bound(world, "a", 2)
        assert set(world.bound("a").values()) == {"n1", "n3"}
        assert topology(world, "a") == "2 nodes of one rack"

    played(World(1, 1, 1, 1), play)


@pytest.mark.parametrize(
    ("blocks", "words"), [(("x", "x", "y"), "2 nodes of one block"), (("x", "y"), "2 blocks")]
)
def test_the_topology_names_racks_and_blocks(blocks: tuple[str, ...], words: str) -> None:
    async def play(world: World, _: Replica) -> None:
        for number, block in enumerate(blocks):
            label(world, **{f"n{number}": {RACK: f"r{number}", BLOCK: block}})
        world.gang("a", 2)
        await is_bound(world, "a", 2)
        assert topology(world, "a") == words

    played(World(*(1,) * len(blocks)), play)
