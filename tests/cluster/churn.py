"""Pods that come and go while something breaks: each checks that it has its GPU, and ends.

A pod that the kubelet refuses has never run: a controller would make another, and so does this.
Nor has one whose start containerd calls off because the kubelet that asked for it was stopped. A
pod that runs without its GPU, or ends otherwise than well, is a failure at once.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aliquot import devices
from aliquot.devices import CUDA
from aliquot.kubernetes.api.names import MEMORY_UNIT
from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.manifests import pod
from cluster.tenants import delete_pod, limits, restarts_of, run_pod
from containers.probe_images import parse_probe, probe_image

UNITS, CORE = 9, 5
_IMAGE = "aliquot.test/churn:1"
_WITHOUT_GPU = 42
_SEES = f"probe {CUDA} - | grep -q 'init=0 .*memory={UNITS * MEMORY_UNIT} '"
_RESIDENTS = ("resident-0", "resident-1")


class Churn:
    """A few residents that stay all the time, and `parallel` pods at once that come and go."""

    def __init__(
        self, cluster: Cluster, namespace: str, agent: Agent, folder: Path, parallel: int = 6
    ) -> None:
        cluster.load(probe_image(_IMAGE, devices.native_dir(), folder))
        self._cluster = cluster
        self._namespace = namespace
        self._agent = agent
        self._parallel = parallel
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._random = random.Random(5)  # noqa: S311 - chance, not secrets
        self._made = 0
        self.succeeded = 0
        self.refused = 0
        look = ("/bin/sh", "-c", f"while probe {CUDA} -; do sleep 1; done")
        for name in _RESIDENTS:
            run_pod(
                cluster,
                namespace,
                name,
                look,
                image=_IMAGE,
                limits=limits(vcuda_memory=UNITS, vcuda_core=CORE),
            )

    def go_on(self, until: Callable[[], object], what: str, seconds: float = 300.0) -> None:
        """Keep pods coming and going until that is true."""

        def so() -> object:
            self._look(more=True)
            return until()

        self._cluster.wait_until(so, seconds, what, every=0.1)

    def go_on_to(self, count: int) -> None:
        """Keep pods coming and going until so many have ended well."""
        self.go_on(lambda: self.succeeded >= count, f"{count} pods have ended well")

    def go_on_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.go_on(lambda: time.monotonic() >= end, f"{seconds} s have passed")

    def finish(self) -> None:
        """Wait for all pods; check that none was lost, and that nothing is left behind."""
        self._cluster.wait_until(lambda: not self._look(more=False), 300, "all pods have ended")
        for name in _RESIDENTS:
            assert restarts_of(self._cluster, self._namespace, name) == ("Running", 0)
            said = self._cluster.kubectl("logs", name, f"--namespace={self._namespace}")
            seen = [parse_probe(line) for line in said.splitlines()]
            assert all(one["init"] == 0 for one in seen), said
            assert {one["memory"] for one in seen} == {UNITS * MEMORY_UNIT}
        agent = self._agent
        agent.until(lambda: set(agent.holders()) == set(_RESIDENTS), "only residents hold GPUs")
        agent.until(lambda: len(agent.grants()) == len(_RESIDENTS), "and have grants")
        delete_pod(self._cluster, self._namespace, *_RESIDENTS)
        agent.until(lambda: not agent.grants() and not agent.holders(), "all is given back")

    def _look(self, *, more: bool) -> int:
        """Take away the pods that have ended, make new ones; how many there are."""
        pods = self._cluster.api.get(self._path)["items"]
        live = [one for one in pods if one["metadata"]["name"] not in _RESIDENTS]
        for one in [one for one in live if one["status"]["phase"] in {"Succeeded", "Failed"}]:
            self._count(one)
            self._cluster.api.delete(f"{self._path}/{one['metadata']['name']}")
            live.remove(one)
        while more and len(live) < self._parallel:
            live.append(self._make())
        return len(live)

    def _make(self) -> Any:
        self._made += 1
        seconds = self._random.choice((0, 1, 3))
        command = ("/bin/sh", "-c", f"{_SEES} || exit {_WITHOUT_GPU}; sleep {seconds}")
        return self._cluster.api.create(
            self._path,
            pod(
                f"guest-{self._made}",
                command,
                image=_IMAGE,
                namespace=self._namespace,
                limits=limits(vcuda_memory=UNITS, vcuda_core=CORE),
            ),
        )

    def _count(self, one: Any) -> None:
        status = one["status"]
        told = status.get("containerStatuses", ())
        ran = [each for each in told if each.get("containerID") and not _was_called_off(each)]
        if status["phase"] == "Succeeded":
            self.succeeded += 1
        elif not ran:
            self.refused += 1
        else:
            code = ran[0]["state"].get("terminated", {}).get("exitCode")
            why = "without its GPU" if code == _WITHOUT_GPU else "and was lost"
            raise AssertionError(f"a pod was admitted {why}: {json.dumps(status)}")


def _was_called_off(container: Any) -> bool:
    ended = container["state"].get("terminated", {})
    return ended.get("reason") == "StartError" and "context canceled" in ended.get("message", "")
