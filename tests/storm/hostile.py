"""A tenant that joins its grant and then writes anything to whatever it can reach.

    python -S -m storm.hostile DIRECTORY-OF-THE-GRANT SEED SECONDS

It opens every descriptor that it was given again for writing, as root in a container can, maps what
can be mapped, and fills it with random bytes, with counters near the end of their range, and with
what the arbiter's own words look like. Between them it sends random messages. Sometimes it
truncates what it can before it ends. It prints the names of the pages that it could write.
"""

from __future__ import annotations

import mmap
import os
import random
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from arbiter import wire

PAGES = ("limits", "usage", "credit", "work")
WORDS = (0, 1, 2, 2**31, 2**32 - 1, 2**62 - 1, 2**62, 2**63, 2**64 - 2, 2**64 - 1)


def writable(fd: int) -> tuple[int, mmap.mmap] | None:
    """The page behind the descriptor, opened again and mapped for writing; None: refused."""
    for path in (None, f"/proc/self/fd/{fd}"):
        with suppress(OSError):
            again = fd if path is None else os.open(path, os.O_RDWR)
            return again, mmap.mmap(again, os.fstat(again).st_size)
    return None


def scribble(page: mmap.mmap, dice: random.Random) -> None:
    """Random bytes anywhere, or extreme words where the first words are."""
    if dice.random() < 0.5:
        at = dice.randrange(len(page))
        data = dice.randbytes(min(dice.choice((1, 8, 64, 4096)), len(page) - at))
        page[at : at + len(data)] = data
    else:
        at = 8 * dice.randrange(min(len(page), 8192) // 8)
        struct.pack_into("<Q", page, at, dice.choice(WORDS))


def send_nonsense(directory: Path, dice: random.Random) -> None:
    with (
        suppress(OSError, AssertionError),
        wire.connected(directory, "socket", socket.SOCK_SEQPACKET) as connection,
    ):
        kind, value = dice.randrange(9), dice.choice(WORDS)
        connection.send(dice.choice((wire.message(kind, value), dice.randbytes(128))))


def join(directory: Path) -> wire.Answer:
    """Join the grant, as soon as an arbiter answers."""
    while True:
        with suppress(OSError, AssertionError):
            return wire.exchange(directory, wire.hello_message())
        time.sleep(0.01)


def main(directory: Path, seed: int, seconds: float) -> None:
    dice = random.Random(seed)  # noqa: S311
    answer = join(directory)
    found = {
        name: page for name, fd in zip(PAGES, answer.fds, strict=True) if (page := writable(fd))
    }
    sys.stdout.write(" ".join(found) + "\n")
    sys.stdout.flush()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(100):
            scribble(dice.choice([page for _, page in found.values()]), dice)
        send_nonsense(directory, dice)
    if seed % 2:
        for fd, _ in found.values():
            with suppress(OSError):
                os.ftruncate(fd, dice.choice((0, 4096)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
