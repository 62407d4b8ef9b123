"""Builders of Kubernetes objects for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.images import BUSYBOX

# Ends at once when it is told to, which a plain sleep as a container's first process does not.
SLEEP = ("/bin/sh", "-c", "trap exit TERM; sleep 2147483647 & wait")


def pod(
    name: str,
    command: Sequence[str] = SLEEP,
    *,
    image: str = BUSYBOX,
    limits: Mapping[str, str | int] | None = None,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    **spec: object,
) -> dict[str, Any]:
    """A pod of one container, `main`, killed a second after it is deleted. `spec` lies over all."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "resources": {"limits": dict(limits or {})},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def fake_node(
    name: str, capacity: Mapping[str, str | int], labels: Mapping[str, str]
) -> dict[str, Any]:
    """A node that kwok keeps: there is no machine behind it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "kwok", **labels},
        },
        "status": {"capacity": dict(capacity), "allocatable": dict(capacity)},
    }
