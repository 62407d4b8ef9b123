"""What the status of a queue says."""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api import queue as spec
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.queues.status import QueueUsage, statuses
from aliquot.placement.queues.quota import Resources
from kubernetes.queues.builders import GIB, GPU_BYTES, know, make_queue

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z


def one_of(
    known: Queues, name: str, loads: dict[str, QueueUsage], now: float = NOON
) -> spec.QueueStatus:
    return statuses(known, loads, now)[name]


def test_a_status_has_what_a_queue_and_all_below_use_and_borrow() -> None:
    known = know(
        make_queue("top"), make_queue("a", "top", quota=1), make_queue("b", "top", quota=2)
    )
    loads = {
        "a": QueueUsage(
            Resources(2500, 2 * GPU_BYTES), pods=3, gangs=1, waiting_pods=2, since=NOON - 60
        ),
        "b": QueueUsage(
            Resources(1000, GPU_BYTES), pods=1, waiting_pods=8, waiting_gangs=1, since=NOON - 90
        ),
        "top": QueueUsage(Resources(0, 10 * GIB), pods=1),
        "default": QueueUsage(Resources(9000, 9 * GPU_BYTES), pods=9),
    }
    top = one_of(known, "top", loads)
    assert top.used == spec.Used("3.5", "250Gi", 350)
    assert top.borrowed == spec.Used("0.5", "10Gi", 50)
    assert top.running == spec.RunningCounts(5, 1)
    assert top.waiting == spec.WaitingCounts(10, 1, "2026-11-15T11:58:30Z")
    assert one_of(known, "a", loads).borrowed == spec.Used("1.5", "80Gi", 150)
    assert one_of(known, "b", loads).borrowed == spec.Used()
    assert set(statuses(known, loads, NOON)) == {"top", "a", "b"}


def test_used_gpus_are_what_counts_against_a_bound_in_gpus() -> None:
    """A slice of memory alone is a part of a GPU as well; it is never rounded down."""
    known = know(make_queue("a", quota=0))
    for has, gpus in [
        (Resources(0, GPU_BYTES // 2), "0.5"),
        (Resources(300, GPU_BYTES // 8), "0.3"),
        (Resources(1000, 16 * GIB), "1"),
        (Resources(0, 1), "0.001"),
        (Resources(), "0"),
    ]:
        assert one_of(known, "a", {"a": QueueUsage(has)}).used.gpus == gpus


def test_a_mistake_is_a_condition_that_keeps_its_time() -> None:
    known = know(make_queue("a", "nobody"), make_queue("b", namespaces=("n",)))
    first = one_of(known, "a", {})
    ready, doubtful = first.conditions
    assert (ready.type, ready.status, ready.reason) == ("Ready", "False", "ParentNotFound")
    assert ready.message == known.problem_of("a")
    assert (doubtful.type, doubtful.status, doubtful.message) == ("Misconfigured", "False", "")
    told = msgspec.structs.replace(known.objects["a"], status=first)
    known.set_queue("a", told)
    assert one_of(known, "a", {}, NOON + 60) == first
    known.set_queue("nobody", make_queue("nobody", namespaces=("n",)))
    later = one_of(known, "a", {}, NOON + 60).conditions
    assert (later[0].status, later[0].last_transition_time) == ("True", "2026-11-15T12:01:00Z")
    assert later[1] == doubtful
    assert one_of(known, "b", {}).conditions[1].status == "True"
