"""A fake arbiter: its control socket, and the parts of its status."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from support import GIB, uuid_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECOND = 1_000_000_000


class Played:
    """Sends one reply to every request, or what a function returns; keeps the requests."""

    def __init__(self, directory: Path, answer: bytes | Callable[[str], Any]) -> None:
        self.questions: list[str] = []
        self._answer = answer
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(directory / "control"))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, suppress(BrokenPipeError):  # a client that only checks for an answer
                question = connection.makefile("r", encoding="ascii").readline().rstrip("\n")
                if question:
                    self.questions.append(question)
                connection.sendall(self._say(question))

    def _say(self, question: str) -> bytes:
        if isinstance(self._answer, bytes):
            return self._answer
        return json.dumps(self._answer(question)).encode() + b"\n"

    def end(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


def compute_words(**changes: Any) -> dict[str, Any]:
    """The compute part of a slice: idle and never used, except for the changes."""
    words: dict[str, Any] = {
        "gates": "work",
        "why": 0,
        "state": "idle",
        "weight_percent": 50,
        "used_ns": 0,
        "handovers": 0,
        "fallbacks": 0,
        "backlog": 0,
        "waits": 0,
        "waited_ns": 0,
        "wait_p50_ns": 0,
        "wait_p99_ns": 0,
        "recent_used_ns": 0,
        "recent_ns": SECOND,
    }
    return {**words, **changes}


def slice_words(gpu: int = 0, **changes: Any) -> dict[str, Any]:
    words: dict[str, Any] = {
        "gpu": uuid_of(gpu),
        "index": gpu,
        "memory_bytes": 8 * GIB,
        "compute_percent": 0,
        "policy": "elastic",
        "priority": "normal",
        "counted_bytes": GIB,
        "driver_bytes": 0,
        "headroom_bytes": 0,
        "compute": compute_words(),
    }
    return {**words, **changes}


def grant_words(name: str, *slices: dict[str, Any], pids: tuple[int, ...] = (42,)) -> Any:
    return {
        "name": name,
        "directory": f"/nowhere/{name}",
        "life": "owned",
        "owner_pid": 1,
        "owner_alive": True,
        "owner_uid": 0,
        "created": 1,
        "broken": None,
        "slices": list(slices),
        "processes": [
            {"pid": pid, "inner_pid": pid, "name": "python", "state": "live", "slices": []}
            for pid in pids
        ],
    }


def gpu_words(index: int = 0, *, contended: bool = False, strangers: Any = ()) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": uuid_of(index),
        "name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": f"00000000:{index:02X}:00.0",
        "memory_bytes": 80 * GIB,
        "used_bytes": GIB,
        "granted_bytes": 8 * GIB,
        "strangers": list(strangers),
        "compute": {"contended": contended},
    }


def status_words(*grants: Any, gpus: Any = None, now: float = 1000.0, cpu: float = 0.0) -> Any:
    return {
        "version": 1,
        "pid": 7,
        "state": "/nowhere",
        "now_ns": round(now * SECOND),
        "credit_cpu_ns": round(cpu * SECOND),
        "gpus": [gpu_words()] if gpus is None else gpus,
        "grants": list(grants),
    }
