"""Every way that small gangs can go, and guards that the search would miss if they were wrong.

The rules: a GPU never has two pods, nor two reservations; a gang starts whole or not at all; a
reservation is written before it is acted on, and an eviction before a pod is evicted; the
reservation is written before the eviction that it is for; an abandoned preemption leaves victims
that have all their pods running; a victim that has lost a pod is evicted as a whole; no gang is
incomplete or waits in vain when all rests; and a crash between any two requests changes none of
that, nor where gangs come to rest.

`MUTATIONS` are guards of the state machine, each replaced by a wrong one: the search must fail.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.kubernetes.cluster.membership import GangKey
from aliquot.kubernetes.gangs import lifecycle, resume, state
from aliquot.kubernetes.gangs.lifecycle import Observation
from aliquot.kubernetes.gangs.state import GangState
from kubernetes.gangs.model_check import (
    BEFORE,
    TIMES,
    BrokenRuleError,
    Budget,
    Case,
    Shape,
    explore,
    rests,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, FunctionType, ModuleType

LOW, HIGH, OTHER = (GangKey("ns", name) for name in ("low", "high", "other"))
TWO = ("g0", "g1")
ONE_GANG = {LOW: Shape(2)}
PREEMPTION = {LOW: Shape(2), HIGH: Shape(1, priority=9)}
NOTIFIED = {LOW: Shape(1, notice=1.0), OTHER: Shape(1), HIGH: Shape(2, priority=9)}
ELASTIC = {LOW: Shape(2, notice=1.0, shrinks=True), HIGH: Shape(1, priority=9)}

CASES = {
    "a gang starts": Case(TWO, ONE_GANG, Budget(crashes=1, failures=1)),
    "kube-scheduler rejects a node": Case(TWO, ONE_GANG, Budget(rejections=1, breaks=1)),
    "a member is deleted": Case(TWO, ONE_GANG, Budget(crashes=1, deletions=1)),
    "a member is created again": Case(TWO, ONE_GANG, Budget(deletions=1, creations=1)),
    "a gang is preempted": Case(TWO, PREEMPTION, Budget(crashes=1), running=(LOW,)),
    "a request of a preemption is refused": Case(
        TWO, PREEMPTION, Budget(failures=1), running=(LOW,)
    ),
    "a preemptor is deleted": Case(
        TWO, PREEMPTION, Budget(crashes=1, deletions=1), running=(LOW,), late=(HIGH,)
    ),
    "a preemptor is deleted, and a request is refused": Case(
        TWO, PREEMPTION, Budget(failures=1, deletions=1), running=(LOW,)
    ),
    "a victim is protected": Case(TWO, PREEMPTION, Budget(protections=1), running=(LOW,)),
    "a victim is protected, and the leader dies": Case(
        TWO, PREEMPTION, Budget(crashes=1, protections=1), running=(LOW,)
    ),
    "a victim is created again": Case(TWO, PREEMPTION, Budget(creations=1), running=(LOW,)),
    "a gang that is starting is preempted": Case(TWO, PREEMPTION, Budget(), late=(HIGH,)),
    "one of two victims is notified": Case(TWO, NOTIFIED, Budget(crashes=1), running=(LOW, OTHER)),
    "an elastic job is asked to shrink": Case(TWO, ELASTIC, Budget(crashes=1), running=(LOW,)),
}


def searched(case: Case) -> set[object]:
    """Where gangs come to rest from every point that can be reached."""
    known: dict[object, object] = {}
    return {rests(case, point, known) for point in explore(case).values()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_rules_hold_at_every_point_and_gangs_come_to_rest(case: Case) -> None:
    ends = searched(case)
    assert ends
    if case.budget.crashes:  # a crash changes nothing
        assert searched(replace(case, budget=replace(case.budget, crashes=0))) == ends


# --- wrong guards ---------------------------------------------------------------------------------

MUTATIONS: dict[str, tuple[ModuleType, str, str, str]] = {
    "a place that is not written is open": (
        state,
        "self.written.get(uid) == place and not self.victims",
        "not self.victims",
        "a gang starts",
    ),
    "a place is open though a victim holds it": (
        state,
        "self.written.get(uid) == place and not self.victims",
        "self.written.get(uid) == place",
        "a gang is preempted",
    ),
    "a pod is evicted though that is not written": (
        state,
        "return self.written and now >= self.ends_at",
        "return now >= self.ends_at",
        "a request of a preemption is refused",
    ),
    "a pod is evicted before the notice is over": (
        state,
        "return self.written and now >= self.ends_at",
        "return self.written",
        "an elastic job is asked to shrink",
    ),
    "a victim that has lost a pod counts as whole": (
        state,
        "return active < self.pods",
        "return False",
        "a preemptor is deleted, and a request is refused",
    ),
    "a victim that is whole counts as having lost a pod": (
        state,
        "return active < self.pods",
        "return True",
        "a preemptor is deleted, and a request is refused",
    ),
    "a gang is whole with one member less": (
        state,
        "len(self.had_nodes) < wanted",
        "len(self.had_nodes) < wanted - 1",
        "a member is deleted",
    ),
    "victims are not waited for": (
        lifecycle,
        "left = gang.reservation.victims & seen.held",
        "left = frozenset()",
        "a gang is preempted",
    ),
    "a new leader does not evict the victims of a reservation": (
        resume,
        "for other in victims:",
        "for other in ():",
        "a gang is preempted",
    ),
    "an incomplete gang is not evicted": (
        lifecycle,
        "return incomplete and late and gang.eviction is None",
        "return False",
        "a member is deleted",
    ),
    "a gang without active pods goes on as it was": (
        lifecycle,
        "if not seen.active and (not step.gang.has_places or step.gang.eviction is not None):",
        "if False:",
        "a victim is created again",
    ),
    "places that are given up stay counted": (
        lifecycle,
        "return Step(after, (ReleasePlaces(tuple(gang.reservation.places), why),))",
        "return Step(after, ())",
        "kube-scheduler rejects a node",
    ),
    "an abandoned preemption evicts its victims": (
        lifecycle,
        "if is_wanted or not pods.every.isdisjoint(victims):",
        "if True:",
        "a preemptor is deleted, and a request is refused",
    ),
    "the eviction of an incomplete gang is cancelled": (
        lifecycle,
        "if eviction is None or eviction.preemptor is None or eviction",
        "if eviction is None or eviction",
        "a member is deleted",
    ),
    "an eviction is written before its reservation": (
        lifecycle,
        "return preemptor is None or preemptor.reservation.is_written",
        "return True",
        "a request of a preemption is refused",
    ),
    "a victim is evicted while another one has to wait": (
        lifecycle,
        "not_yet |= gang.reservation.victims",
        "pass",
        "one of two victims is notified",
    ),
    "a new leader starts a gang that has lost a member": (
        resume,
        "return not pods.active and len(places) < sum",
        "return pods.active and len(places) < sum",
        "a member is deleted",
    ),
    "a reservation is written though a member was deleted": (
        lifecycle,
        "if not pods.active and not pods.every.issuperset(gang.reservation.places):",
        "if False:",
        "a member is deleted",
    ),
    "a new leader does not go on with an eviction": (
        resume,
        "if begun and status.eviction_reason:",
        "if False:",
        "a gang is preempted",
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_search_finds_a_wrong_guard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new, case = MUTATIONS[name]
    mutate(monkeypatch, module, old, new)
    with pytest.raises((BrokenRuleError, AssertionError)):
        checked(CASES[case])


def checked(case: Case) -> None:
    ends = searched(case)
    if case.budget.crashes:
        assert searched(replace(case, budget=replace(case.budget, crashes=0))) == ends


def mutate(patch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Replace the code of all functions of a module by that of its changed source."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} is not one guard"
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), module.__file__ or "", "exec"), changed)  # noqa: S102
    functions = dict(functions_of(vars(module)))
    for name, function in functions_of(changed):
        patch.setattr(functions[name], "__code__", function.__code__)


def functions_of(names: dict[str, Any]) -> Iterator[tuple[str, FunctionType]]:
    """The functions and methods that a module defines."""
    for name, one in list(names.items()):
        if inspect.isfunction(one) and one.__module__ == names["__name__"]:
            yield name, one
        elif inspect.isclass(one) and one.__module__ == names["__name__"] and not is_protocol(one):
            for method, part in vars(one).items():
                function = part.fget if isinstance(part, property) else part
                if inspect.isfunction(function) and not method.startswith("__"):
                    yield f"{name}.{method}", function


def is_protocol(one: type) -> bool:
    return bool(getattr(one, "_is_protocol", False))


# --- coverage -------------------------------------------------------------------------------------

COVERING = {
    "a gang starts": Budget(crashes=1, breaks=1),
    "kube-scheduler rejects a node": Budget(rejections=1, breaks=1),
    "a member is deleted": Budget(crashes=1, deletions=1),
    "a gang is preempted": Budget(crashes=1),
    "a victim is protected": Budget(protections=1),
    "a preemptor is deleted": Budget(deletions=1),
    "a gang that is starting is preempted": Budget(),
    "an elastic job is asked to shrink": Budget(),
    "one of two victims is notified": Budget(),
}


@pytest.mark.timeout(600)
def test_the_search_covers_every_transition() -> None:
    """Every line of the state machine runs."""
    modules = (lifecycle, resume, state)
    wanted = {code: lines_of(code) for module in modules for code in codes_of(module)}
    seen: dict[CodeType, set[int]] = {code: set() for code in wanted}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        lines = seen.get(frame.f_code)
        if lines is None:
            return None
        lines.add(frame.f_lineno)
        return None if lines >= wanted[frame.f_code] else trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for name, budget in COVERING.items():
            explore(replace(CASES[name], budget=budget))
        without_times()
    finally:
        sys.settrace(before)
    missed = {
        f"{code.co_qualname}:{line}"
        for code, lines in wanted.items()
        for line in lines - seen[code]
    }
    assert not missed, sorted(missed)


def without_times() -> None:
    """What the search leaves out: gangs of unknown size, times that are set already."""
    gang = lifecycle.evict(lifecycle.gather(GangState(LOW), 1.0), "first", BEFORE, 1)
    assert lifecycle.gather(gang, 2.0) is gang
    assert lifecycle.evict(gang, "second", BEFORE, 1) is gang
    seen = Observation(active=frozenset({"a"}), bound=frozenset({"a"}))
    step = lifecycle.advance(GangState(LOW), seen, TIMES, BEFORE)
    assert not step.gang.progress.whole_once
    assert step.gang.reason.startswith("1 of its pods have nodes")


def codes_of(module: ModuleType) -> list[CodeType]:
    return [function.__code__ for _, function in functions_of(vars(module))]


def lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None} - {code.co_firstlineno}
