"""Memory leaves the GPU and comes back as it was, whatever else happens meanwhile."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from mover import wire
from mover.rig import await_extents
from mover.wire import MIB
from support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from mover.rig import Client, Mover

    Clients = Callable[..., Client]

PIECE = 4 * MIB
LONG = 80 * MIB  # more than one step of the arena


def test_bytes_return_as_they_were(mover: Mover, clients: Clients) -> None:
    client = clients()
    sizes = (2 * MIB, LONG, 20 * MIB, 2 * MIB)
    pieces = [client("make", size, seed) for seed, size in enumerate(sizes)]
    client.leave(*pieces)
    assert [one.bytes for one in mover.extents()] == list(sizes)
    assert {one.pid for one in mover.extents()} == {client.pid}
    client.return_(*pieces)
    assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))
    assert mover.totals().held == sum(sizes)
    client.done(wire.FORGET, pieces[0])
    assert {one.piece for one in mover.extents()} == set(pieces[1:])
    assert client("ask", wire.FORGET, 0) == [wire.DONE, 0, 0, ""]
    await_extents(mover, 0)
    assert (mover.totals().held, mover.totals().out, mover.totals().back) == (
        0,
        sum(sizes),
        sum(sizes),
    )


def test_memory_is_free_when_the_answer_comes(clients: Clients) -> None:
    client = clients()
    free = client("free")
    piece = client("make", LONG, 1)
    client.done(wire.OUT, piece)
    client("release", piece)
    assert client("free") == free


def test_many_requests_before_the_first_answer(clients: Clients) -> None:
    client = clients()
    pieces = [client("make", 2 * MIB, seed) for seed in range(12)]
    for kind in (wire.OUT, wire.IN):
        for piece in pieces:
            client("send", kind, piece)
        answers = [client("answer") for _ in pieces]
        assert answers == [[wire.DONE, piece, 0, ""] for piece in pieces]
    assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))


def test_requests_for_one_piece_are_carried_out_in_order(mover: Mover, clients: Clients) -> None:
    client = clients()
    piece = client("make", PIECE, 1)
    kinds = (wire.OUT, wire.IN, wire.FORGET, wire.OUT, wire.OUT, wire.IN, wire.FORGET)
    for kind in kinds:
        client("send", kind, piece)
    assert [client("answer")[0] for _ in kinds] == [wire.DONE] * len(kinds)
    assert client("is_filled", piece, 1)
    await_extents(mover, 0)


def test_a_second_copy_replaces_the_first(mover: Mover, clients: Clients) -> None:
    client = clients()
    piece = client("make", PIECE, 1)
    client.done(wire.OUT, piece)
    client.leave(piece)
    assert len(mover.extents()) == 1
    client.return_(piece)
    assert client("is_filled", piece, 1)


def test_several_programs_at_once(mover: Mover, clients: Clients) -> None:
    several = [clients(grant) for grant in range(3)]
    pieces = [[one("make", PIECE, seed) for seed in range(6)] for one in several]
    for _ in range(3):
        for kind in (wire.OUT, wire.IN):
            for client, own in zip(several, pieces, strict=True):
                for piece in own:
                    client.tell("send", kind, piece)
            for client, own in zip(several, pieces, strict=True):
                for _ in own:
                    client.result()
                for piece in own:
                    assert client("answer") == [wire.DONE, piece, 0, ""]
    for client, own in zip(several, pieces, strict=True):
        assert all(client("is_filled", piece, seed) for seed, piece in enumerate(own))
    assert len(mover.extents()) == sum(map(len, pieces))


def test_space_is_used_again(mover: Mover, clients: Clients) -> None:
    client = clients()
    piece = client("make", 40 * MIB, 1)
    for _ in range(5):
        client.leave(piece)
        client.return_(piece)
        client.done(wire.FORGET, piece)
    assert mover.data_size() == wire.STEP


def test_a_program_that_waits_no_longer_has_no_late_copies(mover: Mover, clients: Clients) -> None:
    """It connects again to a mover that hung, and uses its memory meanwhile."""
    client = clients()
    pieces = [client("make", LONG, seed) for seed in range(3)]
    assert client("ask", wire.FORGET, 0) == [wire.DONE, 0, 0, ""]
    os.kill(mover.pid, signal.SIGSTOP)
    for piece in pieces:
        client("send", wire.OUT, piece)
    client.connect(mover.serve(client.pid))
    client("send", wire.FORGET, 0)
    os.kill(mover.pid, signal.SIGCONT)
    assert client("answer") == [wire.DONE, 0, 0, ""]
    wait_until(lambda: mover.totals().connections == 1)
    assert mover.extents() == []
    client.leave(*pieces)
    client.return_(*pieces)
    assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))


class TestDeaths:
    @pytest.mark.parametrize("moment", ["before", "sent", "answered"])
    @pytest.mark.parametrize("kind", [wire.OUT, wire.IN])
    def test_a_killed_mover_loses_nothing(
        self, mover: Mover, clients: Clients, kind: int, moment: str
    ) -> None:
        client = clients()
        pieces = [client("make", PIECE, seed) for seed in range(4)]
        if kind == wire.IN:
            client.leave(*pieces)
            for piece in pieces:
                client("back", piece)
        for piece in pieces:
            if moment == "before":
                mover.restart()
                client.connect(mover.serve(client.pid))
            client("send", kind, piece)
            if moment == "sent":
                mover.restart()
                client("answer")
                client.connect(mover.serve(client.pid))
                client("send", kind, piece)
            assert client("answer") == [wire.DONE, piece, 0, ""]
            if moment == "answered":
                mover.restart()
                client.connect(mover.serve(client.pid))
        if kind == wire.OUT:
            for piece in pieces:
                client("release", piece)
            client.return_(*pieces)
        assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))
        assert len(mover.extents()) == len(pieces)

    def test_copies_of_a_killed_program_are_forgotten(self, mover: Mover, clients: Clients) -> None:
        client, other = clients(), clients()
        client.leave(*(client("make", PIECE, seed) for seed in range(3)))
        other.leave(other("make", PIECE, 1))
        client.kill()
        mover.forget(client.pid, client.start_time)
        await_extents(mover, 1)

    def test_they_are_forgotten_if_nobody_says_so(self, mover: Mover, clients: Clients) -> None:
        client = clients()
        client.leave(client("make", PIECE, 1))
        client.kill()
        await_extents(mover, 0)

    def test_they_are_forgotten_by_the_next_mover(self, mover: Mover, clients: Clients) -> None:
        client, other = clients(), clients()
        client.leave(client("make", PIECE, 1))
        other.leave(other("make", PIECE, 1))
        mover.kill()
        client.kill()
        mover.start()
        wait_until(lambda: len(mover.extents()) == 1)
        assert mover.extents()[0].pid == other.pid

    def test_a_program_that_is_killed_while_it_moves_leaves_nothing(
        self, mover: Mover, clients: Clients
    ) -> None:
        watcher = clients()
        assert watcher("ask", wire.FORGET, 0) == [wire.DONE, 0, 0, ""]  # the mover has accepted it
        free, descriptors = watcher("free"), mover.descriptors()
        for kills in range(4):
            client = clients()
            pieces = [client("make", LONG, 1), client("make", LONG, 2)]
            for piece in pieces[: kills % 2 + 1]:
                client("send", wire.OUT, piece)
            client.kill()
            mover.forget(client.pid, client.start_time)
        wait_until(lambda: mover.totals().connections == 1)
        await_extents(mover, 0)
        wait_until(lambda: watcher("free") == free)
        wait_until(lambda: mover.descriptors() == descriptors)

    def test_a_program_that_execs_loses_its_copies(self, mover: Mover, clients: Clients) -> None:
        client = clients()
        client.leave(client("make", PIECE, 1))
        client.tell("exec")
        client.await_here()
        mover.forget(client.pid, client.start_time)
        client.connect(mover.serve(client.pid))
        piece = client("make", PIECE, 2)
        client.leave(piece)
        assert [one.piece for one in mover.extents()] == [piece]


class TestChecksums:
    def test_a_copy_that_changed_on_the_host_is_not_given_back(
        self, stopped_mover: Mover, programs: Clients
    ) -> None:
        stopped_mover.set_environment(ALIQUOT_MOVE_CHECKSUMS="1")
        client = programs()
        stopped_mover.start()  # it ends by itself if nobody needs it for 2 s
        client.connect(stopped_mover.serve(client.pid))
        pieces = [client("make", PIECE, seed) for seed in range(2)]
        client.leave(*pieces)
        changed = next(one for one in stopped_mover.extents() if one.piece == pieces[0])
        stopped_mover.spoil(changed.offset + PIECE - 5)
        client("back", pieces[0])
        kind, _, failure, text = client("ask", wire.IN, pieces[0])
        assert (kind, failure) == (wire.FAILED, wire.UNKNOWN)
        assert "has changed on the host" in text
        client.return_(pieces[1])
        assert client("is_filled", pieces[1], 1)
