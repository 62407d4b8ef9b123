"""`aliquot remote serve`, and `aliquot run --remote`."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from aliquot.model import Request
from aliquot.model.errors import InvalidValueError
from aliquot.remote import launch, server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DEVICES = ("cuda", "cpu")


def serve_command(path: Path, python: str, device: str, simulate: str | None) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    if device not in DEVICES:
        raise InvalidValueError(f"{device!r} is no device", "Give --device cuda or --device cpu.")
    settings = server.ExecutorSettings(python, device, simulate)
    torch = server.torch_of(python)
    serving = server.RemoteServer(path, settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stderr.write(f"aliquot: serving GPUs at {path} with PyTorch {torch}\n")
    sys.stderr.flush()
    try:
        serving.serve()
    except KeyboardInterrupt:
        sys.stderr.write("aliquot: ended; its slices are given back\n")


def run_remote(
    path: Path, request: Request, memory: str | None, command: Sequence[str], *, only_size: bool
) -> None:
    """Become the command with a remote slice; does not return."""
    size = Request(memory=request.memory, compute_percent=request.compute_percent)
    if request != size or not only_size:
        raise InvalidValueError(
            "--remote takes --memory and --compute alone so far", "Leave out the other options."
        )
    launch.run(path, memory, request.compute_percent, command, os.environ)
