"""The MPS control daemon of a simulated machine, with the commands of NVIDIA's.

It has no server that runs anything: programs use the simulated driver as ever, and nothing fails
by itself. It knows its clients (programs with its pipe directory that have loaded a driver), and
the command `simulate_fault` makes it behave as NVIDIA's does after a client's failure: it accepts
no new clients until those of now are gone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from aliquot.slices.mps_control import PIPES

_PID_FILE = "nvidia-cuda-mps-control.pid"
_LONGEST = 1 << 16


class Daemon:
    """The daemon: its server, a process that only waits; and who was there when one failed."""

    def __init__(self, pipes: Path) -> None:
        self._pipes = pipes
        self._server: subprocess.Popen[bytes] | None = None
        self._fated: set[int] = set()
        self._ended: set[int] = set()

    def answer(self, command: list[str]) -> str:
        """The answer to one command."""
        answer = ""
        match command:
            case ["start_server", "-uid", _]:
                self._start()
            case ["get_server_list"]:
                answer = "" if self._server is None else str(self._server.pid)
            case ["get_server_status", _]:
                self._fated &= self._clients()
                answer = "FAULT" if self._fated else "ACTIVE"
            case ["get_client_list", _]:
                answer = _lines(self._clients())
            case ["terminate_client", _, client]:
                self._ended.add(int(client))
            case ["simulate_fault"]:
                self._fated = self._clients()
            case ["terminated"]:
                answer = _lines(self._ended)
            case _:
                answer = "Unknown command"
        return answer

    def _start(self) -> None:
        if self._server is None or self._server.poll() is not None:
            sleeping = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
            self._server = subprocess.Popen(
                [*sleeping, "nvidia-cuda-mps-server"], stdin=subprocess.PIPE
            )

    def end(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def _clients(self) -> set[int]:
        names = (path.name for path in Path("/proc").iterdir())
        return {int(name) for name in names if name.isdecimal() and self._is_client(int(name))}

    def _is_client(self, pid: int) -> bool:
        variable = f"{PIPES}={self._pipes}".encode()
        with suppress(OSError):
            process = Path(f"/proc/{pid}")
            if variable in (process / "environ").read_bytes().split(b"\0"):
                return b"libcuda.so" in (process / "maps").read_bytes()
        return False


def _lines(pids: set[int]) -> str:
    return "\n".join(map(str, sorted(pids)))


def serve(pipes: Path) -> None:
    """Answer commands until `quit` or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    address = pipes / "control"
    address.unlink(missing_ok=True)
    daemon = Daemon(pipes)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        os.chdir(pipes)  # the path may be longer than an address
        listener.bind("control")
        listener.listen()
        (pipes / _PID_FILE).write_text(str(os.getpid()), "ascii")
        try:
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):  # who asked may not wait any more
                    command = connection.recv(_LONGEST).decode("utf-8", "replace").split()
                    if command == ["quit"]:
                        return
                    connection.sendall(daemon.answer(command).encode())
        finally:
            daemon.end()
            (pipes / _PID_FILE).unlink(missing_ok=True)


def ask(pipes: Path, command: str) -> int:
    """Send a command to the daemon, and print its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            os.chdir(pipes)
            connection.connect("control")
            connection.sendall(command.encode())
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(_LONGEST):
                sys.stdout.write(part.decode())
        except OSError as error:
            sys.stderr.write(f"Cannot find MPS control daemon process: {error.strerror}\n")
            return 1
    return 0


if __name__ == "__main__":
    directory = Path(os.environ[PIPES])
    if "-f" in sys.argv:
        serve(directory)
    else:
        sys.exit(ask(directory, sys.stdin.read()))
