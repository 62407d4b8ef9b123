"""Whose what is, put right by the kubelet's word."""

from __future__ import annotations

from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import requests_of
from aliquot.kubernetes.node.books import Books
from aliquot.kubernetes.node.settle import rename, settle
from aliquot.kubernetes.node.units import offers_of
from kubernetes.builders import container, make_pod
from kubernetes.node.builders import CORE, GPU, MEMORY, SGPU, make_card, make_held, make_owner

CARDS = [make_card(0), make_card(1)]


def make_books() -> Books:
    return Books(CARDS, offers_of([ALIQUOT]), 2)


def test_containers_that_were_taken_for_each_other_change_names() -> None:
    books = make_books()
    one = make_held("shared", CARDS[:1], "a", units={SGPU: ["s0"]})
    two = make_held("shared", CARDS[1:], "b", units={SGPU: ["s1"]})
    books.take(one)
    books.take(two)
    assert settle(books, make_owner("b"), {"main": {SGPU: ("s0",)}}, ()) == 1
    assert books.held[one.name].owner.uid == "b"
    assert books.held[two.name].owner.uid == "a"
    assert (books.held[one.name].sure, books.held[two.name].sure) == (True, False)
    assert settle(books, make_owner("a"), {"main": {SGPU: ("s1",)}}, ()) == 0
    assert books.held[two.name].sure


def test_a_share_of_compute_goes_to_who_has_its_ids() -> None:
    """Memory alone and memory with compute look alike until the kubelet tells."""
    books = make_books()
    plain = make_held("sliced", CARDS[:1], "plain", memory=5, units={MEMORY: ["m0"]})
    rich = make_held(
        "sliced", CARDS[:1], "rich", memory=5, core=30, units={MEMORY: ["m1"], CORE: ["c0"]}
    )
    books.take(plain)
    books.take(rich)
    told = {"main": {MEMORY: ("m0",), CORE: ("c0",)}}
    settle(books, make_owner("rich"), told, requests_of(make_pod(memory=1, core=30)))
    settle(books, make_owner("plain"), {"main": {MEMORY: ("m1",)}}, requests_of(make_pod(memory=1)))
    (held,) = books.of_pod("rich")
    assert (held.now.compute, held.parts[0].reserved, held.units[CORE]) == (30, 30, ("c0",))
    assert held.name == plain.name, "the grant that it was told of"
    (held,) = books.of_pod("plain")
    assert (held.now.compute, held.parts[0].reserved, CORE in held.units) == (0, 0, False)


def test_whose_ids_were_given_on_was_an_init_container() -> None:
    books = make_books()
    first = make_held("shared", CARDS[:1], "x", units={SGPU: ["s0"]})
    books.take(first)
    books.take(make_held("shared", CARDS, "y", units={SGPU: ["s0", "s2"]}, after=(first,)))
    pod = make_pod("a", container("main", sgpu=2), init=(container("first", sgpu=1),))
    settle(books, make_owner("a"), {"main": {SGPU: ("s0", "s2")}}, requests_of(pod))
    assert [held.owner.container for held in books.of_pod("a")] == ["first", "main"]


def test_what_was_given_just_before_is_an_init_containers_by_its_size() -> None:
    books = make_books()
    other = make_held("whole", CARDS[:1], "a", container="first", units={GPU: ["g1"]})
    init = make_held("whole", CARDS[1:], "b", units={GPU: ["g0"]})
    books.take(other)
    books.take(init)
    books.release(other.name)
    books.take(make_held("shared", CARDS[:1], "a", units={SGPU: ["s0"]}))
    pod = make_pod("a", container("main", sgpu=1), init=(container("first", gpu=1),))
    settle(books, make_owner("a"), {"main": {SGPU: ("s0",)}}, requests_of(pod))
    assert books.held[init.name].owner == make_owner("a", "first")


def test_what_nobody_has_been_told_of_stays_as_it_is() -> None:
    books = make_books()
    books.take(make_held("shared", CARDS[:1], "a", units={SGPU: ["s0"]}))
    before = books.mark()
    told = {"main": {SGPU: ("s1",), "other.io/x": ("1",)}}
    assert settle(books, make_owner("b"), told, ()) == 0
    assert books.mark() == before


def test_processes_say_whose_a_grant_is() -> None:
    books = make_books()
    one = make_held("shared", CARDS[:1], "a", units={SGPU: ["s0"]})
    two = make_held("shared", CARDS[1:], "b", units={SGPU: ["s1"]})
    books.take(one)
    books.take(two)
    rename(books, make_owner("b"), one.name)
    assert [held.owner.uid for held in books.held.values()] == ["b", "a"]
    assert [held.sure for held in books.held.values()] == [True, False]
