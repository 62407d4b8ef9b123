"""What pods have by their plans before the kubelet asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.node.books import Books
from aliquot.kubernetes.node.promised import with_promised
from aliquot.kubernetes.node.roster import Roster
from aliquot.kubernetes.node.units import offers_of
from kubernetes.builders import container, make_pod
from kubernetes.node.builders import MEMORY, make_card, make_held

if TYPE_CHECKING:
    from typing import Any

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.plan import Kind

CARDS = [make_card(0), make_card(1)]


def make_books() -> Books:
    return Books(CARDS, offers_of([ALIQUOT]), 2)


def plan(kind: Kind = "sliced", gpus: tuple[str, ...] = (CARDS[0].uuid,)) -> ContainerPlan:
    return ContainerPlan(kind, gpus, 80 * MEMORY_UNIT)


def planned_pod(*containers: Any, plans: dict[str, ContainerPlan], **about: Any) -> Pod:
    notes = {"aliquot.io/plan": Plan(plans).encode()}
    return make_pod("a", *containers, annotations=notes, **about)


def promised(books: Books, *pods: Pod) -> list[int]:
    """Units of memory of each card that are given away or promised."""
    roster = Roster([ALIQUOT], lambda: True)
    for pod in pods:
        roster.heard(None, pod)
    before = books.mark()
    after = with_promised(books, roster.live())
    assert books.mark() == before
    return [after.used(card.uuid).memory // MEMORY_UNIT for card in CARDS]


def test_a_pod_that_waits_has_what_it_asks_for_on_its_plans_cards() -> None:
    pod = planned_pod(plans={"main": plan()}, memory=30)
    assert promised(make_books(), pod) == [30, 0], "and no more, whatever the plan says"


@pytest.mark.parametrize(
    "pod",
    [
        make_pod("a", memory=30),
        make_pod("a", memory=30, annotations={"aliquot.io/plan": "nonsense"}),
        planned_pod(plans={"main": plan()}, memory=30, phase="Running"),
        planned_pod(plans={"main": plan()}, memory=30, phase="Failed"),
        planned_pod(plans={"main": plan("whole")}, memory=30),
        planned_pod(plans={"main": plan(gpus=("GPU-elsewhere",))}, memory=30),
        planned_pod(plans={"main": plan(gpus=tuple(card.uuid for card in CARDS))}, memory=30),
        planned_pod(plans={"other": plan()}, memory=30),
        planned_pod(plans={"main": plan()}, memory=87),
        planned_pod(plans={"main": plan()}, core=30),
    ],
)
def test_nothing_is_promised_that_the_agent_would_not_give(pod: Pod) -> None:
    assert promised(make_books(), pod) == [0, 0]


def test_what_a_container_holds_is_not_promised_again() -> None:
    books = make_books()
    books.take(make_held("sliced", CARDS[1:], "uid-a", memory=30, units={MEMORY: ["m0"]}))
    pods = [container("main", memory=30), container("more", memory=7)]
    pod = planned_pod(*pods, plans={"main": plan(), "more": plan()})
    assert promised(books, pod) == [7, 30]


@pytest.mark.parametrize(("first", "units"), [(40, 40), (20, 30)])
def test_an_init_container_ends_before_the_others_begin(first: int, units: int) -> None:
    init = (container("first", memory=first),)
    plans = {"first": plan(), "main": plan()}
    pod = planned_pod(container("main", memory=30), init=init, plans=plans)
    assert promised(make_books(), pod) == [units, 0]


def test_of_several_pods_those_count_that_fit_together() -> None:
    pods = [
        make_pod(name, memory=50, annotations={"aliquot.io/plan": Plan({"main": plan()}).encode()})
        for name in ("a", "b")
    ]
    assert promised(make_books(), *pods) == [50, 0]
