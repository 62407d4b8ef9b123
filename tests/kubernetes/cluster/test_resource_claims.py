"""What counts while allocations are written and no watch has reported them."""

from __future__ import annotations

import msgspec
import pytest

from aliquot.kubernetes.api import watch
from aliquot.kubernetes.api.dra import ResourceClaim
from aliquot.kubernetes.cluster.cluster import Cluster
from aliquot.kubernetes.cluster.dra import ResourceClaims
from kubernetes.node.dra_objects import claim, result


@pytest.mark.parametrize("written", [True, False])
def test_a_written_allocation_counts_until_a_dead_watch_is_noticed(*, written: bool) -> None:
    times = [0.0]
    known = ResourceClaims(Cluster(), (), "pack", lambda: times[0])
    allocated = msgspec.convert(claim("a", result("GPU-1"), pods=()), ResourceClaim)
    waits = msgspec.structs.replace(allocated, status=type(allocated.status)())
    known.set_claim(None, waits)
    known.assume(allocated, "uid-of-pod")
    if written:
        known.confirm("uid-of-a")
    times[0] = watch.SILENCE + 1
    known.drop_old()
    assert known.get("default", "a") == (allocated if written else waits)
    times[0] = 10 * watch.SILENCE
    known.drop_old()
    assert known.get("default", "a") == waits
