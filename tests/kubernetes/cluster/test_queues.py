"""Which queue a pod is in, faults and warnings of queues, and the bounds that `placement` gets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api.objects import QueueObject
from aliquot.kubernetes.api.queue import LEVELS
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.placement.queues.quota import Bound, Tree
from kubernetes.queues.builders import GIB, GPU_BYTES, know, make_namespace, make_queue, pod_in

NAMES = ("a", "b", "c", "d", "e", "default")
QUICK = settings(max_examples=80, deadline=None)


# --- which queue ----------------------------------------------------------------------------------


def test_a_pods_label_precedes_its_namespaces_label_and_spec_namespaces() -> None:
    known = know(make_queue("by-name", namespaces=("ns",)), make_queue("by-label"))
    assert known.queue_of(pod_in("elsewhere")) == "default"
    assert known.queue_of(pod_in("ns")) == "by-name"
    known.set_namespace("ns", make_namespace("ns", "by-label"))
    assert known.queue_of(pod_in("ns")) == "by-label"
    assert known.queue_of(pod_in("ns", "own")) == "own"
    known.set_namespace("ns", make_namespace("ns"))
    assert known.queue_of(pod_in("ns")) == "by-name"
    for label in ("", "by-label", "", None, ""):  # one that is empty says nothing
        known.set_namespace("ns", make_namespace("ns", label))
        assert known.queue_of(pod_in("ns")) == (label or "by-name")
    known.set_queue("by-name", None)
    assert known.queue_of(pod_in("ns")) == "default"


@pytest.mark.parametrize("told", [("old", "new"), ("new", "old")])
def test_of_two_queues_for_one_namespace_the_older_gets_it_and_both_are_warned(
    told: tuple[str, str],
) -> None:
    every = {
        "new": make_queue("new", namespaces=("ns",), made="2026-11-15T12:00:00Z"),
        "old": make_queue("old", namespaces=("ns",), made="2026-11-01T12:00:00Z"),
    }
    known = know(*(every[name] for name in told))
    assert known.queue_of(pod_in("ns")) == "old"
    assert known.problem_of("old") == known.problem_of("new") == ""
    assert known.warnings_of("new") == ("it names the namespace 'ns', which belongs to 'old'",)
    assert known.warnings_of("old") == ("'new' names the namespace 'ns', which belongs to 'old'",)


def test_a_namespace_of_two_queues_is_no_mistake_where_its_label_decides() -> None:
    known = know(make_queue("a", namespaces=("ns",)), make_queue("b", namespaces=("ns",)))
    known.set_namespace("ns", make_namespace("ns", "b"))
    assert known.warnings_of("a") == known.warnings_of("b") == ()
    assert known.queue_of(pod_in("ns")) == "b"
    assert known.refusal_of(pod_in("ns", "a")) == known.refusal_of(pod_in("ns")) == ""


def test_a_queue_accepts_the_namespaces_of_the_nearest_list_above_it() -> None:
    known = know(
        make_queue("top", namespaces=("a", "b")),
        make_queue("middle", "top"),
        make_queue("low", "middle", namespaces=("c",)),
        make_queue("open"),
        make_queue("default", namespaces=("a",)),
    )
    accepted = {
        name: {space for space in "abc" if known.accepts(name, space)}
        for name in ("top", "middle", "low", "open", "default", "missing")
    }
    assert accepted == {
        "top": {"a", "b"},
        "middle": {"a", "b"},
        "low": {"c"},
        "open": {"a", "b", "c"},
        "default": {"a"},
        "missing": {"a", "b", "c"},
    }
    assert known.refusal_of(pod_in("c", "middle")) == (
        "queue 'middle' does not accept pods of namespace 'c': queue 'top' is above it, and its"
        " spec.namespaces has only others. Name another queue with the label aliquot.io/queue of"
        " the pod, or let an administrator add the namespace to queue 'top'"
    )
    assert known.queue_of(pod_in("c", "middle")) == "low"
    assert known.queue_of(pod_in("d", "middle")) == "default"
    assert "'default' does not accept" in known.refusal_of(pod_in("d"))


def test_the_version_counts_what_may_put_pods_into_other_queues() -> None:
    known = know(make_queue("a", namespaces=("ns",)))
    seen = [known.version]

    def is_new() -> bool:
        seen.append(known.version)
        return seen[-1] != seen[-2]

    known.set_queue("a", make_queue("a", namespaces=("ns",)))
    assert not is_new()
    known.set_queue("a", make_queue("a", namespaces=("other",)))
    assert is_new()
    known.set_namespace("ns", make_namespace("ns", "a"))
    assert is_new()
    known.set_namespace("ns", make_namespace("ns", "a"))
    assert not is_new()
    known.set_namespace("ns", None)
    assert is_new()
    known.set_largest_gpu(2 * GPU_BYTES)
    assert is_new()


# --- faults and warnings --------------------------------------------------------------------------


def test_the_message_about_a_missing_queue_lists_existing_ones() -> None:
    known = know(*(make_queue(name) for name in "abc"))
    assert known.problem_of("a") == known.problem_of("default") == ""
    assert known.problem_of("x") == (
        "queue 'x' does not exist. Create it, or change the label aliquot.io/queue of the pod or of"
        " its namespace; there are: a, b, c, default"
    )
    many = know(*(make_queue(f"q{number}") for number in range(9)))
    assert many.problem_of("x").endswith("default, q0, q1, q2, q3, q4, q5, q6, …")


def test_a_missing_parent_stops_all_queues_below() -> None:
    known = know(make_queue("a", "nobody"), make_queue("b", "a"), make_queue("c"))
    hint = "Create queue 'nobody', or change spec.parent of 'a'."
    assert known.problem_of("a") == (
        f"queue 'a' has the parent 'nobody', which does not exist. {hint}"
    )
    assert known.problem_of("b") == (
        f"queue 'b' is below 'a', which has the parent 'nobody', which does not exist. {hint}"
    )
    assert known.problem_of("c") == ""
    known.set_queue("nobody", make_queue("nobody"))
    assert known.problem_of("a") == known.problem_of("b") == ""


def test_the_default_queue_may_be_a_parent_without_an_object() -> None:
    known = know(make_queue("a", "default", quota=2))
    assert known.problem_of("a") == ""
    assert known.queues()["default"].quota == Bound(2000, 2 * GPU_BYTES)


def test_a_circle_stops_its_queues_and_all_below_and_is_listed() -> None:
    known = know(
        make_queue("a", "b"), make_queue("b", "c"), make_queue("c", "a"), make_queue("d", "b")
    )
    assert known.problem_of("b") == (
        "queue 'b' is below itself: b below c below a below b. Change spec.parent of one of them."
    )
    assert known.problem_of("d").startswith(
        "queue 'd' is below 'b', which is below itself: b below"
    )
    assert {one.parent for name, one in known.queues().items() if name != "d"} == {""}
    known.set_queue("c", make_queue("c"))
    assert not any(map(known.problem_of, "abcd"))


def test_a_queue_below_itself_is_a_circle() -> None:
    assert "is below itself: a below a" in know(make_queue("a", "a")).problem_of("a")


def test_a_tree_that_is_too_deep_stops_where_it_is() -> None:
    chain = [make_queue("q0"), *(make_queue(f"q{i}", f"q{i - 1}") for i in range(1, 2000))]
    known = know(*chain)
    assert known.problem_of(f"q{LEVELS - 1}") == ""
    assert f"is below {LEVELS} other queues" in known.problem_of(f"q{LEVELS}")
    assert known.problem_of("q1999") != ""
    tree = Tree(known.queues())
    assert max(len(tree.path(name)) for name in known.queues()) <= LEVELS + 1


def test_an_invalid_spec_is_reported() -> None:
    known = know(make_queue("a", quota={"memory": "much"}), make_queue("b", weight=0))
    assert "queue 'a' has an invalid spec: 'much' is no quantity" in known.problem_of("a")
    assert "queue 'b' has an invalid spec: " in known.problem_of("b")


def test_a_quota_above_the_parents_gets_a_warning_and_works() -> None:
    known = know(make_queue("top", quota=4), make_queue("a", "top", quota=6))
    assert known.problem_of("a") == ""
    (doubt,) = known.warnings_of("a")
    assert doubt == (
        "its quota of 600 % of compute is larger than the 400 % of its parent 'top': the parent's"
        " quota counts for all queues below it"
    )
    (doubt,) = known.warnings_of("top")
    assert doubt == (
        "the queues below it have a total quota of 600 % of compute, and it has 400 %: they cannot"
        " all use their quotas at the same time"
    )


def test_a_quota_above_the_limit_gets_a_warning_even_in_other_units() -> None:
    known = know(make_queue("a", quota=4, limit={"compute": 300}))
    assert "it can never use all of its quota" in known.warnings_of("a")[0]


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "bound"),
    [
        ({"gpus": 4}, Bound(4000, 4 * GPU_BYTES)),
        ({"gpus": 0}, Bound(0, 0)),
        ({"compute": 250}, Bound(2500, None)),
        ({"memory": "100Gi"}, Bound(None, 100 * GIB)),
        ({"memory": "1.5Ti"}, Bound(None, 1536 * GIB)),
        ({"gpus": 4, "memory": "100Gi"}, Bound(4000, 100 * GIB)),
        ({"gpus": 4, "compute": 200}, Bound(2000, 4 * GPU_BYTES)),
        ({"compute": 200, "memory": "0"}, Bound(2000, 0)),
    ],
)
def test_all_given_amounts_bound_a_queue(written: dict[str, Any], bound: Bound) -> None:
    known = know(make_queue("a", quota=written, limit=written))
    assert known.queues()["a"].quota == known.queues()["a"].limit == bound


def test_without_a_quota_a_queue_owns_nothing_and_without_a_limit_it_is_unbounded() -> None:
    one = know(make_queue("a")).queues()["a"]
    assert (one.quota, one.limit, one.weight, one.parent) == (Bound(0, 0), Bound(), 1, "")


def test_a_bound_in_gpus_does_not_bound_memory_before_the_first_gpu() -> None:
    known = know(make_queue("a", limit=2), largest_gpu=0)
    assert known.queues()["a"].limit == Bound(2000, None)
    known.set_largest_gpu(GPU_BYTES)
    assert known.queues()["a"].limit == Bound(2000, 2 * GPU_BYTES)


def test_a_queue_without_a_quota_has_the_sum_of_those_below() -> None:
    known = know(
        make_queue("top"),
        make_queue("middle", "top"),
        make_queue("a", "middle", quota=2),
        make_queue("b", "top", quota={"compute": 150}),
        make_queue("c", "top"),
    )
    assert known.queues()["middle"].quota == Bound(2000, 2 * GPU_BYTES)
    assert known.queues()["top"].quota == Bound(3500, None)
    assert known.warnings_of("top") == ()


# --- what always holds ----------------------------------------------------------------------------


AMOUNTS = [
    None,
    {"gpus": 0},
    {"gpus": 2},
    {"gpus": 4, "compute": 150},
    {"compute": 300},
    {"memory": "160Gi"},
    {"memory": "nonsense"},
]


def queues(name: str) -> st.SearchStrategy[QueueObject]:
    return st.builds(
        make_queue,
        st.just(name),
        st.sampled_from(["", "", *NAMES, "nobody"]),
        quota=st.sampled_from(AMOUNTS),
        limit=st.sampled_from(AMOUNTS),
        namespaces=st.sampled_from([(), ("n1",), ("n1", "n2")]),
        made=st.sampled_from(["2026-11-15T12:00:00Z", "2026-11-15T13:00:00Z"]),
    )


def sets() -> st.SearchStrategy[dict[str, QueueObject]]:
    return st.fixed_dictionaries({}, optional={name: queues(name) for name in NAMES})


def all_of(known: Queues) -> object:
    return (
        dict(known.queues()),
        [known.problem_of(name) for name in (*NAMES, "nobody")],
        [known.warnings_of(name) for name in NAMES],
        [known.queue_of(pod_in(name)) for name in ("n1", "n2", "n3")],
        [known.refusal_of(pod_in("n2", name)) for name in (*NAMES, "nobody")],
    )


@QUICK
@given(sets(), sets(), st.permutations(NAMES), st.permutations(NAMES), st.data())
def test_the_order_of_changes_does_not_matter(
    wanted: dict[str, QueueObject],
    before: dict[str, QueueObject],
    order: list[str],
    other: list[str],
    data: st.DataObject,
) -> None:
    known, fresh = know(), know()
    asked = data.draw(st.booleans())
    for name in other:
        known.set_queue(name, before.get(name))
        if asked:
            all_of(known)
    for name in order:
        known.set_queue(name, wanted.get(name))
        if asked:
            all_of(known)
    for name, one in wanted.items():
        fresh.set_queue(name, one)
    assert all_of(known) == all_of(fresh)


@QUICK
@given(sets())
def test_any_specs_become_a_tree(wanted: dict[str, QueueObject]) -> None:
    known = know(*wanted.values())
    told = known.queues()
    assert set(told) - {"default"} == set(wanted) - {"default"}
    for name in told:
        seen = [name]
        while parent := told[seen[-1]].parent:
            assert parent in told
            assert parent not in seen
            seen.append(parent)


@QUICK
@given(sets())
def test_a_queue_has_a_problem_exactly_if_its_parents_do_not_lead_to_the_top(
    wanted: dict[str, QueueObject],
) -> None:
    known = know(*wanted.values())
    for name, one in wanted.items():
        seen, at = {name}, one
        while (parent := at.spec.parent) in wanted and parent not in seen:
            seen.add(parent)
            at = wanted[parent]
        reaches = not parent or (parent == "default" and parent not in wanted)
        broken = any(
            part is not None and part.memory == "nonsense"
            for up in seen
            for part in (wanted[up].spec.quota, wanted[up].spec.limit)
        )
        assert bool(known.problem_of(name)) == (broken or not reaches)
