"""Running a command whose end and output nobody vouches for, within bounds of time and output."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BYTES = 1 << 20
_CHUNK = 1 << 16
_TOO_LONG = "it does not end in time"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended and what it wrote, as text that may be anything."""

    code: int
    output: str
    errors: str

    @property
    def said(self) -> str:
        """What it said of its failure, as one printable line."""
        line = " ".join((self.errors.strip() or self.output.strip()).split())
        return "".join(one for one in line if one.isprintable())


def run_bounded(command: Sequence[str], seconds: float, given: str = "", **how: Any) -> Finished:
    """Run a command with that short input; `how` is as of Popen.

    TimeoutError if it has not ended in time, or has left somebody who may still write; OSError if
    it cannot be run, or writes more than 1 MiB. It is killed then.
    """
    if seconds <= 0:
        raise TimeoutError(_TOO_LONG)
    deadline = time.monotonic() + seconds
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, **how
    ) as process:
        try:
            with cast("IO[bytes]", process.stdin) as giving, suppress(BrokenPipeError):
                giving.write(given.encode())
            output, errors = _read(process, deadline)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise TimeoutError(_TOO_LONG) from error
        except BaseException:
            process.kill()
            raise
    return Finished(code, output, errors)


def _read(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, str]:
    """All that is written to both pipes, until both have ended."""
    output, errors = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stderr)
    written = {output.fileno(): bytearray(), errors.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in written:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise TimeoutError(_TOO_LONG)
            for key, _ in ready:
                part = os.read(key.fd, _CHUNK)
                written[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
                if len(written[key.fd]) > MOST_BYTES:
                    raise OSError("it does not stop writing")
    first, second = (text.decode("utf-8", "replace") for text in written.values())
    return first, second
