"""A tenant that makes the calls it is told: one JSON line in, one out.

    python -m standin.client [LIBRARY]

A line is [method of Worker, arguments...]; the answer is what the method answers. A few words more
are the process's own: fork, exec, race.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from standin.worker import Worker, run_threads

MIB = 1 << 20
_NEW_MOUNTS, _BIND, _RECURSIVE, _PRIVATE = 0x20000, 4096, 16384, 1 << 18


class Client(Worker):
    """A driver's client, and a process that can fork, exec and have threads."""

    def in_child(self, *calls: list[Any]) -> list[Any]:
        """Fork; the child makes the calls and exits. Returns its answers."""
        out, into = os.pipe()
        if child := os.fork():
            os.close(into)
            with os.fdopen(out) as answers:
                told = json.load(answers)
            os.waitpid(child, 0)
            return list(told)
        try:
            told = [getattr(self, name)(*arguments) for name, *arguments in calls]
            with os.fdopen(into, "w") as answers:
                json.dump(told, answers)
        finally:
            os._exit(0)

    def unmap_in_children(self, mappings: int, children: int) -> list[int]:
        """Fork children that unmap, while a thread unmaps. Returns their exit codes, sorted."""
        step = 2 * MIB
        memory = self.create_physical(step)[1]
        base = self.reserve_addresses((mappings + 1) * step)[1]
        for number in range(mappings):
            self.map(base + number * step, step, memory)
        unmapped, over = base + mappings * step, threading.Event()

        def keep_unmapping() -> None:
            while not over.is_set():
                self.unmap(unmapped, step)

        thread = threading.Thread(target=keep_unmapping)
        thread.start()
        codes = set()
        for _ in range(children):
            if not (child := os.fork()):
                signal.alarm(10)
                os._exit(self.unmap(unmapped, step)[0])
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        over.set()
        thread.join()
        return sorted(codes)

    def close_descriptor(self, descriptor: int) -> list[int]:
        os.close(descriptor)
        return [0]

    def send_descriptor(self, path: str, descriptor: int) -> list[int]:
        """To the process that waits in `receive_descriptor` at that path."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            while out.connect_ex(path):
                time.sleep(0.001)
            socket.send_fds(out, [b"0"], [descriptor])
        return [0]

    def receive_descriptor(self, path: str) -> list[int]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as into:
            into.bind(path)
            _, (descriptor,), _, _ = socket.recv_fds(into, 1, 1)
        Path(path).unlink()
        return [0, descriptor]

    def leave_child_behind(self) -> int:
        """Fork a child that sleeps until it is killed. Returns its pid."""
        if child := os.fork():
            return child
        while True:
            signal.pause()

    def become_new(self) -> None:
        """Exec the same program: the same pid, a new program."""
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def in_threads(self, count: int, sizes: list[int], rounds: int) -> list[int]:
        """Threads that allocate all sizes and free them. Returns the codes they got, sorted."""
        context = self.current()[1]
        seen: set[int] = set()

        def work(_number: int) -> None:
            self.set_current(context)
            for _ in range(rounds):
                answers = [self.alloc(size) for size in sizes]
                seen.update(code for code, _ in answers)
                seen.update(self.free(p)[0] for code, p in answers if code == 0)

        run_threads(work, count)
        return sorted(seen)

    def begin_in_threads(self, count: int) -> list[int]:
        """Threads that race for the process's first call. Returns the codes they got, sorted."""
        seen: set[int] = set()
        together = threading.Barrier(count)

        def begin(_number: int) -> None:
            together.wait()
            seen.update(self.start())
            seen.update(self.alloc(MIB)[:1])

        run_threads(begin, count)
        return sorted(seen)

    def turn_over_in_threads(self, count: int, rounds: int) -> list[int]:
        """Threads that retain and release the primary context. Returns their codes, sorted."""
        seen: set[int] = set()

        def turn_over(_number: int) -> None:
            for _ in range(rounds):
                seen.update(self.retain()[:1])
                seen.update(self.release())

        run_threads(turn_over, count)
        return sorted(seen)

    def fill_up(self, size: int) -> list[int]:
        """Allocate until one is refused. Returns how many there were, and the error."""
        count = 0
        while (answer := self.alloc(size))[0] == 0:
            count += 1
        return [count, answer[0]]

    def descriptors(self) -> list[str]:
        """The descriptors that this process has open."""
        return sorted(path.name for path in Path("/proc/self/fd").iterdir())

    def use_up_descriptors(self) -> int:
        """Open files until the limit. Returns how many."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        self.held: list[int] = []
        try:
            while True:
                self.held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return len(self.held)

    def prefer(self, pointer: int) -> list[bool]:
        """As a program does it, with the module alone: there are no packages here."""
        path = Path(__file__).parents[2] / "src" / "aliquot" / "worker.py"
        spec = importlib.util.spec_from_file_location("aliquot_worker", path)
        assert spec
        assert spec.loader
        module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(module)
        return [bool(module.prefer(pointer))]

    def mount_over(self, path: str, over: str) -> list[int]:
        """Mount a file over another that only this process sees so."""
        libc = ctypes.CDLL(None)
        codes = [
            libc.unshare(_NEW_MOUNTS),
            libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None),
            libc.mount(path.encode(), over.encode(), None, _BIND, None),
        ]
        return [sum(map(abs, codes))]

    def pid(self) -> int:
        return os.getpid()


def main() -> None:
    client = Client(*sys.argv[1:])
    # Unbuffered, so that a program that this one becomes finds the lines meant for it.
    for line in iter(open(0, "rb", buffering=0, closefd=False).readline, b""):  # noqa: SIM115
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(client, name)(*arguments)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
