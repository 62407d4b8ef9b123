"""Gangs whatever happens: events lost, repeated and cut off, requests refused, leaders killed.

Some gangs preempt others, whose pods take time to terminate. Some have owners, which create a pod
again when one goes. A PodGroup says the size of some. Disruption budgets protect some. The leader
dies between two evictions. Some are elastic: they are asked to shrink and notified, though nobody
is there to do so. Single pods come too, one queue has a limit, and another a quota that others
borrow. In the end no incomplete gang holds GPUs, no GPU is given twice, no limit is passed, every
complete gang gets its turn, and when all pods are gone nothing is left of any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api import passes
from aliquot.kubernetes.api.names import ELASTIC, QUEUE
from aliquot.kubernetes.cluster import elastic
from aliquot.kubernetes.cluster.elastic import Terms
from aliquot.kubernetes.gangs import evictions, sizes, state, store
from kubernetes.extender.replica import Replica, replica
from kubernetes.fake_api import Faults, until
from kubernetes.gangs.world import SOON, World

SIZES = (2, 3)  # GPUs of the nodes
LIMIT = 2
QUOTA = 3
OPS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 5)),
    st.tuples(st.just("submit_without_gates"), st.integers(1, 4)),
    st.tuples(st.just("submit_higher"), st.integers(1, 4)),
    st.tuples(st.just("submit_owned"), st.integers(1, 4)),
    st.tuples(st.just("submit_limited"), st.integers(1, 2)),
    st.tuples(st.just("submit_limited_higher"), st.integers(1, 2)),
    st.tuples(st.just("submit_guest"), st.integers(2, 4)),
    st.tuples(st.just("submit_group"), st.integers(2, 4)),
    st.tuples(st.just("submit_own"), st.integers(1, QUOTA)),
    st.tuples(st.just("submit_elastic"), st.integers(1, 4)),
    st.tuples(st.just("single"), st.integers(0, 1)),
    st.tuples(st.just("take_time_to_end"), st.integers(0, 4)),
    st.tuples(st.just("protect"), st.integers(0, 9)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("lose"), st.integers(0, 9)),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("die_evicting"), st.integers(0, 3)),
    st.tuples(st.just("cut"), st.just(0)),
    st.tuples(st.just("compact"), st.just(0)),
    st.tuples(st.just("repeat"), st.integers(1, 4)),
    st.tuples(st.just("half_a_line"), st.just(0)),
    st.tuples(st.just("garbage"), st.just(0)),
    st.tuples(st.just("refuse"), st.integers(0, 3)),
    st.tuples(st.just("heal"), st.just(0)),
    st.tuples(st.just("go_on"), st.integers(1, 8)),
)
REFUSED = ("/binding", "/gangs", "/status", "/pods/")


class Play:
    """A world in which things happen, and the replica that leads in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sizes: dict[str, int] = {}
        self.singles: list[str] = []
        self._stack = AsyncExitStack()
        self.leader: Replica | None = None

    async def begin(self) -> None:
        one = await self._stack.enter_async_context(replica(self.world.api, gangs=SOON))
        await self._stack.enter_async_context(self.world.scheduling(one))
        self.leader = one

    async def stop(self) -> None:
        await self._stack.aclose()

    def submit(self, size: int) -> None:
        self._submit(size)

    def _submit(
        self,
        size: int,
        *,
        gated: bool = True,
        priority: int = 0,
        queue: str = "",
        group: bool = False,
        notes: Mapping[str, str] | None = None,
        **labels: str,
    ) -> str:
        name = f"g{len(self.sizes)}"
        self.sizes[name] = size
        mine = {f"aliquot.io/{key}": value for key, value in labels.items()}
        if queue:
            mine[QUEUE] = queue
        spec = {"priority": priority}
        self.world.gang(
            name,
            size,
            gated=gated,
            group=group,
            annotations=notes,
            gpu=1,
            spec=spec,
            labels=mine,
        )
        return name

    def submit_guest(self, size: int) -> None:
        """A gang that borrows all but one of its GPUs."""
        self._submit(size, queue="guest")

    def submit_group(self, size: int) -> None:
        """The same, of which a PodGroup says the size."""
        self._submit(size, queue="guest", group=True)

    def submit_own(self, size: int) -> None:
        """A gang that its queue's quota covers."""
        self._submit(size, queue="own")

    def submit_elastic(self, least: int) -> None:
        """A job of four workers, which could do with so many."""
        terms = msgspec.json.encode(Terms(least, notice=0.1)).decode()
        self._submit(4, queue="guest", notes={ELASTIC: terms}, job=f"j{len(self.sizes)}")

    def submit_limited(self, size: int) -> None:
        """A gang in the queue that has a limit."""
        self._submit(size, queue="limited")

    def submit_limited_higher(self, size: int) -> None:
        """One that goes before others there, which end for it, on whatever nodes they are."""
        self._submit(size, queue="limited", priority=9)

    def single(self, limited: int) -> None:
        """A pod of no gang, in that queue or in none."""
        self.singles.append(f"s{len(self.singles)}")
        labels = {QUEUE: "limited"} if limited else {}
        self.world.pod(self.singles[-1], gpu=1, labels=labels)

    def submit_without_gates(self, size: int) -> None:
        self._submit(size, gated=False)

    def submit_higher(self, size: int) -> None:
        """A gang that has the places of others, which end for it."""
        self._submit(size, priority=9)

    def submit_owned(self, size: int) -> None:
        """A gang whose pods are made anew when they go."""
        self.world.owned.add(self._submit(size))

    def take_time_to_end(self, time: int) -> None:
        self.world.api.faults.grace = 0.05 * time

    def protect(self, which: int) -> None:
        """A budget keeps a pod from being evicted."""
        names = sorted(self.world.bound())
        if names:
            self.world.api.faults.budgets[names[which % len(names)]] = "keep"

    def end(self, which: int) -> None:
        names = sorted(self.whole())
        if names:
            self.end_gang(names[which % len(names)])

    def end_gang(self, name: str) -> None:
        self.world.owned.discard(name)
        self.world.delete(*self.world.pods(name))

    def lose(self, which: int) -> None:
        """A pod that has no node goes; for good, where it has no owner."""
        names = sorted(set(self.world.pods()) - set(self.world.bound()))
        if names:
            self.world.delete(names[which % len(names)])

    async def kill(self, after: int) -> None:
        """The leader dies in the middle of what it does: nothing it does after that is heard."""
        await asyncio.sleep(0.004 * after)
        api = self.world.api
        api.faults.refuse = lambda *_: 503
        await self._stack.aclose()
        api.faults.refuse = lambda *_: None
        api.delete("leases", "aliquot-scheduler", "ns")
        await self.begin()

    async def die_evicting(self, evictions: int) -> None:
        """The leader dies when so many are evicted, if so many are."""
        dead = self.world.dies_after(evictions)
        with suppress(TimeoutError):
            await until(dead, 0.5)
        await self.kill(0)

    def cut(self, _: int) -> None:
        self.world.api.cut()

    def compact(self, _: int) -> None:
        self.world.api.cut()
        self.world.api.compact()

    def repeat(self, lines: int) -> None:
        self.world.api.faults.repeat = lines

    def half_a_line(self, _: int) -> None:
        self.world.api.faults.cut_line = True

    def garbage(self, _: int) -> None:
        self.world.api.faults.garbage = True

    def refuse(self, which: int) -> None:
        word = REFUSED[which]

        def refuse(method: str, path: str) -> int | None:
            return 503 if method in {"POST", "PATCH"} and word in path else None

        self.world.api.faults.refuse = refuse

    def heal(self, _: int) -> None:
        self.world.api.faults = Faults()

    async def go_on(self, time: int) -> None:
        await asyncio.sleep(0.02 * time)

    def whole(self) -> list[str]:
        """Gangs of which all are bound, and none is on its way out."""
        return [
            name
            for name, size in self.sizes.items()
            if len(live := self.live(name)) == size and live <= self.world.bound(name).keys()
        ]

    def live(self, gang: str) -> set[str]:
        found = self.world.pods(gang).items()
        return {name for name, one in found if not one.metadata.deletion_timestamp}

    def possible(self) -> list[str]:
        """Gangs that are all there, and no larger than the cluster."""
        return [
            name for name, size in self.sizes.items() if len(self.live(name)) == size <= sum(SIZES)
        ]


def check(world: World) -> None:
    world.check_gpus()
    assert world.held("limited") <= LIMIT


async def played(ops: list[tuple[str, int]]) -> None:
    world = World(*SIZES)
    world.queue("limited", limit={"gpus": LIMIT})
    world.queue("own", quota={"gpus": QUOTA})
    world.queue("guest", quota={"gpus": 1})
    async with world.api.serving():
        play = Play(world)
        await play.begin()
        try:
            for what, how in ops:
                done = getattr(play, what)(how)
                if done is not None:
                    await done
                check(world)
            play.heal(0)
            await until(lambda: not world.halves(), 30)
            check(world)
            world.delete(*play.singles)
            while possible := play.possible():
                await until(lambda: any(one in possible for one in play.whole()), 30)
                check(world)
                for name in play.whole():
                    play.end_gang(name)
            await until(lambda: not world.halves())
            world.owned.clear()
            world.delete(*world.pods())
            await until(lambda: not world.api.all("gangs"), 30)
            assert play.leader is not None
            cluster = play.leader.scheduler.cluster
            await until(lambda: not cluster.chooser.allocations.holders.any())
        finally:
            await play.stop()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=st.lists(OPS, min_size=1, max_size=14))
def test_gangs_are_whole_and_nothing_is_left_whatever_happens(ops: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FIRST_PAUSE", 0.05)
        patch.setattr(state, "LONGEST_PAUSE", 0.2)
        patch.setattr(state, "BAR_SECONDS", 0.5)
        patch.setattr(passes, "PASS_SECONDS", 0.1)
        patch.setattr(passes, "BURST_SECONDS", 0.005)
        patch.setattr(evictions, "OPEN_AGAIN", 0.2)
        patch.setattr(evictions, "EVICT_AGAIN", 0.1)
        patch.setattr(store, "REASON_SECONDS", 0.2)
        patch.setattr(sizes, "READ_SOURCE_AGAIN", 0.1)
        patch.setattr(elastic, "MARGIN", 0.2)
        patch.setattr(state, "LATE", 0.1)
        asyncio.run(played(ops))
