"""A program that lies, floods or wants too much harms only itself."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
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


def failed(answer: list[object]) -> tuple[int, str]:
    kind, _, failure, text = answer
    assert kind == wire.FAILED
    assert isinstance(failure, int)
    return failure, str(text)


def exchange(connection: socket.socket, data: bytes, *fds: int) -> wire.Answer:
    wire.send(connection, data, *fds)
    answer = wire.receive(connection)
    assert answer
    return answer


class TestSpace:
    def test_a_grant_has_at_most_its_slice_on_the_host(self, clients: Clients) -> None:
        first, second, other = clients(1, 3 * PIECE), clients(1, 3 * PIECE), clients(2, PIECE)
        first.leave(first("make", PIECE, 1), first("make", PIECE, 2))
        second.leave(second("make", PIECE, 1))
        more = second("make", PIECE, 2)
        failure, text = failed(second("ask", wire.OUT, more))
        assert failure == wire.HOST_FULL
        assert text == "the slice has 12 MiB on the host, and may have 12 MiB in all"
        other.leave(other("make", PIECE, 1))
        first("ask", wire.FORGET, 0)
        second.done(wire.OUT, more)

    def test_the_host_is_full(self, stopped_mover: Mover, programs: Clients) -> None:
        stopped_mover.limit = 2 * wire.STEP
        stopped_mover.start()
        client = programs()
        client.connect(stopped_mover.serve(client.pid))
        pieces = [client("make", 40 * MIB, seed) for seed in range(4)]
        client.leave(*pieces[:3])
        failure, text = failed(client("ask", wire.OUT, pieces[3]))
        assert failure == wire.HOST_FULL
        assert "of 128 MiB" in text
        assert client("is_filled", pieces[3], 3)
        client.return_(*pieces[:3])
        assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))
        assert stopped_mover.data_size() == 2 * wire.STEP

    def test_it_grows_ahead_of_need_and_shrinks(self, mover: Mover, clients: Clients) -> None:
        client = clients()
        mover.want(3 * wire.STEP)
        wait_until(lambda: mover.totals().registered == 3 * wire.STEP)
        piece = client("make", PIECE, 1)
        client.leave(piece)
        mover.want(0)
        wait_until(lambda: mover.totals().grown == wire.STEP)
        assert mover.data_size() == wire.STEP
        client.return_(piece)
        assert client("is_filled", piece, 1)

    def test_it_ends_when_nobody_needs_it(self, mover: Mover, clients: Clients) -> None:
        client = clients()
        client.leave(client("make", PIECE, 1))
        client.kill()
        assert mover.process
        assert mover.process.wait(60) == 0
        assert mover.data_size() == 0


class TestLies:
    def test_a_copy_that_it_does_not_have(self, clients: Clients) -> None:
        client, other = clients(), clients()
        piece = client("make", PIECE, 1)
        client.done(wire.OUT, piece)
        assert failed(other("ask", wire.IN, other("make", PIECE, 1)))[0] == wire.UNKNOWN
        larger = client("make", 2 * PIECE, 1)
        failure, text = failed(client("ask", wire.IN, larger))
        assert failure == wire.UNKNOWN
        assert text == f"the host has no copy of piece {larger:#x}"

    def test_a_size_that_is_not_the_piece_s(self, mover: Mover, clients: Clients) -> None:
        client = clients()
        piece = client("make", PIECE, 1)
        assert failed(client("ask", wire.OUT, piece, 2 * PIECE))[0] == wire.DRIVER
        assert failed(client("ask", wire.OUT, piece, PIECE + 1))[0] == wire.DRIVER
        assert failed(client("ask", wire.OUT, piece, 1 << 62))[0] == wire.GPU_FULL
        await_extents(mover, 0)
        client.done(wire.OUT, piece)
        failure, text = failed(client("ask", wire.IN, piece, PIECE // 2))
        assert failure == wire.UNKNOWN
        assert text.endswith(f"has {PIECE} bytes, not {PIECE // 2}")
        client.done(wire.IN, piece)

    def test_a_descriptor_that_is_not_memory_of_a_gpu(self, mover: Mover) -> None:
        reader, writer = os.pipe()
        others = [reader, writer, os.memfd_create("mine"), os.open("/dev/null", os.O_RDWR)]
        others.append(socket.socket(socket.AF_UNIX).detach())
        with mover.serve(os.getpid()) as connection:
            assert exchange(connection, wire.message(wire.FORGET, 0)).kind == wire.DONE
            count = mover.descriptors()
            for kind in (wire.OUT, wire.IN):
                answer = exchange(connection, wire.message(kind, PIECE, PIECE))
                assert answer.failure == wire.MALFORMED
                assert answer.text == "the descriptor is missing"
            for fd in others:
                answer = exchange(connection, wire.message(wire.OUT, PIECE, PIECE), fd)
                assert answer.kind == wire.FAILED
                assert answer.failure in {wire.MALFORMED, wire.DRIVER}
            assert exchange(connection, wire.message(wire.FORGET, 0), *others[:1]).failure
            assert mover.descriptors() == count
        for fd in others:
            os.close(fd)
        await_extents(mover, 0)

    def test_a_lie_takes_no_memory_of_the_host(self, mover: Mover) -> None:
        with mover.serve(os.getpid()) as connection, Path(os.devnull).open() as null:
            lie = wire.message(wire.OUT, PIECE, 4 * wire.STEP)
            assert exchange(connection, lie, null.fileno()).failure == wire.MALFORMED
            assert mover.data_size() == 0

    @pytest.mark.parametrize(
        "data",
        [
            b"x",
            wire.message(wire.OUT, PIECE, PIECE)[:-1],
            wire.message(wire.OUT, PIECE, PIECE) + b"x",
            wire.message(wire.OUT, PIECE, PIECE, magic=1),
            wire.message(wire.OUT, PIECE, PIECE, version=2),
            wire.message(wire.DONE, PIECE, PIECE),
            wire.message(0, PIECE, PIECE),
            wire.message(wire.OUT, 0, PIECE),
            wire.message(wire.IN, PIECE, 0),
        ],
    )
    def test_what_is_not_a_request(self, mover: Mover, data: bytes) -> None:
        with mover.serve(os.getpid()) as connection:
            connection.send(data)
            answer = wire.receive(connection)
            assert answer
            assert (answer.kind, answer.failure) == (wire.FAILED, wire.MALFORMED)
            assert wire.receive(connection) is None
        wait_until(lambda: mover.totals().connections == 0)

    @pytest.mark.parametrize("number", [2, 8, 20])
    def test_many_descriptors_in_one_message(self, mover: Mover, number: int) -> None:
        with mover.serve(os.getpid()) as first:
            assert exchange(first, wire.message(wire.FORGET, 0)).kind == wire.DONE
            count = mover.descriptors()
            with mover.serve(os.getpid()) as connection, Path(os.devnull).open() as null:
                fds = [null.fileno()] * number
                answer = exchange(connection, wire.message(wire.OUT, PIECE, PIECE), *fds)
                assert answer.failure == wire.MALFORMED
            wait_until(lambda: mover.descriptors() == count)

    def test_a_descriptor_in_an_empty_message(self, mover: Mover) -> None:
        with mover.serve(os.getpid()) as first:
            assert exchange(first, wire.message(wire.FORGET, 0)).kind == wire.DONE
            count = mover.descriptors()
            with mover.serve(os.getpid()) as connection, Path(os.devnull).open() as null:
                wire.send(connection, b"", null.fileno())
                assert wire.receive(connection) is None
            wait_until(lambda: mover.descriptors() == count)

    def test_a_flood_of_requests_that_are_never_read(self, mover: Mover, clients: Clients) -> None:
        flood = mover.serve(os.getpid())
        flood.setblocking(False)  # noqa: FBT003 - it takes no keywords
        with suppress(BlockingIOError):
            while flood.send(wire.message(wire.FORGET, 0)):
                pass
        client = clients()
        piece = client("make", PIECE, 1)
        client.leave(piece)
        client.return_(piece)
        assert client("is_filled", piece, 1)
        flood.close()
        wait_until(lambda: mover.totals().connections == 1)

    def test_more_connections_than_it_may_have(self, mover: Mover, clients: Clients) -> None:
        many = [mover.serve(os.getpid()) for _ in range(17)]
        answer = wire.receive(many[-1])
        assert answer
        assert (answer.failure, answer.text) == (
            wire.NO_MOVER,
            "the program has too many connections",
        )
        client = clients()
        client.leave(client("make", PIECE, 1))
        for one in many:
            one.close()
        wait_until(lambda: mover.totals().connections == 1)


class TestNoContext:
    def test_a_full_gpu_is_said_and_tried_again(
        self, stopped_mover: Mover, programs: Clients
    ) -> None:
        client = programs()
        hog = client("make", client("free") // PIECE * PIECE - 2 * PIECE, None)
        piece = client("make", PIECE, 1)
        stopped_mover.start()
        client.connect(stopped_mover.serve(client.pid))
        failure, text = failed(client("ask", wire.OUT, piece))
        assert failure == wire.GPU_FULL
        assert text.startswith("cuCtxCreate: CUDA_ERROR_OUT_OF_MEMORY")
        client("release", hog)
        wait_until(lambda: client("ask", wire.OUT, piece)[0] == wire.DONE)
