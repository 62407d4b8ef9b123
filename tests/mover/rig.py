"""A mover without an arbiter, on a simulated GPU, and programs whose memory it copies."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from mover import wire
from mover.wire import MIB
from support import wait_until


class Mover:
    """The test has the part of the arbiter and of its parent."""

    def __init__(self, program: Path, env: dict[str, str], gpu: str, log: Path) -> None:
        self.limit = 1024 * MIB
        self._program, self._env, self._gpu = program, env, gpu
        self._arenas = _high(os.memfd_create("arenas"))
        os.ftruncate(self._arenas, wire.MOVERS * wire.ARENA_SIZE)
        header = struct.pack("<QII", wire.ARENA_MAGIC, 1, wire.ARENA_SIZE)
        os.pwrite(self._arenas, header, 0)
        self._data = _high(os.memfd_create("data"))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders, self._their_orders = ours, _high(theirs.detach())
        self.log = log
        log.touch()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = f'exec "$@" 3<&{self._arenas} 4<&{self._data} 5<&{self._their_orders}'
        library = Path(self._env["LD_LIBRARY_PATH"]) / "libcuda.so.1"
        arguments = [str(self._program), str(library), self._gpu, "0", str(self.limit)]
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                ["bash", "-c", command, "bash", *arguments],
                env=self._env,
                pass_fds=(self._arenas, self._data, self._their_orders),
                stderr=out,
            )

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait(60)

    def restart(self) -> None:
        self.kill()
        self.start()

    def start_again_if_it_ended(self) -> None:
        """As the arbiter's parent does when there is an order."""
        if self.process and self.process.poll() is not None:
            self.start()

    def set_environment(self, **variables: str) -> None:
        self._env = {**self._env, **variables}

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.kill()
        for fd in (self._arenas, self._data, self._their_orders):
            os.close(fd)
        self._orders.close()
        log = self.log.read_text()
        assert "Sanitizer" not in log, log
        assert "runtime error" not in log, log

    def serve(self, pid: int, grant: int = 1, most: int = 1024 * MIB) -> socket.socket:
        """A connection for that process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(60)
        data = wire.order(wire.SERVE, pid, wire.start_time_of(pid), grant, most)
        with theirs:
            wire.send(self._orders, data, theirs.fileno())
        return ours

    def forget(self, pid: int, start_time: int) -> None:
        wire.send(self._orders, wire.order(wire.FORGET_PROCESS, pid, start_time))

    def want(self, size: int) -> None:
        """Ask for that much memory of the host ahead of need."""
        os.pwrite(self._arenas, struct.pack("<Q", size), wire.WANTED_AT)
        wire.send(self._orders, wire.order(wire.LOOK))

    def totals(self) -> wire.Totals:
        header = wire.HEADER.unpack(os.pread(self._arenas, wire.HEADER.size, 0))
        return wire.Totals(*header[3:])

    def extents(self) -> list[wire.Extent]:
        found = []
        page = os.pread(self._arenas, 1024 * wire.EXTENT.size, wire.HEADER_SIZE)
        for state, pid, _, _, piece, size, offset, _, _ in wire.EXTENT.iter_unpack(page):
            if state:
                found.append(wire.Extent(pid, piece, size, offset))
        return found

    def data_size(self) -> int:
        return os.fstat(self._data).st_size

    def spoil(self, offset: int) -> None:
        """Change a byte of the arena."""
        (byte,) = os.pread(self._data, 1, offset)
        os.pwrite(self._data, bytes([byte ^ 1]), offset)

    def descriptors(self) -> int:
        """How many it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


def _high(fd: int) -> int:
    """The same descriptor at a number that no redirection uses."""
    copy = os.dup(fd)
    copies = [copy]
    while copies[-1] < 20:
        copies.append(os.dup(fd))
    for one in (fd, *copies[:-1]):
        os.close(one)
    return copies[-1]


class Client:
    """A process with memory on the GPU (client_program.py)."""

    def __init__(self, env: dict[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = str(Path(__file__).with_name("client_program.py"))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, program, str(theirs.fileno())],
                env=env,
                pass_fds=(theirs.fileno(),),
            )
        self._orders = ours
        self._orders.settimeout(60)
        self.pid = self._process.pid
        self.await_here()
        self.start_time = wire.start_time_of(self.pid)

    def await_here(self) -> None:
        assert self._orders.recv(64) == b"here\n"

    def __call__(self, name: str, *arguments: Any, fd: int | None = None) -> Any:
        self.tell(name, *arguments, fd=fd)
        return self.result()

    def tell(self, name: str, *arguments: Any, fd: int | None = None) -> None:
        data = json.dumps([name, *arguments]).encode()
        rights = [] if fd is None else [fd]
        part = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", rights))
        self._orders.sendmsg([data], [part] if rights else [])

    def result(self) -> Any:
        data = self._orders.recv(1 << 16)
        assert data, "the program has ended"
        return json.loads(data)

    def connect(self, connection: socket.socket) -> None:
        with connection:
            self("connected", fd=connection.fileno())

    def done(self, kind: int, piece: int) -> None:
        """A request that must succeed."""
        assert self("ask", kind, piece) == [wire.DONE, piece, 0, ""]

    def leave(self, *pieces: int) -> None:
        """Move pieces to the host, and give their memory back."""
        for piece in pieces:
            self.done(wire.OUT, piece)
            self("release", piece)

    def return_(self, *pieces: int) -> None:
        for piece in pieces:
            self("back", piece)
            self.done(wire.IN, piece)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def close(self) -> None:
        self.kill()
        self._orders.close()


def await_extents(mover: Mover, count: int) -> None:
    wait_until(lambda: mover.totals().extents == count)
    assert len(mover.extents()) == count
