"""Gangs whatever happens: events lost, repeated and cut off, refusals, and leaders killed anywhere.

Whatever the order: in the end no half of a gang holds GPUs, no GPU is given twice, every gang that
is all there gets its turn, and when all pods are gone nothing is left of any of them.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.gangs import controller, doors, state, store
from kubernetes.fake_api import Faults, until
from kubernetes.gangs.world import SOON, World
from kubernetes.scheduler.replica import Replica, replica

SIZES = (2, 3)  # GPUs of the nodes
OPS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 5)),
    st.tuples(st.just("submit_without_gates"), st.integers(1, 4)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("lose"), st.integers(0, 9)),
    st.tuples(st.just("kill"), st.integers(0, 3)),
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
        self._stack = AsyncExitStack()
        self.leader: Replica | None = None

    async def begin(self) -> None:
        one = await self._stack.enter_async_context(replica(self.world.api, gangs=SOON))
        await self._stack.enter_async_context(self.world.scheduling(one))
        self.leader = one

    async def stop(self) -> None:
        await self._stack.aclose()

    def submit(self, size: int, *, gated: bool = True) -> None:
        name = f"g{len(self.sizes)}"
        self.sizes[name] = size
        self.world.gang(name, size, gated=gated)

    def submit_without_gates(self, size: int) -> None:
        self.submit(size, gated=False)

    def end(self, which: int) -> None:
        names = sorted(self.whole())
        if names:
            self.world.delete(*self.world.pods(names[which % len(names)]))

    def lose(self, which: int) -> None:
        """A pod that has no node goes, for good."""
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
        """Gangs of which all are bound."""
        return [name for name, size in self.sizes.items() if len(self.world.bound(name)) == size]

    def possible(self) -> list[str]:
        """Gangs that are all there, and no larger than the cluster."""
        return [
            name
            for name, size in self.sizes.items()
            if len(self.world.pods(name)) == size <= sum(SIZES)
        ]


async def played(ops: list[tuple[str, int]]) -> None:
    world = World(*SIZES)
    async with world.api.serving():
        play = Play(world)
        await play.begin()
        try:
            for what, how in ops:
                done = getattr(play, what)(how)
                if done is not None:
                    await done
                world.check_cards()
            play.heal(0)
            await until(lambda: not world.halves(), 30)
            while possible := play.possible():
                await until(lambda: any(one in possible for one in play.whole()), 30)
                world.check_cards()
                for name in play.whole():
                    world.delete(*world.pods(name))
            await until(lambda: not world.halves())
            world.delete(*world.pods())
            await until(lambda: not world.api.all("gangs"), 30)
            assert play.leader is not None
            cluster = play.leader.scheduler.cluster
            await until(lambda: not cluster.chooser.books.holders.any())
        finally:
            await play.stop()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=st.lists(OPS, min_size=1, max_size=14))
def test_whatever_happens_gangs_are_whole_and_nothing_is_left(ops: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FIRST_PAUSE", 0.05)
        patch.setattr(state, "LONGEST_PAUSE", 0.2)
        patch.setattr(state, "BAR_SECONDS", 0.5)
        patch.setattr(controller, "PASS_SECONDS", 0.1)
        patch.setattr(controller, "SETTLE", 0.005)
        patch.setattr(doors, "AGAIN", 0.2)
        patch.setattr(doors, "EVICT_AGAIN", 0.1)
        patch.setattr(store, "WORDS", 0.2)
        asyncio.run(played(ops))
