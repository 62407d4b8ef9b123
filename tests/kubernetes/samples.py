"""What the programs of a commit write, kept for the programs of later ones to read.

    PYTHONPATH=tests .venv/bin/python -m kubernetes.samples COMMIT

It runs that commit's programs, with the fakes of its own tests, and writes `samples/COMMIT.json`:
the checkpoint of a node's agent, the objects of a cluster, the annotations of pods, and the pool's
database as SQL. A sample is never changed to fit the code (docs/upgrades.md). To add one, make it
from the last commit of a release.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from aliquot import devices

ROOT = Path(__file__).parents[2]
SAMPLES = Path(__file__).with_name("samples")

# The commit's packages before those that are installed.
_FIRST = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "ScikitBuild" not in type(one).__name__]
sys.path[:0] = {!r}
"""

# Runs with that commit's code and tests.
_WRITE = """
import asyncio, json, sqlite3, subprocess, sys, time
from pathlib import Path
from kubernetes.builders import make_pod
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, played
from kubernetes.jobs.job_cluster import JobCluster
from kubernetes.node.rig import on_node

folder, found = Path(sys.argv[1]), {}

async def gangs(world, _):
    world.queue("team", quota={"gpus": 2, "memory": "100Gi"}, namespaces=["ns"])
    world.gang("bound", 2, labels={"aliquot.io/queue": "team"}, gpu=1)
    await is_bound(world, "bound", 2)
    world.gang("waiting", 8, labels={"aliquot.io/queue": "team"}, gpu=1)
    await until(lambda: world.why("waiting") and world.phase("waiting") != "Gathering")
    team = lambda: world.api.objects["queues", "", "team"].get("status", {})
    await until(lambda: team().get("running", {}).get("pods") == 2, 30)
    for plural in ("gangs", "queues", "pods"):
        found[plural] = world.api.all(plural)

async def jobs():
    cluster = JobCluster()
    cluster.submit(least=1, most=2)
    cluster.submit("done", least=1, most=1)
    await cluster.go(4)
    cluster.exit("done-0", 0)
    await cluster.go(4)
    found["elasticjobs"] = cluster.api.all("elasticjobs")

async def agent(node):
    for pod in (make_pod("slice", memory=10, core=20), make_pod("whole", gpu=1),
                make_pod("shared", sgpu=2)):
        node.bind(pod)
        await node.run(pod)
    await node.until(lambda: node.gpunode_memory() > 0)
    await node.until(lambda: sum(len(one.get("grants", ())) for one in node.gpunode()["gpus"]) == 4)
    found["gpunode"] = node.gpunode()
    found["node.json"] = json.loads((node.home / "node.json").read_text("utf-8"))

def pool(state):
    def aliquot(*arguments):
        return subprocess.check_output(["aliquot", *arguments], text=True)
    aliquot("up", "--detach")
    aliquot("submit", "--name", "done", "--memory", "1GiB", "--", "true")
    aliquot("submit", "--name", "sweep", "--array", "0-1", "--memory", "1GiB", "--", "sleep", "600")
    aliquot("submit", "--name", "large", "--gpus", "1", "--after", "sweep-0", "--", "true")
    while "Succeeded" not in (said := aliquot("jobs", "--all")) or said.count("Running") < 2:
        time.sleep(0.1)
    (path,) = [one for one in state.rglob("*.sqlite")]
    with sqlite3.connect(path) as database:
        found["pool.sql"] = list(database.iterdump())
        found["pool.version"] = database.execute("PRAGMA user_version").fetchone()[0]
    aliquot("cancel", "sweep")
    aliquot("down")

played(World(4, 4), gangs)
asyncio.run(jobs())
on_node(agent, folder)
pool(Path(sys.argv[2]))
Path(sys.argv[3]).write_text(json.dumps(found, indent=1, sort_keys=True) + "\\n", "utf-8")
"""


def write(commit: str) -> Path:
    """Write the sample of a commit; where it is."""
    git = ["git", "-C", str(ROOT)]
    name = subprocess.check_output([*git, "rev-parse", "--short=12", commit], text=True).strip()
    SAMPLES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="al-", dir="/tmp") as text:
        folder = Path(text)
        archive = folder / "archive.tar"
        subprocess.run([*git, "archive", f"--output={archive}", commit, "src", "tests"], check=True)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        shutil.copytree(devices.native_dir(), folder / "src" / "aliquot" / "_native")
        paths = [str(folder / "src"), str(folder / "tests")]
        (folder / "sitecustomize.py").write_text(_FIRST.format(paths), "utf-8")
        for each in ("n", "state"):
            (folder / each).mkdir()
        target = SAMPLES / f"{name}.json"
        environment = {  # the pool keeps it with its jobs
            "PYTHONPATH": str(folder),
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "ALIQUOT_STATE": str(folder / "state"),
            "ALIQUOT_SIMULATE": "t4:4",
        }
        command = [
            sys.executable,
            "-c",
            _WRITE,
            *map(str, (folder / "n", folder / "state", target)),
        ]
        subprocess.run(command, env=environment, check=True, cwd=folder)
        written = target.read_text("utf-8")
    for path, instead in ((text, "/sample"), (str(ROOT), "/aliquot")):
        written = written.replace(path, instead)
    target.write_text(written, "utf-8")
    return target


def samples() -> dict[str, dict[str, Any]]:
    """All samples, by their commits."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in SAMPLES.glob("*.json")}


if __name__ == "__main__":
    sys.stdout.write(f"{write(sys.argv[1])}\n")
