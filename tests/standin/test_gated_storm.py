"""Threads launch by all calls concurrently, while credit comes slowly and the pace changes.

ALIQUOT_TEST_NATIVE names another build, whose sanitizer the program is then built with.
"""

from __future__ import annotations

import itertools
import random
import subprocess
from pathlib import Path

import pytest

from aliquot.devices import CUDA
from standin import pages
from standin.gated import Gated
from standin.machine import Grant, can_read
from storm.test_storm import SANITIZERS, headers, sanitizer_of
from support import wait_until

SOURCE = Path(__file__).parent.parent / "native" / "cuda" / "launches.c"
THREADS, ROUNDS = 6, 200
PACES = [pages.TURNS] * 5 + [pages.YIELD, pages.ALONE]


@pytest.fixture(scope="session")
def program(native_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launches") / "launches"
    flags = ["-std=gnu11", "-O1", "-g", "-pthread", f"-I{headers()}"]
    command = ["gcc", *flags, *sanitizer_of(native_dir), str(SOURCE), "-o", str(path), "-ldl"]
    subprocess.run(command, check=True)
    return path


def start(gated: Gated, program: Path, seed: int, queues: int) -> subprocess.Popen[str]:
    # The stand-in by its path: a sanitizer's library must come before anything preloaded.
    environment = gated.machine.inside(
        Grant("by-hand", gated.arbiter.directory),
        LD_PRELOAD=None,
        LD_LIBRARY_PATH=None,
        CUDA_DEVICE_MAX_CONNECTIONS=str(queues),
    )
    command = [str(program), str(gated.machine.library / CUDA)]
    return subprocess.Popen(
        [*command, str(THREADS), str(ROUNDS), str(seed)],
        env={**environment, **SANITIZERS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def give_in_pieces(gated: Gated, process: subprocess.Popen[str], seed: int) -> None:
    """Give a little more credit than is used, and change the pace at random."""
    moods = random.Random(seed)  # noqa: S311
    credit = gated.arbiter.credit()
    credit.quantum_ns = 50_000
    assert process.stdout
    for turn in itertools.count():
        gated.arbiter.give(gated.arbiter.done() + moods.randint(1, 3))
        if turn % 50 == 0:
            gated.arbiter.set_pace(moods.choice(PACES))
        if can_read(process.stdout):
            return


@pytest.mark.parametrize("queues", [1, 8])
def test_no_work_is_lost_and_no_thread_waits_for_ever(
    gated: Gated, program: Path, queues: int
) -> None:
    gated.arbiter.greet_with(credit=2, pace=pages.TURNS, quantum_ns=50_000)
    process = start(gated, program, seed=queues, queues=queues)
    try:
        wait_until(gated.arbiter.has_pages)
        give_in_pieces(gated, process, queues)
        assert process.stdout
        line = process.stdout.readline()
        if line == "done\n":
            wait_until(lambda: gated.arbiter.asked() == gated.arbiter.reached())
            gated.arbiter.wait_done(gated.arbiter.work().closed)
        _, said = process.communicate(timeout=60)
        assert (line, process.returncode) == ("done\n", 0), said
        assert said == ""
    finally:
        process.kill()
        process.wait()
