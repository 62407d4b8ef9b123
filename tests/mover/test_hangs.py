"""A mover that hangs is replaced, and no copy is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mover import wire
from mover.arbiter_rig import PIECE, join
from support import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from mover.arbiter_rig import Programs, Rig
    from mover.rig import Client, Mover

    Clients = Callable[..., Client]

PATIENCE = 1  # seconds without progress
LOOKS = 8  # of a mover, for much longer than that
SOURCE = Path(__file__).with_name("hanging_driver.c")
NO_FORK = Path(__file__).with_name("no_fork.c")


@pytest.fixture
def impatient_rig(stopped_rig: Rig) -> Rig:
    """An arbiter that replaces a mover after a second without progress, and a look or two."""
    environment = stopped_rig.arbiter.machine.environment
    environment["ALIQUOT_MOVER_PATIENCE"] = str(PATIENCE)
    stopped_rig.start()
    return stopped_rig


@pytest.fixture
def hangs(native_dir: Path, stopped_rig: Rig, tmp_path: Path) -> Path:
    """The driver hangs while this file exists; to be asked for before the arbiter is started."""
    driver, library = native_dir / "sim", tmp_path / "libhanging.so"
    link = [f"-L{driver}", "-l:libcuda.so.1", f"-Wl,-rpath,{driver}"]
    command = ["gcc", "-shared", "-fPIC", str(SOURCE), "-o", str(library), "-Wl,--no-as-needed"]
    subprocess.run([*command, *link], check=True)
    stopped_rig.cuda = library
    file = tmp_path / "hangs"
    stopped_rig.arbiter.machine.environment["HANGS_WHILE"] = str(file)
    return file


@pytest.fixture
def no_fork(stopped_rig: Rig, tmp_path: Path) -> Path:
    """The arbiter can start no process while this file exists."""
    library, file = tmp_path / "libnofork.so", tmp_path / "no-fork"
    subprocess.run(["gcc", "-shared", "-fPIC", str(NO_FORK), "-o", str(library)], check=True)
    stopped_rig.arbiter.machine.environment.update(LD_PRELOAD=str(library), NO_FORK_WHILE=str(file))
    return file


def stop_mover(rig: Rig) -> None:
    wait_until(lambda: rig.mover()["pid"])
    os.kill(rig.mover()["pid"], signal.SIGSTOP)


def test_a_mover_that_is_stopped_is_replaced_and_has_all_copies(
    impatient_rig: Rig, programs: Programs
) -> None:
    rig, directory = impatient_rig, impatient_rig.make()
    client = join(programs, directory)
    pieces = [client("make", PIECE, seed) for seed in range(3)]
    client.leave(*pieces[:2])
    stop_mover(rig)
    client("send", wire.OUT, pieces[2])  # nobody reads it
    assert client("answer") is None
    assert client("mover", str(directory)) == ""
    client.leave(pieces[2])
    assert (rig.mover()["hangs"], rig.copies()) == (1, len(pieces))
    client.return_(*pieces)
    assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))
    assert "has made no progress for 2 s: killed" in rig.arbiter.log.read_text()


def test_a_mover_that_is_stopped_while_nobody_uses_it_is_replaced(
    impatient_rig: Rig, programs: Programs
) -> None:
    rig, directory = impatient_rig, impatient_rig.make()
    client = join(programs, directory)
    piece = client("make", PIECE, 1)
    client.leave(piece)
    stop_mover(rig)
    wait_until(lambda: rig.mover()["silent_seconds"])
    wait_until(lambda: rig.mover()["hangs"] == 1)
    wait_until(lambda: rig.mover()["pid"])  # without an order
    assert client("mover", str(directory)) == ""
    client.return_(piece)
    assert client("is_filled", piece, 1)


@pytest.mark.parametrize("kind", [wire.OUT, wire.IN], ids=["out", "in"])
def test_a_thread_that_hangs_in_the_driver_is_noticed(
    hangs: Path, impatient_rig: Rig, programs: Programs, kind: int
) -> None:
    rig, directory = impatient_rig, impatient_rig.make()
    client, other = join(programs, directory), join(programs, directory)
    piece, kept = client("make", PIECE, 1), other("make", PIECE, 2)
    other.leave(kept)
    if kind == wire.IN:
        client.leave(piece)
        client("back", piece)
    hangs.touch()
    assert client("ask", kind, piece) is None
    hangs.unlink()
    assert client("mover", str(directory)) == ""
    client.done(kind, piece)
    assert client("is_filled", piece, 1)
    assert other("mover", str(directory)) == ""
    other.return_(kept)
    assert other("is_filled", kept, 2)
    assert rig.mover()["hangs"] == 1
    assert "a thread has done nothing for 1 s" in rig.arbiter.log.read_text()


def test_a_mover_that_always_hangs_is_given_up_for_a_while(
    hangs: Path, impatient_rig: Rig, programs: Programs
) -> None:
    rig, directory = impatient_rig, impatient_rig.make()
    client = join(programs, directory)
    piece = client("make", PIECE, 1)
    hangs.touch()
    assert client("ask", wire.OUT, piece) is None
    assert client("mover", str(directory)) == ""
    assert client("ask", wire.OUT, piece) is None
    wait_until(lambda: client("mover", str(directory)) != "")
    assert "has hung too often: try again in 10 s" in client("mover", str(directory))
    assert rig.mover()["hangs"] == 2
    hangs.unlink()
    assert client("is_filled", piece, 1)
    wait_until(lambda: client("mover", str(directory)) == "")
    client.leave(piece)
    client.return_(piece)
    assert client("is_filled", piece, 1)


def test_a_mover_that_cannot_be_started_is_tried_again_later(
    no_fork: Path, stopped_rig: Rig, programs: Programs
) -> None:
    rig = stopped_rig
    rig.start()
    no_fork.touch()
    directory = rig.make()
    client = programs()
    client("join", str(directory))
    piece = client("make", PIECE, 1)
    wait_until(lambda: "could not be started" in client("mover", str(directory)))
    assert rig.arbiter.log.read_text().count("cannot be started") == 1
    no_fork.unlink()
    wait_until(lambda: client("mover", str(directory)) == "")
    client.leave(piece)
    client.return_(piece)
    assert client("is_filled", piece, 1)


def test_a_program_that_reads_no_answers_hangs_nobody(
    stopped_mover: Mover, programs: Clients
) -> None:
    stopped_mover.set_environment(ALIQUOT_MOVER_PATIENCE=str(PATIENCE))
    stopped_mover.start()
    client = programs()
    client.connect(stopped_mover.serve(client.pid))
    deaf = stopped_mover.serve(os.getpid())
    deaf.settimeout(1)
    with suppress(TimeoutError):  # then the mover waits to send an answer
        while True:
            wire.send(deaf, wire.message(wire.FORGET, 0))
    beats = stopped_mover.totals().beats
    wait_until(lambda: stopped_mover.totals().beats > beats + LOOKS)
    piece = client("make", PIECE, 1)
    client.leave(piece)
    client.return_(piece)
    deaf.close()
