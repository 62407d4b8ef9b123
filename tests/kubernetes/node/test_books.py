"""The books of a node: the issue's example, and what holds whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.presets import ALIQUOT, NVIDIA, TENCENT
from aliquot.kubernetes.node.books import Books, OverTakenError
from aliquot.kubernetes.node.held import Held
from aliquot.kubernetes.node.units import Card, offers_of
from kubernetes.node.builders import (
    CORE,
    GPU,
    MEMORY,
    SGPU,
    make_card,
    make_held,
)

if TYPE_CHECKING:
    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.node.held import Part

OFFERS = offers_of([ALIQUOT])


def make_books(cards: list[Card], shares: int = 2, held: list[Held] | None = None) -> Books:
    return Books(cards, OFFERS, shares, held or [])


def healthy(books: Books, resource: str) -> list[str]:
    return [id_ for id_, is_healthy in books.ids(resource) if is_healthy]


def test_the_mixed_deployment_example_number_by_number() -> None:
    cards = [make_card(index) for index in range(4)]
    books = make_books(cards)

    def counts() -> tuple[int, int, int]:
        now = books.counts()
        return now[GPU], now[SGPU], now[MEMORY]

    assert counts() == (4, 8, 344)
    books.take(make_held("shared", cards[:2], units={SGPU: ["s0", "s1"]}))
    assert counts() == (2, 8, 172)
    ids = healthy(books, MEMORY)[:10]
    books.take(make_held("sliced", cards[2:3], memory=10, units={MEMORY: ids}))
    assert counts() == (1, 6, 172)
    ids = healthy(books, GPU)[:1]
    books.take(make_held("whole", cards[3:], units={GPU: ids}))
    assert counts() == (1, 4, 86)
    for name in list(books.held):
        books.release(name)
    assert counts() == (4, 8, 344)
    assert books.counts()[CORE] == 400


def test_an_id_in_use_stays_healthy_when_its_card_turns_sick_and_no_other_of_it_does() -> None:
    cards = [make_card(0), make_card(1)]
    books = make_books(cards)
    books.take(make_held("sliced", cards[:1], memory=3, units={MEMORY: ["m0", "m1", "m2"]}))
    assert books.set_health(cards[0].uuid, "fell off the bus")
    assert books.counts() == {GPU: 1, SGPU: 2, MEMORY: 86 + 3, CORE: 100}
    assert {"m0", "m1", "m2"} <= set(healthy(books, MEMORY))
    assert not books.set_health(cards[0].uuid, "fell off the bus")
    assert books.set_health(cards[0].uuid, "")
    assert books.counts()[MEMORY] == 172


def sized(held: Held, units: int) -> Held:
    parts = tuple(msgspec.structs.replace(one, memory=units * MEMORY_UNIT) for one in held.parts)
    return msgspec.structs.replace(held, parts=parts)


def test_growth_is_taken_out_of_the_counts_or_refused() -> None:
    card = make_card(0)
    books = make_books([card])
    held = make_held("sliced", [card], memory=40, core=10, units={MEMORY: _ids("m", 40)})
    books.take(held)
    books.change(sized(held, 80))
    assert books.counts()[MEMORY] == 46, "40 ids in use, 6 free"
    with pytest.raises(OverTakenError, match=r"21.5 GiB of memory left, and 21.7 GiB"):
        books.change(sized(held, 87))
    assert list(books.held.values()) == [sized(held, 80)]
    books.change(held)
    assert books.counts()[MEMORY] == 86


def test_an_init_containers_part_is_there_for_those_that_run_after_it() -> None:
    card = make_card(0)
    books = make_books([card])
    first = make_held("sliced", [card], memory=60, units={MEMORY: _ids("m", 60)}, container="first")
    main = make_held("sliced", [card], memory=80, units={MEMORY: _ids("m", 80)}, after=(first,))
    books.take(first)
    books.take(main)
    assert books.ends_first(first)
    assert not books.ends_first(main)
    assert books.not_beside(main) == [first]
    assert books.used(card.uuid).memory == 80 * MEMORY_UNIT
    assert books.counts()[MEMORY] == 86
    with pytest.raises(OverTakenError, match=r"1.5 GiB of memory left"):
        books.take(make_held("sliced", [card], "b", memory=7, units={MEMORY: ["m80"]}))


def test_two_containers_that_share_an_init_containers_ids_are_added_up() -> None:
    card = make_card(0)
    books = make_books([card])
    first = make_held("sliced", [card], memory=60, units={MEMORY: _ids("m", 60)})
    books.take(first)
    books.take(
        make_held("sliced", [card], memory=30, units={MEMORY: _ids("m", 30)}, after=(first,))
    )
    books.take(
        make_held("sliced", [card], memory=40, units={MEMORY: _ids("m", 70)[30:]}, after=(first,))
    )
    assert books.used(card.uuid).memory == 70 * MEMORY_UNIT


def test_ids_that_the_kubelet_gives_to_another_leave_what_is_still_held_out_of_the_counts() -> None:
    card, other = make_card(0), make_card(1)
    books = make_books([card, other])
    old = make_held("shared", [card], "old", units={SGPU: ["s0"]})
    books.take(old)
    books.strip(SGPU, ["s0"])
    new = make_held("shared", [other], "new", units={SGPU: ["s0"]})
    books.take(new)
    assert books.holder("s0") == new.name
    assert books.counts()[SGPU] == 1 + 2, "the id in use, and what both cards have left"
    books.release(old.name)
    assert books.counts()[SGPU] == 4


def test_ids_are_unique_across_the_resources_of_all_presets() -> None:
    books = Books([make_card(0)], offers_of([ALIQUOT, TENCENT, NVIDIA]), 2)
    every = [id_ for resource in books.offers for id_, _ in books.ids(resource)]
    assert len(every) == len(set(every))
    assert max(map(len, every)) <= 63


def test_whole_cards_by_core_units_leave_the_counts_of_the_others() -> None:
    cards = [make_card(0), make_card(1)]
    books = Books(cards, offers_of([TENCENT]), 2)
    core, memory = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
    books.take(make_held("whole", cards[:1], units={core: _ids("c", 100)}))
    assert books.counts() == {core: 200, memory: 86}
    assert books.free(core) == 100


def test_ids_that_a_pod_has_are_listed_even_if_there_are_no_longer_so_many() -> None:
    card = make_card(0)
    books = make_books([card], shares=4)
    books.take(make_held("shared", [card], shares=4, units={SGPU: ["s3"]}))
    again = make_books([card], shares=2, held=list(books.held.values()))
    assert ("s3", True) in again.ids(SGPU)


def _ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def _some(things: list[Any], count: int, turn: int) -> list[Any]:
    """Some of them, in another order each turn."""
    start = turn * len(things) // 8
    return (things[start:] + things[:start])[:count]


@dataclass
class FakeKubelet:
    """Chooses ids as the kubelet's device manager does."""

    pods: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    reuse: dict[str, set[str]] = field(default_factory=dict)

    def in_use(self, resource: str) -> set[str]:
        return {id_ for by in self.pods.values() for id_ in by.get(resource, ())}

    def choose(self, books: Books, resource: str, count: int, turn: int) -> list[str]:
        ids = sorted(self.reuse.get(resource, set()))[:count]
        free = sorted(set(healthy(books, resource)) - self.in_use(resource))
        assert len(free) >= count - len(ids), "admitted by the books, refused by the kubelet"
        return [*ids, *_some(free, count - len(ids), turn)]

    def admit(self, uid: str, resource: str, ids: list[str], *, init: bool) -> None:
        self.pods.setdefault(uid, {}).setdefault(resource, set()).update(ids)
        reuse = self.reuse.setdefault(resource, set())
        (reuse.update if init else reuse.difference_update)(ids)


class BooksMachine(RuleBasedStateMachine):
    """Pods come, grow, end and linger; cards turn sick and well."""

    pods: Bundle[str] = Bundle("pods")

    @initialize(
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
        more=st.integers(0, MEMORY_UNIT - 1),
        shares=st.integers(1, 3),
    )
    def begin(self, sizes: list[int], more: int, shares: int) -> None:
        self.cards = [make_card(index, size, more=more) for index, size in enumerate(sizes)]
        self.shares = shares
        self.books = make_books(self.cards, shares)
        self.kubelet = FakeKubelet()
        self.lingering: set[str] = set()
        self.inits: set[str] = set()
        self.grown = False
        self.number = 0

    @rule(target=pods, data=st.data(), count=st.integers(1, 3))
    def admit(self, data: st.DataObject, count: int) -> str:
        """Containers of a pod, init containers first, as many as fit."""
        self.number += 1
        uid = f"p{self.number}"
        self.kubelet.reuse = {}
        inits = data.draw(st.integers(0, count))
        for number in range(count):
            self._container(data, uid, init=number < inits)
        return uid

    def _container(self, data: st.DataObject, uid: str, *, init: bool) -> None:
        kind: Kind = data.draw(st.sampled_from(["whole", "shared", "sliced"]))
        memory, core = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 60))
        core = core if kind == "sliced" else 0
        gpus, turn = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 7))
        wanted = {
            "whole": {GPU: gpus},
            "shared": {SGPU: gpus},
            "sliced": {MEMORY: memory * gpus, CORE: core * gpus},
        }[kind]
        reused = {
            name: sorted(self.kubelet.reuse.get(name, ()))[:number]
            for name, number in wanted.items()
        }
        before = [held for held in self.books.of_pod(uid) if _shares(held, reused)]
        trial = {
            card.uuid: self._held(kind, [card], memory, core, reused, before=before)
            for card in self.cards
        }
        fit = [card for card in self.cards if self.books.why_not(trial[card.uuid]) is None]
        if len(fit) < gpus:
            return
        own = {part.gpu for held in before for part in held.parts}
        order = _some(fit, len(fit), turn)
        chosen = sorted(order, key=lambda card: card.uuid not in own)[:gpus]  # as `place` does
        units = {}
        for resource, number in wanted.items():
            units[resource] = self.kubelet.choose(self.books, resource, number, turn)
            self.kubelet.admit(uid, resource, units[resource], init=init)
            self.books.strip(resource, units[resource], but=before)
        held = self._held(kind, chosen, memory, core, units, uid=uid, before=before)
        self.books.take(held)
        if init:
            self.inits.add(held.name)

    def _held(
        self,
        kind: Kind,
        cards: list[Card],
        memory: int,
        core: int,
        units: dict[str, list[str]],
        *,
        before: list[Held],
        uid: str = "",
    ) -> Held:
        return make_held(
            kind,
            cards,
            uid,
            memory=memory,
            core=core,
            shares=self.shares,
            units=units,
            after=tuple(before),
        )

    @rule(uid=consumes(pods))
    def end(self, uid: str) -> None:
        for held in self.books.of_pod(uid):
            self.books.release(held.name)
        self.kubelet.pods.pop(uid, None)
        self.lingering.discard(uid)

    @rule(uid=pods)
    def end_for_the_kubelet_alone(self, uid: str) -> None:
        if self.kubelet.pods.pop(uid, None):
            self.lingering.add(uid)

    @rule(uid=pods, more=st.integers(1, 30))
    def grow(self, uid: str, more: int) -> None:
        mains = [held for held in self.books.of_pod(uid) if held.name not in self.inits]
        sliced = [held for held in mains if held.kind == "sliced"]
        if not sliced:
            return
        held = sliced[-1]
        parts = tuple(
            msgspec.structs.replace(part, memory=part.memory + more * MEMORY_UNIT)
            for part in held.parts
        )
        before = (self.books.mark(), self.books.counts())
        try:
            self.books.change(msgspec.structs.replace(held, parts=parts))
            self.grown = True
        except OverTakenError:
            assert before == (self.books.mark(), self.books.counts())

    @rule(index=st.integers(0, 3), why=st.sampled_from(["", "sick"]))
    def turn(self, index: int, why: str) -> None:
        self.books.set_health(self.cards[index % len(self.cards)].uuid, why)

    @rule()
    def begin_again_from_what_was_kept(self) -> None:
        kept = msgspec.json.encode(self.books.mark())
        before = self.books.counts()
        cards = list(self.books.cards.values())
        self.books = make_books(cards, self.shares, msgspec.json.decode(kept, type=list[Held]))
        assert self.books.counts() == before

    @invariant()
    def a_card_has_one_kind_and_gives_no_more_than_it_has(self) -> None:
        for card in getattr(self, "cards", ()):
            here = [one for one in self._moments(card) if one]
            kinds = {held.kind for moment in here for held, _ in moment}
            assert len(kinds) <= 1
            assert self.books.kind(card.uuid) == next(iter(kinds), None)
            for moment in here:
                assert sum(part.memory for _, part in moment) <= card.memory
                assert sum(part.reserved for _, part in moment) <= 100
                assert len(moment) <= (1 if kinds == {"whole"} else self.shares) or kinds == {
                    "sliced"
                }

    def _moments(self, card: Card) -> list[list[tuple[Held, Part]]]:
        """Who may use a card at one time: each init container with all that is not of its pod."""
        every = [
            (held, part)
            for held in self.books.held.values()
            for part in held.parts
            if part.gpu == card.uuid
        ]
        mains = [(held, part) for held, part in every if held.name not in self.inits]
        return [
            mains,
            *(
                [one, *(other for other in mains if other[0].owner.uid != one[0].owner.uid)]
                for one in every
                if one[0].name in self.inits
            ),
        ]

    @invariant()
    def what_a_pod_has_is_healthy_and_its_own(self) -> None:
        for uid, by_resource in (getattr(self, "kubelet", None) or FakeKubelet()).pods.items():
            for resource, ids in by_resource.items():
                assert ids <= set(healthy(self.books, resource))
                names = {self.books.holder(id_) for id_ in ids}
                assert {self.books.held[name].owner.uid for name in names if name} <= {uid}

    @invariant()
    def counts_are_by_the_rule(self) -> None:
        """Where nothing lingers, nothing grew and all cards are well, in the issue's own words."""
        if not hasattr(self, "books") or self.lingering or self.grown or self.inits:
            return
        if not all(card.healthy for card in self.books.cards.values()):
            return
        kinds = [(card, self.books.kind(card.uuid)) for card in self.cards]
        assert self.books.counts() == {
            GPU: sum(kind in {None, "whole"} for _, kind in kinds),
            SGPU: sum(self.shares for _, kind in kinds if kind in {None, "shared"}),
            MEMORY: sum(
                card.memory // MEMORY_UNIT for card, kind in kinds if kind in {None, "sliced"}
            ),
            CORE: sum(100 for _, kind in kinds if kind in {None, "sliced"}),
        }

    @invariant()
    def all_comes_back_when_nobody_holds_anything(self) -> None:
        if not hasattr(self, "books") or self.books.held:
            return
        well = [card for card in self.books.cards.values() if card.healthy]
        assert self.books.counts() == {
            GPU: len(well),
            SGPU: self.shares * len(well),
            MEMORY: sum(card.memory // MEMORY_UNIT for card in well),
            CORE: 100 * len(well),
        }

    @invariant()
    def the_list_of_ids_stays(self) -> None:
        if hasattr(self, "books"):
            listed = [id_ for id_, _ in self.books.ids(SGPU)]
            assert listed == [f"s{number}" for number in range(self.shares * len(self.cards))]


def _shares(held: Held, ids: dict[str, list[str]]) -> bool:
    return not set(ids.get(held.by, ())).isdisjoint(held.units.get(held.by, ()))


BooksMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
TestBooks = BooksMachine.TestCase
