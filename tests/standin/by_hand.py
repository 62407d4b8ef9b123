"""An arbiter whose credit the test sets: with the real one's pages and messages, no decisions.

It serves one grant, in a thread of the test's process. Every process that says HELLO gets fresh
pages, made and sealed as the arbiter makes them; `credit` and `work` are those of the newest one.
"""

from __future__ import annotations

import array
import contextlib
import ctypes as c
import fcntl
import mmap
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any, TypeVar

from standin import pages
from support import wait_until

HELLO, WELCOME, MEASURE, MEASURED, RING = 1, 2, 3, 4, 5
MESSAGE = struct.Struct("<IHHQ112s")
MAGIC, PROTOCOL = 0x4D514C41, 2

ADD_SEALS, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1033, 2, 4, 16

_Form = TypeVar("_Form", bound=c.Structure)


class Page:
    """A memfd and this process's mapping of it, writable."""

    def __init__(self, name: str, size: int) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)

    def as_form(self, form: type[_Form], offset: int = 0) -> _Form:
        return form.from_buffer(self.memory, offset)

    def seal(self, *, against_writing: bool) -> None:
        seals = SEAL_SHRINK | SEAL_GROW | (SEAL_FUTURE_WRITE if against_writing else 0)
        fcntl.fcntl(self.fd, ADD_SEALS, seals)


def _credit_page() -> Page:
    page = Page("credit", pages.CREDIT_SIZE)
    credit = page.as_form(pages.Credit)
    credit.magic, credit.version, credit.size = (
        pages.CREDIT_MAGIC,
        pages.VERSION,
        pages.CREDIT_SIZE,
    )
    for one in credit.slices:
        one.credit = pages.OPEN
    page.seal(against_writing=True)
    return page


def _work_page(slices: int) -> Page:
    page = Page("work", slices * pages.WORK_SIZE)
    for index in range(slices):
        work = page.as_form(pages.WorkSlice, index * pages.WORK_SIZE)
        work.magic, work.version, work.size = pages.WORK_MAGIC, pages.VERSION, pages.WORK_SIZE
    page.seal(against_writing=False)
    return page


def _limits_page(uuids: list[str], memory: int, context_bytes: int, policy: int) -> Page:
    page = Page("limits", c.sizeof(pages.Limits))
    limits = page.as_form(pages.Limits)
    limits.magic, limits.version = pages.LIMITS_MAGIC, pages.VERSION
    limits.size, limits.name = c.sizeof(pages.Limits), b"by-hand"
    limits.slice_count = len(uuids)
    for one, uuid in zip(limits.slices, uuids, strict=False):
        one.uuid[:] = bytes.fromhex(uuid)
        one.gpu_bytes = one.limit_bytes = memory
        one.context_bytes = context_bytes
        one.policy = policy
    return page


def _usage_page() -> Page:
    page = Page("usage", c.sizeof(pages.Usage))
    usage = page.as_form(pages.Usage)
    usage.magic, usage.version = pages.USAGE_MAGIC, pages.VERSION
    usage.size = c.sizeof(pages.Usage)
    return page


class Arbiter:
    """The arbiter of one grant of slices of these GPUs."""

    def __init__(
        self,
        directory: Path,
        uuids: list[str],
        *,
        memory: int,
        context_bytes: int,
        policy: int = pages.ELASTIC,
    ) -> None:
        directory.mkdir()
        self.directory = directory
        self.slices = len(uuids)
        self.limits = _limits_page(uuids, memory, context_bytes, policy)
        self.usage = _usage_page()
        self.rings = 0
        self.spoil = ""  # the page that the next process finds to be none
        self._pages: tuple[Page, Page] | None = None
        self._over: dict[int, int] = {}  # by slice, the newest quantum known to be over
        self._greeted: dict[str, int] = {}  # what the next process finds on its credit page
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(directory / "socket"))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    # --- what a test does

    def greet_with(self, **words: int) -> None:
        """Set fields of every slice in the credit page before the next process gets it."""
        self._greeted = words

    def credit(self, index: int = 0) -> pages.CreditSlice:
        assert self._pages, "nobody has said HELLO"
        one: pages.CreditSlice = self._pages[0].as_form(pages.Credit).slices[index]
        return one

    def work(self, index: int = 0) -> pages.WorkSlice:
        assert self._pages, "nobody has said HELLO"
        return self._pages[1].as_form(pages.WorkSlice, index * pages.WORK_SIZE)

    def give(self, credit: int, index: int = 0) -> None:
        self.credit(index).credit = credit

    def set_pace(self, pace: int, index: int = 0) -> None:
        self.credit(index).pace = pace

    def has_pages(self) -> bool:
        """Whether a process has said HELLO."""
        return self._pages is not None

    def asked(self, index: int = 0) -> int:
        """How many marks are in streams so far."""
        work = self.work(index)
        return sum(work.marks[at].asked for at in range(work.marks_end))

    def reached(self, index: int = 0) -> int:
        work = self.work(index)
        return sum(work.marks[at].done for at in range(work.marks_end))

    def done(self, index: int = 0) -> int:
        """The newest quantum that is over: aliquot_work_done."""
        work = self.work(index)
        closed = int(work.closed)
        reached = self.reached(index)
        over = max(self._over.get(index, 0), closed - pages.QUANTA)
        while over < closed and work.quanta[(over + 1) % pages.QUANTA].marks <= reached:
            over += 1
        self._over[index] = over
        return over

    def wait_done(self, quantum: int, index: int = 0) -> None:
        wait_until(lambda: self.done(index) >= quantum)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        for page in (self.limits, self.usage, *(self._pages or ())):
            os.close(page.fd)

    # --- what a process hears

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # who asked may be dead by now
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        data = connection.recv(MESSAGE.size)
        if len(data) != MESSAGE.size:
            return
        kind = MESSAGE.unpack(data)[2]
        if kind == HELLO:
            self._welcome(connection)
        elif kind == MEASURE:
            connection.send(_message(MEASURED))
        elif kind == RING:
            self.rings += 1

    def _welcome(self, connection: socket.socket) -> None:
        credit, work = _credit_page(), _work_page(self.slices)
        for one in credit.as_form(pages.Credit).slices:
            for word, value in self._greeted.items():
                setattr(one, word, value)
        if self.spoil:
            {"credit": credit, "work": work}[self.spoil].memory[0:4] = b"junk"
        self._pages, self._over = (credit, work), {}
        fds = array.array("i", [self.limits.fd, self.usage.fd, credit.fd, work.fd])
        carried: list[Any] = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        connection.sendmsg([_message(WELCOME)], carried)


def _message(kind: int) -> bytes:
    return MESSAGE.pack(MAGIC, PROTOCOL, kind, 0, b"")
