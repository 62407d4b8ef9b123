"""A program at a closed gate, and a mover that makes the driver calls of a move meanwhile.

    python bench/gpu/work_move.py '{"row": "cuMemFree", "columns": ["out", "in"], ...}'

One run is one row of move_calls.py: it closes the gate, lets the program's threads make the row's
calls, then lets the mover make one column's calls after another. Each has a time limit. If one does
not return in time, the gate is opened in the end, to see whether the call returns then. Prints a
line of JSON per column, then one for the row.
"""

from __future__ import annotations

import ctypes as c
import json
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from ptx import SPIN, DriverError
from vmm import MIB, NON_BLOCKING, Driver, Gate, NotThereError, Pages

PIECE = 8 * MIB
BUFFER = 4 * MIB
SMALL = 64 << 10
HALF = PIECE // 2
PAGE = 4096
BLOCKING = 0
SETTLE_SECONDS = 0.1
MOST_SETTLE_SECONDS = 1.0
STAND_SECONDS = 6.0
END_SECONDS = 5.0
UNSURE_DIVISOR = 3  # of the time limit, while an earlier call waits
KERNEL_NANOSECONDS = 1000
CONTROL = "no gate, no work"
FULL = 8192  # more than any queue of the driver has room for
NO_LIMIT_SECONDS = 60.0
UNEXPECTED = "error: an exception that was not expected"
REQUEST = 5  # bytes: an operation and a number

Call = Callable[[], object]
Threads = list[Iterable[Call]]
HOST_FUNCTION = c.CFUNCTYPE(None, c.c_void_p)


@dataclass(frozen=True)
class Spec:
    """One run. `place` is where the mover is: thread, context or process."""

    row: str
    columns: list[str]
    place: str = "thread"
    streams: int = 3
    copies: bool = False  # the program's own copies are queued behind the gate
    priority: bool = False  # the mover's stream has the greatest priority
    limit_seconds: float = 1.5


def report(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def explain(error: Exception) -> str:
    return f"not there: {error}" if isinstance(error, NotThereError) else f"error: {error}"


class Attempt(threading.Thread):
    """Calls made in a thread of their own, because they may not return."""

    def __init__(self, driver: Driver, calls: Iterable[Call]) -> None:
        super().__init__(daemon=True)
        self._driver, self._calls = driver, calls
        self.returned = 0  # calls that have
        self.error = ""
        self.seconds = 0.0

    def run(self) -> None:
        self.error = UNEXPECTED
        try:
            self._driver.enter()
            begin = time.monotonic()
            for call in self._calls:
                call()
                self.returned += 1
            self.seconds = time.monotonic() - begin
            self.error = ""
        except (DriverError, OSError, ValueError) as error:
            self.error = explain(error)

    def ends_within(self, seconds: float) -> bool:
        self.join(seconds)
        return not self.is_alive()


# --- the program ----------------------------------------------------------------------------------


class Program:
    """What a tenant is: streams with work in them, memory of several kinds."""

    def __init__(self, spec: Spec, gate: Gate) -> None:
        self.spec, self.gate = spec, gate
        self.driver = driver = Driver()
        gate.attach(driver)
        self.kernel = driver.kernel(SPIN, "aliquot_spin")
        made = [driver.make_stream(NON_BLOCKING * (n % 2)) for n in range(spec.streams - 1)]
        self.streams: list[c.c_void_p | None] = [None, *made]
        self.stream, self.other = made[0], made[1]
        self.free_stream = driver.make_stream()  # never gated
        self.pageable = c.create_string_buffer(BUFFER)
        self.host = c.addressof(self.pageable)
        self.pinned = driver.pinned(BUFFER)
        self.memory, self.second = self.allocate(), self.allocate()
        self.keep: list[Any] = []
        self.threads: list[Attempt] = []
        self.stood, self.returned_at_the_gate = False, 0
        self.watched = 0
        self.moved: Callable[[], bool] = lambda: False
        for stream in self.streams:
            self.launch(stream)
        self.call("cuMemcpyHtoD_v2", self.memory, c.c_void_p(self.host), BUFFER)
        self.call("cuMemcpyDtoH_v2", c.c_void_p(self.host), self.memory, BUFFER)
        driver.copy_in(self.memory, self.pinned, BUFFER, self.stream)
        driver.copy_out(self.pinned, self.memory, BUFFER, self.other)
        driver.synchronize()

    def call(self, name: str, *arguments: object) -> None:
        self.driver.call(name, *arguments)

    def allocate(self, size: int = BUFFER) -> int:
        address = c.c_uint64()
        self.call("cuMemAlloc_v2", c.byref(address), size)
        return address.value

    def launch(self, stream: c.c_void_p | None) -> None:
        self.driver.launch(self.kernel, KERNEL_NANOSECONDS, stream)

    def stand(self) -> None:
        """Close the gate with work behind it, and start the row's threads."""
        self.driver.enter()
        rows = ROWS[self.spec.row](self)
        self.gate.close()
        for stream in self.streams if self.spec.row != CONTROL else ():
            self.gate.insert(self.driver, stream)
            self.launch(stream)
        if self.spec.copies and self.spec.row != CONTROL:
            self._queue_copies()
        self.threads = [Attempt(self.driver, calls) for calls in rows]
        for thread in self.threads:
            thread.start()
        self._settle()

    def _queue_copies(self) -> None:
        """In both directions; also out of and into the memory that moves."""
        for _ in range(8):
            for stream in (self.stream, self.other):
                self.driver.copy_in(self.memory, self.pinned, BUFFER, stream)
                self.driver.copy_out(self.pinned, self.second, BUFFER, stream)
        if self.watched:
            self.driver.copy_out(self.read, self.watched, HALF, self.stream)
            self.driver.copy_in(self.watched + HALF, self.written, HALF, self.stream)

    def watch(self, address: int, moved: Callable[[], bool]) -> None:
        """Copies of this memory will be queued, to see that they find it after it was moved."""
        if not self.spec.copies or self.spec.row == CONTROL:
            return
        self.driver.enter()
        self.watched, self.moved = address, moved
        self.read, self.written = self.driver.pinned(HALF), self.driver.pinned(HALF)
        c.memmove(self.written, os.urandom(HALF), HALF)
        self.before = c.create_string_buffer(HALF)
        self.call("cuMemcpyDtoH_v2", self.before, address, HALF)

    def _queued_copies_right(self) -> bool:
        arrived = c.create_string_buffer(HALF)
        self.call("cuMemcpyDtoH_v2", arrived, self.watched + HALF, HALF)
        was_read = c.string_at(self.read, HALF) == self.before.raw
        return was_read and arrived.raw == c.string_at(self.written, HALF)

    def _settle(self) -> None:
        """Wait until each thread has ended or stands in a call."""
        before, end = -1, time.monotonic() + MOST_SETTLE_SECONDS
        while before != self.returned() and time.monotonic() < end:
            before = self.returned()
            time.sleep(SETTLE_SECONDS)
        self.stood = any(thread.is_alive() for thread in self.threads)
        self.returned_at_the_gate = self.returned()

    def returned(self) -> int:
        return sum(thread.returned for thread in self.threads)

    def finish(self) -> None:
        """Open the gate and report whether everything ends."""
        self.driver.enter()
        self.gate.open()
        limit = max(self.spec.limit_seconds, END_SECONDS)
        all_return = sum(not thread.ends_within(limit) for thread in self.threads) == 0
        last = Attempt(self.driver, [self.driver.synchronize])
        last.start()
        drained = last.ends_within(limit) and not last.error
        ended = [one for one in (*self.threads, last) if not one.is_alive()]
        errors = [one.error for one in ended if one.error]
        report(
            stands=self.stood,
            returned=self.returned_at_the_gate,
            ends=all_return and drained,
            queued_copies_right=self._queued_copies_right() if drained and self.moved() else None,
            errors=errors,
        )


def one(call: Call) -> Threads:
    return [[call]]


def many(program: Program, count: int, call: Call) -> Threads:
    """The same call again and again, until the gate is opened."""
    before = program.gate.value()

    def calls() -> Iterable[Call]:
        for _ in range(count):
            if program.gate.value() != before:
                return
            yield call

    return [calls()]


def nothing(program: Program) -> Threads:
    del program
    return []


def synchronize_stream(program: Program) -> Threads:
    return one(lambda: program.call("cuStreamSynchronize", program.stream))


def synchronize_context(program: Program) -> Threads:
    return one(lambda: program.call("cuCtxSynchronize"))


def synchronize_event(program: Program) -> Threads:
    event = program.driver.event()

    def calls() -> Iterable[Call]:
        yield lambda: program.call("cuEventRecord", event, program.stream)
        yield lambda: program.call("cuEventSynchronize", event)

    return [calls()]


def free(program: Program) -> Threads:
    memory = program.allocate()
    return one(lambda: program.call("cuMemFree_v2", memory))


def free_host(program: Program) -> Threads:
    host = program.driver.pinned(BUFFER)
    return one(lambda: program.call("cuMemFreeHost", c.c_void_p(host)))


def unregister(program: Program) -> Threads:
    pages = Pages(BUFFER)
    program.keep.append(pages)
    program.driver.register(pages.address, BUFFER)
    return one(lambda: program.call("cuMemHostUnregister", c.c_void_p(pages.address)))


def unmap(program: Program) -> Threads:
    driver = program.driver
    address, handle = driver.reserve(PIECE), driver.create(PIECE)
    driver.map(address, PIECE, handle)
    driver.allow(address, PIECE)
    return [[lambda: driver.unmap(address, PIECE), lambda: driver.release(handle)]]


def copy_to_host(program: Program) -> Threads:
    host = c.c_void_p(program.host)
    return one(lambda: program.call("cuMemcpyDtoH_v2", host, program.memory, BUFFER))


def copy_to_device(program: Program) -> Threads:
    host = c.c_void_p(program.host)
    return one(lambda: program.call("cuMemcpyHtoD_v2", program.memory, host, BUFFER))


def copy_on_device(program: Program) -> Threads:
    to, source = program.second, program.memory
    return many(program, FULL, lambda: program.call("cuMemcpyDtoD_v2", to, source, SMALL))


def set_memory(program: Program) -> Threads:
    return many(program, FULL, lambda: program.call("cuMemsetD8_v2", program.memory, 0, SMALL))


def copy_pageable_in(program: Program) -> Threads:
    to, host = program.memory, program.host
    return many(program, FULL, lambda: program.driver.copy_in(to, host, BUFFER, program.stream))


def copy_pageable_out(program: Program) -> Threads:
    source, host = program.memory, program.host
    return many(
        program, FULL, lambda: program.driver.copy_out(host, source, BUFFER, program.stream)
    )


def copy_pinned(program: Program, count: int = 64, size: int = BUFFER) -> Threads:
    to, host = program.memory, program.pinned
    call = lambda: program.call("cuMemcpyAsync", to, host, size, program.stream)  # noqa: E731
    return many(program, count, call)


def copy_pinned_full(program: Program) -> Threads:
    return copy_pinned(program, FULL, SMALL)


def allocate(program: Program) -> Threads:
    return many(program, 8, lambda: program.allocate(8 * MIB))


def allocate_async(program: Program) -> Threads:
    def call() -> None:
        address = c.c_uint64()
        program.call("cuMemAllocAsync", c.byref(address), BUFFER, program.stream)

    return many(program, 16, call)


def free_async(program: Program) -> Threads:
    made = []
    for _ in range(8):
        address = c.c_uint64()
        program.call("cuMemAllocAsync", c.byref(address), BUFFER, program.stream)
        made.append(address.value)
    program.driver.synchronize()
    return [[partial(program.call, "cuMemFreeAsync", at, program.stream) for at in made]]


def launch(program: Program) -> Threads:
    return many(program, FULL, lambda: program.launch(program.stream))


def launch_graph(program: Program) -> Threads:
    graph, executable = c.c_void_p(), c.c_void_p()
    program.call("cuStreamBeginCapture_v2", program.other, 2)  # relaxed
    program.launch(program.other)
    program.call("cuStreamEndCapture", program.other, c.byref(graph))
    program.call("cuGraphInstantiateWithFlags", c.byref(executable), graph, 0)
    return many(program, FULL, lambda: program.call("cuGraphLaunch", executable, program.stream))


def load_module(program: Program) -> Threads:
    return many(program, 3, lambda: program.driver.kernel(SPIN, "aliquot_spin"))


def unload_module(program: Program) -> Threads:
    module = c.c_void_p()
    program.call("cuModuleLoadData", c.byref(module), SPIN.encode())
    return one(lambda: program.call("cuModuleUnload", module))


def destroy_stream(program: Program) -> Threads:
    return one(lambda: program.call("cuStreamDestroy_v2", program.other))


def allocate_host(program: Program) -> Threads:
    return many(program, 4, lambda: program.driver.pinned(BUFFER))


def wait_event(program: Program) -> Threads:
    event = program.driver.event()

    def calls() -> Iterable[Call]:
        yield lambda: program.call("cuEventRecord", event, program.stream)
        yield lambda: program.call("cuStreamWaitEvent", program.free_stream, event, 0)
        yield lambda: program.launch(program.free_stream)
        yield lambda: program.call("cuStreamSynchronize", program.free_stream)

    return [calls()]


def queue_function(program: Program) -> Threads:
    function = HOST_FUNCTION(lambda _: None)
    program.keep.append(function)

    def calls() -> Iterable[Call]:
        yield lambda: program.call("cuLaunchHostFunc", program.stream, function, None)
        yield lambda: program.call("cuStreamSynchronize", program.stream)

    return [calls()]


def run_function(program: Program) -> Threads:
    """A host function that runs until the gate opens."""
    before = program.gate.value()

    def wait(_: int | None) -> None:
        end = time.monotonic() + NO_LIMIT_SECONDS
        while program.gate.value() == before and time.monotonic() < end:
            time.sleep(0.01)

    function = HOST_FUNCTION(wait)
    program.keep.append(function)

    def calls() -> Iterable[Call]:
        yield lambda: program.call("cuLaunchHostFunc", program.free_stream, function, None)
        yield lambda: program.call("cuStreamSynchronize", program.free_stream)

    return [calls()]


def query(program: Program) -> Threads:
    """A watchdog that asks until the stream is finished."""

    def calls() -> Iterable[Call]:
        end = time.monotonic() + NO_LIMIT_SECONDS
        while time.monotonic() < end:
            yield ask
            if answered:
                return

    answered: list[bool] = []

    def ask() -> None:
        try:
            program.call("cuStreamQuery", program.stream)
            answered.append(True)
        except DriverError:
            time.sleep(0)

    return [calls()]


def several(program: Program) -> Threads:
    rows = (synchronize_stream, synchronize_event, free, copy_to_host, launch, allocate)
    return [calls for row in rows for calls in row(program)]


ROWS: dict[str, Callable[[Program], Threads]] = {
    CONTROL: nothing,
    "work queued, no thread": nothing,
    "cuStreamSynchronize": synchronize_stream,
    "cuCtxSynchronize": synchronize_context,
    "cuEventSynchronize": synchronize_event,
    "cuMemFree": free,
    "cuMemcpyDtoH": copy_to_host,
    "cuMemcpyHtoD": copy_to_device,
    "cuMemcpyDtoD, queue full": copy_on_device,
    "cuMemsetD8, queue full": set_memory,
    "cuMemcpyHtoDAsync, pageable": copy_pageable_in,
    "cuMemcpyDtoHAsync, pageable": copy_pageable_out,
    "cuMemcpyAsync, pinned": copy_pinned,
    "cuMemcpyAsync, queue full": copy_pinned_full,
    "cuMemAlloc": allocate,
    "cuMemAllocAsync": allocate_async,
    "cuMemFreeAsync": free_async,
    "cuLaunchKernel, queue full": launch,
    "cuGraphLaunch, queue full": launch_graph,
    "cuModuleLoadData": load_module,
    "cuModuleUnload": unload_module,
    "cuStreamDestroy": destroy_stream,
    "cuMemHostAlloc": allocate_host,
    "cuMemFreeHost": free_host,
    "cuMemHostUnregister": unregister,
    "cuMemUnmap, cuMemRelease": unmap,
    "cuStreamWaitEvent": wait_event,
    "cuLaunchHostFunc, queued": queue_function,
    "a host function that runs": run_function,
    "cuStreamQuery in a loop": query,
    "several of these at once": several,
}


# --- the mover ------------------------------------------------------------------------------------


class OwnMemory:
    """Physical memory of the mover's own process."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def create(self) -> int:
        return self.driver.create(PIECE)

    def replace(self, handle: int) -> int:
        self.driver.release(handle)
        return self.driver.create(PIECE)

    def exported(self) -> int:
        return self.driver.export_handle(self.driver.create(PIECE))


class TenantMemory:
    """Physical memory of the tenant's process, which exports it."""

    def __init__(self, driver: Driver, tenant: socket.socket) -> None:
        self.driver, self.tenant = driver, tenant
        self._numbers: dict[int, int] = {}

    def ask(self, operation: bytes, number: int = 0) -> tuple[int, int]:
        """A number and a descriptor (-1: none) from the tenant."""
        self.tenant.sendall(operation + number.to_bytes(REQUEST - 1, "little"))
        data, descriptors, _, _ = socket.recv_fds(self.tenant, 512, 1)
        if data[:1] != operation:
            message = f"the tenant: {data.decode(errors='replace') or 'ended'}"
            raise DriverError(message)
        return int.from_bytes(data[1:REQUEST], "little"), [*descriptors, -1][0]

    def create(self) -> int:
        return self._take(*self.ask(b"c"))

    def replace(self, handle: int) -> int:
        """The tenant unmaps and releases the memory, creates new memory and maps it."""
        self.driver.release(handle)
        return self._take(*self.ask(b"r", self._numbers[handle]))

    def exported(self) -> int:
        return self.ask(b"c")[1]

    def _take(self, number: int, descriptor: int) -> int:
        handle = self.driver.import_handle(descriptor)
        os.close(descriptor)
        self._numbers[handle] = number
        return handle


@dataclass
class Piece:
    """An address, and the physical memory that is mapped there."""

    address: int
    handle: int


class Mover:
    """The calls of a move. Each column prepares before the gate closes, and acts behind it."""

    def __init__(self, driver: Driver, memory: OwnMemory | TenantMemory, *, priority: bool) -> None:
        self.driver, self.memory = driver, memory
        at = driver.greatest_priority() if priority else None
        self.stream = driver.make_stream(NON_BLOCKING, at)
        self.pattern, self.back = driver.pinned(PIECE), driver.pinned(PIECE)
        self.bytes = os.urandom(PIECE)
        self.moving: Piece | None = None
        self.has_moved = False
        c.memmove(self.pattern, self.bytes, PIECE)

    def prepare(self, column: str) -> list[Call]:
        try:
            return [*COLUMNS[column](self)]
        except (DriverError, OSError) as error:
            return [partial(fail, error)]

    def piece(self, *, mapped: bool = True, allowed: bool = True) -> Piece:
        piece = Piece(self.driver.reserve(PIECE), self.memory.create())
        if mapped:
            self.driver.map(piece.address, PIECE, piece.handle)
        if mapped and allowed:
            self.driver.allow(piece.address, PIECE)
            self.driver.copy_in(piece.address, self.pattern, PIECE, self.stream)
            self.driver.wait_for(self.stream)
        return piece

    def copy_out(self, piece: Piece) -> list[Call]:
        return [
            lambda: c.memset(self.back, 0, PIECE),
            lambda: self.driver.copy_out(self.back, piece.address, PIECE, self.stream),
            lambda: self.driver.wait_for(self.stream),
            self.compare,
        ]

    def copy_in(self, piece: Piece) -> list[Call]:
        return [
            lambda: self.driver.copy_in(piece.address, self.pattern, PIECE, self.stream),
            lambda: self.driver.wait_for(self.stream),
        ]

    def compare(self) -> None:
        if c.string_at(self.back, PIECE) != self.bytes:
            message = "the bytes are wrong"
            raise ValueError(message)


def fail(error: Exception) -> None:
    raise error


def column_out(mover: Mover) -> Iterable[Call]:
    piece = mover.piece()
    return mover.copy_out(piece)


def column_in(mover: Mover) -> Iterable[Call]:
    piece = mover.piece()
    return mover.copy_in(piece)


def column_event(mover: Mover) -> Iterable[Call]:
    driver, event = mover.driver, mover.driver.event()
    return [
        lambda: driver.call("cuEventRecord", event, mover.stream),
        lambda: driver.call("cuEventSynchronize", event),
    ]


def column_unmap(mover: Mover) -> Iterable[Call]:
    piece = mover.piece()
    return [lambda: mover.driver.unmap(piece.address, PIECE)]


def column_release(mover: Mover) -> Iterable[Call]:
    piece = mover.piece()
    mover.driver.unmap(piece.address, PIECE)
    return [lambda: mover.driver.release(piece.handle)]


def column_create(mover: Mover) -> Iterable[Call]:
    return [lambda: mover.driver.create(PIECE)]


def column_map(mover: Mover) -> Iterable[Call]:
    piece = mover.piece(mapped=False)
    return [lambda: mover.driver.map(piece.address, PIECE, piece.handle)]


def column_access(mover: Mover) -> Iterable[Call]:
    piece = mover.piece(allowed=False)
    return [lambda: mover.driver.allow(piece.address, PIECE)]


def column_register(mover: Mover) -> Iterable[Call]:
    pages = Pages(PIECE)
    for at in range(0, PIECE, mmap.PAGESIZE):
        pages.view[at] = 1
    return [lambda: mover.driver.register(pages.address, PIECE)]


def column_export(mover: Mover) -> Iterable[Call]:
    handle = mover.driver.create(PIECE)
    return [lambda: mover.driver.export_handle(handle)]


def column_import(mover: Mover) -> Iterable[Call]:
    descriptor = mover.memory.exported()
    return [lambda: mover.driver.import_handle(descriptor)]


def column_info(mover: Mover) -> Iterable[Call]:
    return [mover.driver.free_bytes]


def column_move(mover: Mover) -> Iterable[Call]:
    """Out, and back into new memory at the same address."""
    driver, piece = mover.driver, mover.piece()
    mover.moving = piece

    def replace() -> None:
        piece.handle = mover.memory.replace(piece.handle)

    return [
        *mover.copy_out(piece),
        lambda: driver.unmap(piece.address, PIECE),
        replace,
        lambda: driver.map(piece.address, PIECE, piece.handle),
        lambda: driver.allow(piece.address, PIECE),
        *mover.copy_in(piece),
        *mover.copy_out(piece),
    ]


COLUMNS: dict[str, Callable[[Mover], Iterable[Call]]] = {
    "out": column_out,
    "in": column_in,
    "event": column_event,
    "unmap": column_unmap,
    "release": column_release,
    "create": column_create,
    "map": column_map,
    "access": column_access,
    "register": column_register,
    "export": column_export,
    "import": column_import,
    "info": column_info,
    "move": column_move,
}


def make_moves(mover: Mover, spec: Spec, gate: Gate, stand: Call) -> None:
    """Prepare every column, let the program stand at the gate, then try one column at a time.

    After a call that does not return the others are tried all the same. Those that return count.
    Those that do not are not reported, because the first may be the reason.
    """
    mover.driver.enter()
    prepared = {column: mover.prepare(column) for column in spec.columns}
    standing = Attempt(mover.driver, [stand])
    standing.start()
    if not standing.ends_within(STAND_SECONDS) or standing.error:
        gate.open()
        report(failed=f"the program did not get to its gate: {standing.error}")
        return
    waiting: tuple[str, Attempt, int] | None = None
    for column, calls in prepared.items():
        if waiting and column == "move":
            break
        attempt = Attempt(mover.driver, calls)
        attempt.start()
        if attempt.ends_within(spec.limit_seconds / (UNSURE_DIVISOR if waiting else 1)):
            result = attempt.error or "returns"
            mover.has_moved = column == "move" and not attempt.error
            report(column=column, result=result, ms=round(attempt.seconds * 1e3, 2))
        elif not waiting:
            waiting = column, attempt, attempt.returned
    if waiting:
        column, attempt, returned = waiting
        gate.open()
        begin = time.monotonic()
        ends = attempt.ends_within(spec.limit_seconds)
        report(
            column=column,
            result="waits for the gate" if ends else "hangs",
            calls_returned=returned,
            ms_after_opening=round((time.monotonic() - begin) * 1e3, 2) if ends else None,
            error=attempt.error if ends else "",
        )


# --- the processes --------------------------------------------------------------------------------


@dataclass
class Server:
    """The tenant's side of a mover in another process."""

    program: Program
    mover: socket.socket
    pieces: list[Piece] = field(default_factory=list)
    has_moved: bool = False

    def serve(self) -> None:
        while request := self.mover.recv(REQUEST, socket.MSG_WAITALL):
            operation, number = request[:1], int.from_bytes(request[1:], "little")
            try:
                self._answer(operation, number)
            except (DriverError, OSError) as error:
                self.mover.sendall(f"!{error}".encode())

    def _answer(self, operation: bytes, number: int) -> None:
        driver = self.program.driver
        if operation == b"m":
            self.has_moved = True
        if operation == b"s":
            if "move" in self.program.spec.columns and self.pieces:
                self.program.watch(self.pieces[-1].address, lambda: self.has_moved)
            self.program.stand()
        if operation in {b"s", b"m"}:
            self.mover.sendall(operation + bytes(REQUEST - 1))
            return
        if operation == b"c":
            number = len(self.pieces)
            self.pieces.append(Piece(driver.reserve(PIECE), 0))
        piece = self.pieces[number]
        if operation == b"r":
            driver.unmap(piece.address, PIECE)
            driver.release(piece.handle)
        piece.handle = driver.create(PIECE)
        driver.map(piece.address, PIECE, piece.handle)
        driver.allow(piece.address, PIECE)
        descriptor = driver.export_handle(piece.handle)
        data = operation + number.to_bytes(REQUEST - 1, "little")
        socket.send_fds(self.mover, [data], [descriptor])
        os.close(descriptor)


def move_from_process(spec: Spec, program: Program) -> None:
    ours, theirs = socket.socketpair()
    pages = program.gate.pages.descriptor
    text = json.dumps(asdict(spec))
    command = [sys.executable, __file__, text, str(theirs.fileno()), str(pages)]
    server = Server(program, ours)
    Attempt(program.driver, [server.serve]).start()
    mover = subprocess.Popen(command, pass_fds=(theirs.fileno(), pages))
    theirs.close()
    try:
        mover.wait(NO_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        mover.kill()


def run_mover(spec: Spec, tenant: socket.socket, gate: Gate) -> None:
    driver = Driver()
    memory = TenantMemory(driver, tenant)
    mover = Mover(driver, memory, priority=spec.priority)
    make_moves(mover, spec, gate, lambda: memory.ask(b"s"))
    if mover.has_moved:
        memory.ask(b"m")


def run_tenant(spec: Spec) -> None:
    program = Program(spec, Gate(Pages(PAGE)))
    if spec.place == "process":
        move_from_process(spec, program)
    else:
        driver = Driver(own_context=True) if spec.place == "context" else program.driver
        mover = Mover(driver, OwnMemory(driver), priority=spec.priority)

        def stand() -> None:
            if mover.moving:
                program.watch(mover.moving.address, lambda: mover.has_moved)
            program.stand()

        make_moves(mover, spec, program.gate, stand)
    program.finish()


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    try:
        if len(sys.argv) > 2:
            sockets, pages = (int(word) for word in sys.argv[2:])
            gate = Gate(Pages(PAGE, pages))
            run_mover(spec, socket.socket(fileno=sockets), gate)
        else:
            run_tenant(spec)
    except (DriverError, OSError) as error:
        report(failed=explain(error))
    sys.stdout.flush()
    os._exit(0)  # threads may stand in the driver for ever


if __name__ == "__main__":
    main()
