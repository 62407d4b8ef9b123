"""Pods with GPUs in tests: what they ask for, what their programs see, how they fare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.cluster import Cluster
from cluster.manifests import SLEEP, pod

# What a container's programs are told of their GPUs, and that memory ends where it should.
LOOK = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
count, address = ctypes.c_int(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
totals = []
for device in range(count.value):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    totals.append(total.value)
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), total) == 2
print(json.dumps(totals), flush=True)
"""


def limits(**counts: int) -> dict[str, int]:
    return {f"aliquot.io/{name.replace('_', '-')}": count for name, count in counts.items()}


def run_pod(
    cluster: Cluster, namespace: str, name: str, command: Sequence[str] = SLEEP, **spec: Any
) -> None:
    """A pod that runs when this returns."""
    cluster.apply(pod(name, command, namespace=namespace, **spec))
    cluster.wait_for_pod(name, namespace, "Running", 120)


def delete_pod(cluster: Cluster, namespace: str, *names: str) -> None:
    cluster.kubectl("delete", "pod", *names, f"--namespace={namespace}", timeout=120)


def restarts_of(cluster: Cluster, namespace: str, name: str) -> tuple[str, int]:
    status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    return status["phase"], status["containerStatuses"][0]["restartCount"]
