"""A tenant whose memory goes out and comes back, or a process that moves the memory of tenants.

    python bench/gpu/work_exchange.py tenant|mover OPTIONS

move_exchange.py starts it and tells it what to do in lines of JSON on stdin; it answers each with a
line on stdout. A tenant keeps its addresses, and stands at a closed gate while its memory moves:
work is queued behind the gate, and a thread is in cuStreamSynchronize. `out` and `in` move its
memory by a thread of its own; `give` and `take` do the tenant's part when the mover copies.

The room between two tenants is an eventfd that counts pieces: whoever releases a piece adds one,
and whoever creates a piece takes one first.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import socket
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ptx import SPIN, DriverError
from vmm import MIB, Driver, Gate, Pages

AHEAD = 4  # pieces whose copies are queued while others are unmapped
WORKERS = 8
PAGE = 4096
SLACK = 8 * MIB
SHIFT = 8191
NUMBER = 4  # bytes of a message
LOOK_EACH = 16  # pieces
KERNEL_NANOSECONDS = 1000

Answer = dict[str, Any]
print_lock = threading.Lock()


def answer(**values: Any) -> None:
    with print_lock:
        print(json.dumps(values), flush=True)


class Clock:
    """The seconds spent in each kind of call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[name] += time.monotonic() - begin

    def said(self) -> dict[str, float]:
        return {name: round(seconds, 4) for name, seconds in self.seconds.items()}


class Range:
    """Reserved addresses, in pieces that have physical memory or not."""

    def __init__(self, driver: Driver, size: int, piece: int) -> None:
        self.driver, self.piece, self.count = driver, piece, size // piece
        self.base = driver.reserve(size)
        self.handles = [0] * self.count

    def address(self, number: int) -> int:
        return self.base + number * self.piece

    def fill(self, number: int, clock: Clock, descriptor: int | None = None) -> None:
        """Map new memory, or memory that another process exports."""
        address, driver = self.address(number), self.driver
        if descriptor is None:
            with clock.timed("create"):
                handle = driver.create(self.piece)
        else:
            with clock.timed("import"):
                handle = driver.import_handle(descriptor)
            os.close(descriptor)
        with clock.timed("map"):
            driver.map(address, self.piece, handle)
        with clock.timed("access"):
            driver.allow(address, self.piece)
        self.handles[number] = handle

    def empty(self, number: int, clock: Clock) -> None:
        with clock.timed("unmap"):
            self.driver.unmap(self.address(number), self.piece)
        with clock.timed("release"):
            self.driver.release(self.handles[number])
        self.handles[number] = 0


class Copier:
    """Copies between a range and an arena of pinned host memory, on a stream of its own."""

    def __init__(self, driver: Driver, memory: Range, arena: Pages) -> None:
        self.driver, self.memory, self.arena = driver, memory, arena
        self.stream = driver.make_stream()
        self.events = [driver.event() for _ in range(memory.count)]

    def host(self, number: int) -> int:
        return self.arena.address + number * self.memory.piece

    def out(self, clock: Clock, copied: Callable[[int], None]) -> None:
        """Copy every piece out; `copied` is told of each when its bytes have arrived."""
        count, driver = self.memory.count, self.driver
        for number in range(count + AHEAD):
            if number < count:
                with clock.timed("copy"):
                    at = self.memory.address(number)
                    driver.copy_out(self.host(number), at, self.memory.piece, self.stream)
                    driver.call("cuEventRecord", self.events[number], self.stream)
            if number >= AHEAD:
                with clock.timed("wait"):
                    driver.call("cuEventSynchronize", self.events[number - AHEAD])
                copied(number - AHEAD)

    def in_piece(self, number: int, clock: Clock) -> None:
        with clock.timed("copy"):
            at = self.memory.address(number)
            self.driver.copy_in(at, self.host(number), self.memory.piece, self.stream)

    def finish(self, clock: Clock) -> None:
        with clock.timed("wait"):
            self.driver.wait_for(self.stream)


class Tenant:
    def __init__(self, options: dict[str, Any]) -> None:
        size, piece = options["size"], options["piece"]
        self.piece, self.count, self.room = piece, size // piece, options["room"]
        self.mover = socket.socket(fileno=options["mover"])
        self.driver = driver = Driver()
        self.kernel = driver.kernel(SPIN, "aliquot_spin")
        self.stream = driver.make_stream()
        self.gate = Gate(Pages(PAGE, options["gate"]))
        self.gate.attach(driver)
        self.memory = Range(driver, size, piece)
        self.workers = ThreadPoolExecutor(WORKERS)
        self.scratch = [Pages(piece) for _ in range(WORKERS)]
        for pages in self.scratch:
            driver.register(pages.address, piece)
        self.waiter: threading.Thread | None = None
        self._fill_arena(size, options["seed"])
        self.streams = [driver.make_stream() for _ in range(WORKERS)]
        if options["resident"]:
            self._become_resident()
        answer(
            done="start",
            fill_seconds=self.fill_seconds,
            register_seconds=self.register_seconds,
            **driver.describe(),
        )

    def _fill_arena(self, size: int, seed: int) -> None:
        """The first touch of its pages, then pinning them."""
        pattern = os.urandom(self.piece + SLACK)
        kept = c.create_string_buffer(pattern, len(pattern))
        source = c.addressof(kept)
        self.arena = Pages(size)

        def fill(number: int) -> None:
            shift = (number + seed) * SHIFT % SLACK
            c.memmove(self.arena.address + number * self.piece, source + shift, self.piece)

        begin = time.monotonic()
        list(self.workers.map(fill, range(self.count)))
        self.fill_seconds = round(time.monotonic() - begin, 3)
        begin = time.monotonic()
        self.driver.register(self.arena.address, size)
        self.register_seconds = round(time.monotonic() - begin, 3)
        self.copier = Copier(self.driver, self.memory, self.arena)
        self.sums = list(self.workers.map(self._host_sum, range(self.count)))
        assert len(set(self.sums)) == self.count

    def _become_resident(self) -> None:
        clock = Clock()
        for number in range(self.count):
            self.memory.fill(number, clock)
            self.copier.in_piece(number, clock)
        self.copier.finish(clock)
        self.scrub()

    def _host_sum(self, number: int) -> int:
        at = number * self.piece
        return zlib.crc32(self.arena.view[at : at + self.piece])

    def scrub(self) -> None:
        """Old bytes in the arena must not pass for moved ones."""

        def clear(number: int) -> None:
            c.memset(self.arena.address + number * self.piece, 0xA5, self.piece)

        list(self.workers.map(clear, range(self.count)))

    # --- what it is told to do -------------------------------------------------------------------

    def stand(self) -> Answer:
        self.gate.close()
        self.gate.insert(self.driver, self.stream)
        self.driver.launch(self.kernel, KERNEL_NANOSECONDS, self.stream)
        self.waiter = threading.Thread(target=self._wait, daemon=True)
        self.waiter.start()
        time.sleep(0.05)
        return {"stands": self.waiter.is_alive()}

    def _wait(self) -> None:
        self.driver.enter()
        self.driver.wait_for(self.stream)

    def go_on(self) -> Answer:
        """Whether the program goes on after its gate was opened."""
        if self.waiter is not None:
            self.waiter.join(5.0)
        return {"ended": self.waiter is None or not self.waiter.is_alive()}

    def out(self, clock: Clock) -> Answer:
        def copied(number: int) -> None:
            self.memory.empty(number, clock)
            os.eventfd_write(self.room, 1)

        self.copier.out(clock, copied)
        return {}

    def in_(self, clock: Clock) -> Answer:
        lowest = self.driver.free_bytes()
        for number in range(self.count):
            with clock.timed("room"):
                os.eventfd_read(self.room)
            self.memory.fill(number, clock)
            self.copier.in_piece(number, clock)
            if number % LOOK_EACH == LOOK_EACH - 1:
                with clock.timed("look"):
                    lowest = min(lowest, self.driver.free_bytes())
        self.copier.finish(clock)
        return {"lowest_free": lowest}

    def give(self, clock: Clock) -> Answer:
        for _ in range(self.count):
            with clock.timed("mover"):
                number = int.from_bytes(self.mover.recv(NUMBER), "little")
            self.memory.empty(number, clock)
            os.eventfd_write(self.room, 1)
        return {}

    def take(self, clock: Clock) -> Answer:
        lowest = self.driver.free_bytes()
        for number in range(self.count):
            with clock.timed("room"):
                os.eventfd_read(self.room)
            self.memory.fill(number, clock)
            self._send(number, clock)
            if number % LOOK_EACH == LOOK_EACH - 1:
                with clock.timed("look"):
                    lowest = min(lowest, self.driver.free_bytes())
        with clock.timed("mover"):
            self.mover.recv(NUMBER)
        return {"lowest_free": lowest}

    def share(self) -> Answer:
        """Send the arena and every resident piece to the mover."""
        socket.send_fds(self.mover, [bytes(NUMBER)], [self.arena.descriptor])
        clock = Clock()
        for number, handle in enumerate(self.memory.handles):
            if handle:
                self._send(number, clock)
        return {"calls": clock.said()}

    def _send(self, number: int, clock: Clock) -> None:
        with clock.timed("export"):
            descriptor = self.driver.export_handle(self.memory.handles[number])
        with clock.timed("send"):
            socket.send_fds(self.mover, [number.to_bytes(NUMBER, "little")], [descriptor])
        os.close(descriptor)

    def free(self) -> Answer:
        return {"bytes": self.driver.free_bytes()}

    def check_host(self) -> Answer:
        sums = list(self.workers.map(self._host_sum, range(self.count)))
        return {"wrong": sum(a != b for a, b in zip(sums, self.sums, strict=True))}

    def check_device(self) -> Answer:
        """Read every piece back through memory that no move has used."""

        def read(worker: int) -> int:
            self.driver.enter()
            pages, stream, wrong = self.scratch[worker], self.streams[worker], 0
            for number in range(worker, self.count, WORKERS):
                at = self.memory.address(number)
                self.driver.copy_out(pages.address, at, self.piece, stream)
                self.driver.wait_for(stream)
                wrong += zlib.crc32(pages.view) != self.sums[number]
            return wrong

        wrong = sum(self.workers.map(read, range(WORKERS)))
        self.scrub()
        return {"wrong": wrong}

    def move(self, name: str, at: float) -> Answer:
        return moved(self.driver, name, getattr(self, name), at)


class Mover:
    """A process with a context of its own, which copies the memory of all tenants."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.size, self.piece = options["size"], options["piece"]
        self.tenants = [socket.socket(fileno=number) for number in options["tenants"]]
        self.driver = Driver()
        self.copiers: list[Copier] = []
        answer(done="start")

    def adopt(self, resident: int) -> Answer:
        """Map every tenant's arena, and the memory of the one that is resident."""
        clock = Clock()
        for number, tenant in enumerate(self.tenants):
            pages = Pages(self.size, self._receive(tenant)[1])
            with clock.timed("register arenas"):
                self.driver.register(pages.address, self.size)
            memory = Range(self.driver, self.size, self.piece)
            self.copiers.append(Copier(self.driver, memory, pages))
            for _ in range(memory.count if number == resident else 0):
                piece, descriptor = self._receive(tenant)
                memory.fill(piece, clock, descriptor)
        return {"calls": clock.said()}

    def _receive(self, tenant: socket.socket) -> tuple[int, int]:
        data, descriptors, _, _ = socket.recv_fds(tenant, NUMBER, 1)
        return int.from_bytes(data, "little"), descriptors[0]

    def out(self, tenant: int, clock: Clock) -> Answer:
        copier, channel = self.copiers[tenant], self.tenants[tenant]

        def copied(number: int) -> None:
            copier.memory.empty(number, clock)
            channel.sendall(number.to_bytes(NUMBER, "little"))

        copier.out(clock, copied)
        return {}

    def in_(self, tenant: int, clock: Clock) -> Answer:
        copier, channel = self.copiers[tenant], self.tenants[tenant]
        for _ in range(copier.memory.count):
            with clock.timed("tenant"):
                number, descriptor = self._receive(channel)
            copier.memory.fill(number, clock, descriptor)
            copier.in_piece(number, clock)
        copier.finish(clock)
        channel.sendall(bytes(NUMBER))
        return {}

    def move(self, name: str, at: float, tenant: int) -> Answer:
        return moved(self.driver, name, lambda clock: getattr(self, name)(tenant, clock), at)


def moved(driver: Driver, name: str, work: Callable[[Clock], Answer], at: float) -> Answer:
    driver.enter()
    clock = Clock()
    time.sleep(max(at - time.monotonic(), 0))
    said = work(clock)
    return {"name": name, **said, "seconds": round(time.monotonic() - at, 4), "calls": clock.said()}


def obey(process: Tenant | Mover, order: dict[str, Any]) -> None:
    name, arguments = order.pop("do"), order
    try:
        said = getattr(process, name)(**arguments)
    except (DriverError, OSError) as error:
        said = {"failed": str(error)}
    answer(done=name, **said)


def main() -> None:
    role, options = sys.argv[1], json.loads(sys.argv[2])
    try:
        process = Tenant(options) if role == "tenant" else Mover(options)
    except (DriverError, OSError) as error:
        answer(done="start", failed=str(error))
        os._exit(1)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "move":  # the mover makes two at once
            threading.Thread(target=obey, args=(process, order), daemon=True).start()
        else:
            obey(process, order)
    os._exit(0)


if __name__ == "__main__":
    main()
