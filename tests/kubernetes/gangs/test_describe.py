"""`aliquot describe gang/NAME` says why a gang waits or is evicted, and until when."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner, Result

from aliquot.cli.app import app
from aliquot.kubernetes.api.names import ELASTIC, JOB, QUEUE
from aliquot.kubernetes.cluster.elastic import Terms
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, running


async def described(world: World, folder: Path, *words: str) -> Result:
    """What it says; it has a loop of its own, in a thread."""
    config: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": world.api.url}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "x",
    }
    file = folder / "config"
    file.write_text(json.dumps(config))
    command = ["describe", *words, f"--kubeconfig={file}"]
    return await asyncio.to_thread(CliRunner().invoke, app, command)


def test_describe_says_why_a_gang_waits_and_until_when(tmp_path: Path) -> None:
    async def play() -> None:
        world = World(4)
        async with running(world):
            world.gang("first", 2, annotations={"aliquot.io/duration": "1h"})
            await is_bound(world, "first", 2)
            world.gang("big", 4)
            await until(lambda: "planned for about" in world.why("big"))
            await until(lambda: world.events("big"))
            waits = (await described(world, tmp_path, "gang/big")).stdout
            assert "Gang:     ns/big\n" in waits
            assert "Phase:    Waiting; all pods exist since" in waits
            assert "Why:      4 GPUs requested; 2 free; planned for about" in waits
            assert "Start:    about " in waits
            assert ", in " in waits
            assert "Size:     4 pods, for 1 h\n" in waits
            runs = (await described(world, tmp_path, "gang/first", "-n", "ns")).stdout
            assert "Topology: one node\n" in runs
            assert "  first-0  n0  GPU-n0-" in runs
            found = (await described(world, tmp_path, "gang/first", "--json")).stdout
            assert json.loads(found)["gang"]["status"]["phase"] == "Bound"
            missing = await described(world, tmp_path, "gang/nobody")
            assert "there is no gang 'nobody' in namespace 'ns'" in str(missing.exception)

    asyncio.run(play())


def test_every_event_of_a_gang_names_its_uid_so_that_kubectl_describe_shows_it() -> None:
    async def play() -> None:
        world = World(2)
        world.queue("own", quota={"gpus": 2})
        world.queue("guest", quota={"gpus": 0})
        async with running(world):
            world.gang("large", 4)  # is told why from its first pass on, before its Gang exists
            world.gang("victim", 2, labels={QUEUE: "guest"}, gpu=1)
            await is_bound(world, "victim", 2)
            world.gang("preemptor", 2, labels={QUEUE: "own"}, gpu=1)
            await until(lambda: "Preempts" in dict(world.events("preemptor")))
            await until(lambda: world.events("large"))
            about = [one["involvedObject"] for one in world.api.all("events")]
            gangs = [one for one in about if one["kind"] == "Gang"]
            assert {"large", "preemptor"} <= {one["name"] for one in gangs}
            assert [one for one in gangs if not one.get("uid")] == []

    asyncio.run(play())


def test_describe_says_why_a_gang_is_evicted_and_when(tmp_path: Path) -> None:
    async def play() -> None:
        world = World(2)
        world.queue("own", quota={"gpus": 2})
        world.queue("guest", quota={"gpus": 0})
        terms = msgspec.json.encode(Terms(least=2, notice=300.0)).decode()
        async with running(world):
            labels = {QUEUE: "guest", JOB: "train"}
            world.gang("train-1", 2, annotations={ELASTIC: terms}, labels=labels, gpu=1)
            await is_bound(world, "train-1", 2)
            assert "Eviction:" not in (await described(world, tmp_path, "gang/train-1")).stdout
            world.gang("preemptor", 2, labels={QUEUE: "own"}, gpu=1)
            await until(lambda: world.eviction_reason("train-1"))
            ends = (await described(world, tmp_path, "gang/train-1")).stdout
            why = "preempted for ns/preemptor: queue guest borrows from the quota of queue own"
            assert f"Eviction: {why}; its workers were notified, and stop about " in ends
            assert " UTC, in " in ends

    asyncio.run(play())
