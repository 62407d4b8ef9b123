"""A program with memory on a simulated GPU, which it sends away and gets back as it is told.

It takes orders as JSON from a socket, its descriptor in the first argument; a descriptor that comes
with an order is its new connection to the mover.
"""

from __future__ import annotations

import ctypes as c
import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from arbiter.wire import MOVER, Holding, exchange, hello_message
from arbiter.wire import message as grant_message
from mover import wire

PINNED = ON_DEVICE = FILE_DESCRIPTOR = 1
READ_WRITE = 3


def content(seed: int, size: int) -> bytes:
    """Bytes that differ from one page to the next."""
    block = hashlib.shake_128(str(seed).encode()).digest((1 << 16) + 1)
    return (block * (size // len(block) + 1))[:size]


class Location(c.Structure):
    _fields_ = (("type", c.c_int), ("id", c.c_int))


class Properties(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", Location),
        ("security", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    )


class Access(c.Structure):
    _fields_ = (("location", Location), ("flags", c.c_int))


class Client:
    """Its pieces, by address."""

    def __init__(self) -> None:
        self._driver = c.CDLL("libcuda.so.1")
        self._handles: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._connection: socket.socket | None = None
        context = c.c_void_p()
        self._call("cuInit", 0)
        self._call("cuCtxCreate_v2", c.byref(context), 0, 0)

    def _call(self, name: str, *arguments: Any) -> None:
        whole = [c.c_uint64(one) if isinstance(one, int) else one for one in arguments]
        code = getattr(self._driver, name)(*whole)
        assert code == 0, f"{name}: {code}"

    @property
    def connection(self) -> socket.socket:
        assert self._connection
        return self._connection

    def connect(self, fd: int) -> None:
        if self._connection:
            self._connection.close()
        self._connection = socket.socket(fileno=fd)
        self._connection.settimeout(60)

    def join(self, directory: str) -> None:
        """Join a grant."""
        Holding.of(exchange(Path(directory), hello_message()))

    def hello(self, directory: str) -> str:
        """Ask to join a grant; why it cannot now."""
        return exchange(Path(directory), hello_message()).text

    def mover(self, directory: str, slice_index: int = 0) -> str:
        """Ask the arbiter for a connection; why there is none."""
        answer = exchange(Path(directory), grant_message(MOVER, slice_index))
        if answer.kind == MOVER:
            self.connect(answer.fds[0])
        return answer.text

    def make(self, size: int, seed: int | None) -> int:
        """Make a piece, filled unless there is no seed; its address."""
        address = c.c_uint64()
        self._call("cuMemAddressReserve", c.byref(address), size, 0, 0, 0)
        self._sizes[address.value] = size
        self._back(address.value)
        if seed is not None:
            data = content(seed, size)
            self._call("cuMemcpyHtoD_v2", address.value, c.c_char_p(data), size)
        return address.value

    def _back(self, piece: int) -> None:
        handle = c.c_uint64()
        wanted = Properties(PINNED, FILE_DESCRIPTOR, Location(ON_DEVICE, 0))
        size = self._sizes[piece]
        self._call("cuMemCreate", c.byref(handle), size, c.byref(wanted), 0)
        self._call("cuMemMap", piece, size, 0, handle.value, 0)
        access = Access(Location(ON_DEVICE, 0), READ_WRITE)
        self._call("cuMemSetAccess", piece, size, c.byref(access), 1)
        self._handles[piece] = handle.value

    def is_filled(self, piece: int, seed: int) -> bool:
        """Whether a piece has the bytes that it was made with."""
        size = self._sizes[piece]
        data = c.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, piece, size)
        return data.raw == content(seed, size)

    def export(self, piece: int) -> int:
        fd = c.c_int(-1)
        handle = self._handles[piece]
        self._call("cuMemExportToShareableHandle", c.byref(fd), handle, FILE_DESCRIPTOR, 0)
        return fd.value

    def send(self, kind: int, piece: int, size: int | None = None) -> None:
        """Send a request, with the piece's descriptor if it is a move."""
        data = wire.message(kind, piece, self._sizes.get(piece, 0) if size is None else size)
        if kind == wire.FORGET:
            wire.send(self.connection, data)
            return
        fd = self.export(piece)
        wire.send(self.connection, data, fd)
        os.close(fd)

    def answer(self) -> list[Any] | None:
        """The next answer: kind, piece, failure, text; None: the connection is closed."""
        answer = wire.receive(self.connection)
        return [answer.kind, answer.piece, answer.failure, answer.text] if answer else None

    def ask(self, kind: int, piece: int, size: int | None = None) -> list[Any] | None:
        self.send(kind, piece, size)
        return self.answer()

    def release(self, piece: int) -> None:
        """Give the piece's memory back; its address stays."""
        self._call("cuMemUnmap", piece, self._sizes[piece])
        self._call("cuMemRelease", self._handles.pop(piece))

    def back(self, piece: int) -> None:
        """Put new memory at the piece's address."""
        self._back(piece)

    def free(self) -> int:
        free, total = c.c_size_t(), c.c_size_t()
        self._call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return free.value

    def exec(self) -> None:
        """Become the same program anew: same process, nothing of the old one's memory."""
        os.set_inheritable(int(sys.argv[1]), True)  # noqa: FBT003 - it takes no keywords
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def sleep(self) -> None:
        """Become a program that uses no GPU."""
        os.execvp("sleep", ["sleep", "1000"])


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    client = Client()
    orders.sendall(b"here\n")
    while True:
        data, fds, _, _ = socket.recv_fds(orders, 4096, 1)
        if not data:
            return
        if fds:
            client.connect(fds[0])
        name, *arguments = json.loads(data)
        result = getattr(client, name)(*arguments) if name != "connected" else None
        orders.sendall(json.dumps(result).encode() + b"\n")


main()
