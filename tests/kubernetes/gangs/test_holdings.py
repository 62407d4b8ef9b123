"""Who has what, kept up to date by what has changed: the same as if all were looked at anew."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.gangs.holdings import Holdings
from aliquot.kubernetes.gangs.roster import Roster
from aliquot.kubernetes.names import GANG, GANG_SIZE, PLAN, QUEUE
from aliquot.kubernetes.pods import asks
from aliquot.kubernetes.presets import ALIQUOT
from aliquot.kubernetes.queues.known import Queues
from aliquot.kubernetes.scheduler.cluster import Cluster, Reserved
from aliquot.kubernetes.scheduler.parts import plan_of
from aliquot.kubernetes.scheduler.planner import Planner
from aliquot.placement.queues import Resources, usage
from kubernetes.builders import make_node, make_pod
from kubernetes.queues.builders import make_namespace

NOW = 1000.0
PODS = st.integers(0, 7)
ASKED: tuple[dict[str, Any], ...] = ({"gpu": 1}, {"memory": 40, "core": 30}, {"sgpu": 1})


class Stage:
    """A cluster, its pods and its queues, as they are told."""

    def __init__(self) -> None:
        self.cluster = Cluster(now=lambda: NOW)
        self.planner = Planner(self.cluster)
        self.queues = Queues()
        self.roster = Roster(self.queues.queue_of, lambda pod: asks(pod, (ALIQUOT,)), 60.0)
        self.holdings = Holdings(self.cluster, self.roster, self.queues)
        for name in ("n0", "n1"):
            self.cluster.set_node(name, make_node(name, 3))

    def pod(self, number: int, **changes: Any) -> Pod:
        gang = {GANG: f"g{number % 3}", GANG_SIZE: "3"} if number % 4 else {}
        one = make_pod(f"p{number}", annotations=gang, **ASKED[number % 3])
        meta = msgspec.structs.replace(one.metadata, labels=changes.get("labels", {}))
        return msgspec.structs.replace(one, metadata=meta)

    # --- what happens -----------------------------------------------------------------------------

    def come(self, number: int) -> None:
        self.roster.change(f"uid-p{number}", self.pod(number), NOW)

    def reserve(self, number: int) -> None:
        self.planner.filter(self.pod(number), ["n0", "n1"])

    def bind(self, number: int) -> None:
        one = self.pod(number)
        place = self.cluster.reserved(one.metadata.uid)
        if place is None:
            return
        notes = {**one.metadata.annotations, PLAN: plan_of(place.parts).encode()}
        meta = msgspec.structs.replace(one.metadata, annotations=notes)
        spec = msgspec.structs.replace(one.spec, node_name=place.node)
        bound = msgspec.structs.replace(one, metadata=meta, spec=spec)
        self.cluster.set_pod(one.metadata.uid, bound)
        self.roster.change(one.metadata.uid, bound, NOW)

    def go(self, number: int) -> None:
        uid = f"uid-p{number}"
        self.cluster.set_pod(uid, None)
        self.roster.change(uid, None, NOW)

    def forget(self, number: int) -> None:
        self.cluster.forget(f"uid-p{number}")

    def label(self, number: int) -> None:
        labelled = self.pod(number, labels={QUEUE: f"q{number % 2}"})
        self.roster.change(f"uid-p{number}", labelled, NOW)

    def map_namespace(self, number: int) -> None:
        self.queues.set_namespace("ns", make_namespace("ns", f"q{number}" if number % 2 else ""))

    def lose_node(self, number: int) -> None:
        self.cluster.set_node(f"n{number % 2}", None)

    def gain_node(self, number: int) -> None:
        name = f"n{number % 4}"
        self.cluster.set_node(name, make_node(name, 1 + number % 5))


OPS = st.tuples(
    st.sampled_from(
        ["come", "reserve", "bind", "go", "forget", "label", "map_namespace"] * 3
        + ["lose_node", "gain_node"]
    ),
    PODS,
)


@settings(max_examples=150, deadline=None)
@given(ops=st.lists(OPS, max_size=25), looks=st.integers(1, 5))
def test_what_is_kept_is_what_would_be_found_anew(ops: list[tuple[str, int]], looks: int) -> None:
    stage = Stage()
    for at, (what, number) in enumerate(ops):
        getattr(stage, what)(number)
        if at % looks == 0:
            check(stage)
    check(stage)


def check(stage: Stage) -> None:
    kept, anew = stage.holdings, Holdings(stage.cluster, stage.roster, stage.queues)
    stage.roster.listeners.pop()
    mine = {one.gang.name: one for one in kept.running(NOW)}
    fresh = {one.gang.name: one for one in anew.running(NOW)}
    assert mine == fresh
    assert kept.parties(NOW) == anew.parties(NOW)
    hardware = stage.cluster.chooser.books.hardware
    counted = {queue: one for queue, one in kept.used(NOW).items() if one != Resources()}
    assert counted == usage(mine.values(), hardware)
    some = {"uid-p0", "uid-p1"}
    without = {queue: one for queue, one in kept.used(NOW, some).items() if one != Resources()}
    assert without == usage(kept.running(NOW, some), hardware)


def test_what_is_given_back_leaves_the_books_as_they_were() -> None:
    stage = Stage()
    before = stage.cluster.chooser.books.copy()
    for number in range(6):
        stage.come(number)
        stage.reserve(number)
    books = stage.cluster.chooser.books.copy()
    for one in stage.holdings.running(NOW):
        books.give_gang(one)
    assert books.fingerprint == before.fingerprint


def test_a_pod_that_is_gone_and_still_named_is_expected_to_end_soon() -> None:
    stage = Stage()
    stage.cluster.reserve("uid-x", Reserved("ns/x", "n0", parts_of(stage), math.inf))
    (left,) = stage.holdings.running(NOW)
    assert left.gang.name == "what is left of uid-x"
    assert left.end == NOW + 5


def parts_of(stage: Stage) -> Any:
    found = stage.planner.plan(stage.planner.requests(stage.pod(0)), "n0")
    assert found is not None
    return found
