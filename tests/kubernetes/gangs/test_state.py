"""What is known of a gang, and what follows from it."""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import GANG, GANG_SIZE
from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
from aliquot.kubernetes.cluster.cluster import Cluster
from aliquot.kubernetes.cluster.membership import GangKey
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.cluster.workloads import Workloads
from aliquot.kubernetes.gangs.reservations import Reservations, Times
from aliquot.kubernetes.gangs.state import FIRST_PAUSE, GangState
from kubernetes.builders import make_pod

NOW = 1000.0


def test_elastic_jobs_are_waited_for_until_one_time_whoever_is_asked() -> None:
    gang = GangState(GangKey("ns", "g"))
    gang.ask({"ns/a": 10.0}, NOW)
    gang.ask({"ns/b": 300.0}, NOW + 9)
    assert not gang.has_waited(NOW + 9)
    assert gang.has_waited(NOW + 10)
    gang.forget_bars(NOW + 1e6)
    assert gang.has_waited(NOW + 1e6)
    gang.reserve({}, NOW + 1e6)
    assert not gang.has_waited(NOW + 1e6)


def test_pauses_grow_with_the_tries_and_begin_anew_when_it_is_whole() -> None:
    gang = GangState(GangKey("ns", "g"))
    pod = make_pod("g-0", annotations={GANG: "g", GANG_SIZE: "1"}, gpu=1)
    gang.pods = {pod.metadata.uid: pod}
    pauses = []
    for _ in range(3):
        gang.give_up("nobody came", NOW)
        pauses.append(gang.not_before - NOW)
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    bound = msgspec.structs.replace(pod.spec, node_name="n0")
    gang.pods = {pod.metadata.uid: msgspec.structs.replace(pod, spec=bound)}
    gang.version += 1
    cluster, queues = Cluster(), Queues()
    holdings = WorkloadAllocations(
        cluster, Workloads(queues.queue_of, lambda _: True, 60.0), queues
    )
    Reservations(cluster, holdings, Times()).settle(gang, None, NOW)
    assert gang.phase is Phase.BOUND
    gang.give_up("nobody came", NOW)
    assert gang.not_before - NOW == FIRST_PAUSE
