"""Grants of --isolation mps on a simulated machine: their server starts, fails and ends."""

from __future__ import annotations

import errno
import io
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot import slices
from aliquot.devices import Driver, parse_shape
from aliquot.model.errors import MpsError
from aliquot.slices import mps, mps_control, mps_watcher, procfs
from aliquot.slices.mps import ServerFolder
from aliquot.slices.mps_control import Control
from aliquot.slices.mps_state import MpsClient, MpsPhase
from aliquot.slices.state_directory import StateDirectory
from support import uuid_of, wait_until

GPU = uuid_of(0)
LOADS = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(flush=True); sys.stdin.read()"


@pytest.fixture
def folder(short_tmp: Path) -> ServerFolder:
    found = ServerFolder(short_tmp / "mps" / GPU, GPU)
    found.path.parent.mkdir()
    mps.make_folder(found, simulated=True)
    return found


@pytest.fixture
def driver(short_tmp: Path) -> Driver:
    shape = parse_shape("h100:1")
    return slices.StateDirectory(short_tmp, shape).driver()


@pytest.fixture
def control(folder: ServerFolder, driver: Driver) -> Control:
    return folder.control(mps_control.control_program(driver))


@pytest.fixture
def wanted() -> list[bool]:
    return [True]


@pytest.fixture
def watcher(
    folder: ServerFolder, control: Control, wanted: list[bool]
) -> Iterator[mps_watcher.Watcher]:
    made = mps_watcher.Watcher(folder, control, lambda: wanted[0])
    try:
        made.begin()
        made.wait_for_start()
        yield made
    finally:
        made.quit()


@pytest.fixture
def client(control: Control, driver: Driver) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOADS, str(driver.cuda)],
        env={**os.environ, **driver.variables, **control.variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def phase(folder: ServerFolder) -> MpsPhase:
    return MpsPhase(folder.record()["phase"])


def test_the_directories_of_a_server_are_its_users_alone(folder: ServerFolder) -> None:
    for path in (folder.path, folder.path / "pipe", folder.path / "log"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_fault_ends_all_and_new_clients_wait_for_the_old_ones(
    folder: ServerFolder,
    control: Control,
    watcher: mps_watcher.Watcher,
    client: subprocess.Popen[bytes],
) -> None:
    watcher.look()
    assert folder.record()["clients"] == [client.pid]
    control.ask("simulate_fault")
    watcher.look()
    record = folder.record()
    assert (phase(folder), record["old"]) == (MpsPhase.DRAINING, [client.pid])
    assert "ends the GPU work of all clients" in record["why"]
    watcher.look()
    assert phase(folder) is MpsPhase.DRAINING
    client.kill()
    client.wait()
    watcher.look()
    watcher.wait_for_start()
    assert phase(folder) is MpsPhase.READY


def test_a_server_is_started_again_when_its_daemon_died(
    folder: ServerFolder, control: Control, watcher: mps_watcher.Watcher
) -> None:
    server = control.servers()[0]
    watcher.kill_daemon()
    watcher.look()
    assert "control daemon ended" in folder.record()["why"]
    watcher.look()
    watcher.wait_for_start()
    assert phase(folder) is MpsPhase.READY
    assert control.servers() != [server]
    wait_until(lambda: procfs.started_at(server) is None, 60)


def test_a_server_whose_folder_is_gone_ends_at_once(
    folder: ServerFolder, control: Control, watcher: mps_watcher.Watcher
) -> None:
    server = control.servers()[0]
    shutil.rmtree(folder.path)
    watcher.tend()
    assert not watcher.is_needed
    wait_until(lambda: procfs.started_at(server) is None, 60)


def test_without_an_arbiter_a_server_is_wanted_for_a_while(short_tmp: Path) -> None:
    now = [100.0]
    wanted = mps_watcher.wants_server(StateDirectory(short_tmp), GPU, lambda: now[0])
    assert wanted()
    now[0] += 19
    assert wanted()
    now[0] += 2
    assert not wanted()


def test_a_killed_watchers_daemon_is_adopted(
    folder: ServerFolder, control: Control, watcher: mps_watcher.Watcher
) -> None:
    server = control.servers()
    second = mps_watcher.Watcher(folder, control, lambda: True)
    second.begin()
    second.wait_for_start()
    assert control.servers() == server
    assert watcher.state.server == second.state.server


REFUSES = """#!/bin/sh
test -e {flag} && exit 1
exec {program} "$@"
"""


@pytest.fixture
def silence(short_tmp: Path) -> Path:
    """While this file exists, commands to the daemon of `moody` fail."""
    return short_tmp / "silence"


@pytest.fixture
def moody(control: Control, silence: Path, short_tmp: Path) -> Control:
    program = short_tmp / "program"
    program.write_text(REFUSES.format(flag=silence, program=shlex.join(control.program)))
    program.chmod(0o755)
    return replace(control, program=[str(program)])


def test_a_daemon_that_does_not_answer_is_not_taken_for_a_dead_one(
    folder: ServerFolder,
    control: Control,
    moody: Control,
    silence: Path,
    client: subprocess.Popen[bytes],
) -> None:
    first = mps_watcher.Watcher(folder, moody, lambda: True)
    try:
        first.begin()
        first.wait_for_start()
        adopting = mps_watcher.Watcher(folder, moody, lambda: True)
        adopting.begin()
        adopting.wait_for_start()
        server = control.servers()
        for watcher in (first, adopting):
            watcher.look()
            silence.touch()
            watcher.look()
            assert (phase(folder), folder.record()["clients"]) == (MpsPhase.SILENT, [client.pid])
            assert "does not answer" in folder.record()["why"]
            silence.unlink()
            watcher.look()
            assert (phase(folder), folder.record()["clients"]) == (MpsPhase.READY, [client.pid])
        assert control.servers() == server
    finally:
        first.quit()


def test_an_adopted_daemon_whose_folder_is_gone_is_ended(
    folder: ServerFolder, control: Control, watcher: mps_watcher.Watcher
) -> None:
    adopting = mps_watcher.Watcher(folder, control, lambda: True)
    adopting.begin()
    adopting.wait_for_start()
    daemon = folder.record()["daemon"]
    shutil.rmtree(folder.path)
    adopting.tend()
    wait_until(lambda: procfs.started_at(daemon) is None, 60)
    assert not adopting.is_needed


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_record_that_cannot_be_written_lets_nobody_join_until_it_can(
    folder: ServerFolder,
    control: Control,
    watcher: mps_watcher.Watcher,
    client: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher.look()
    in_the_way = folder.path / f".{mps.RECORD}"
    in_the_way.mkdir()
    control.ask("simulate_fault")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", FullDisk())
        watcher.tend()
    assert folder.record() == {}
    in_the_way.rmdir()
    watcher.tend()
    assert (phase(folder), folder.record()["old"]) == (MpsPhase.DRAINING, [client.pid])


def test_a_command_that_is_stopped_while_it_joins_keeps_no_failure_from_being_told(
    folder: ServerFolder,
    control: Control,
    watcher: mps_watcher.Watcher,
    wanted: list[bool],
    client: subprocess.Popen[bytes],
) -> None:
    watcher.look()
    wanted[0] = False
    with mps.locked(folder.path / mps.JOIN, seconds=0):
        control.ask("simulate_fault")
        watcher.look()
    assert (phase(folder), folder.record()["old"]) == (MpsPhase.DRAINING, [client.pid])
    assert watcher.state.unwanted_since is None, "the command that joins has it wanted"


def test_who_asks_whether_a_server_is_watched_is_not_taken_for_its_watcher(
    folder: ServerFolder,
) -> None:
    with mps.locked(folder.path / mps.WATCHER, seconds=0, shared=True):
        assert not folder.is_watched()
    with mps.locked(folder.path / mps.WATCHER, seconds=0):
        assert folder.is_watched()


@pytest.mark.parametrize("wrong", ["others can write", "a link"])
def test_a_folder_that_others_could_have_made_has_no_servers(short_tmp: Path, wrong: str) -> None:
    state = StateDirectory(short_tmp, parse_shape("h100:1"))
    made = mps.server_folder(state, GPU)
    made.path.parent.mkdir()
    mps.make_folder(made, simulated=True)
    (made.path / mps.RECORD).write_text("{}")
    assert mps.server_folders(state) == [made]
    if wrong == "a link":
        made.path.parent.rename(short_tmp / "elsewhere")
        made.path.parent.symlink_to(short_tmp / "elsewhere")
    else:
        made.path.parent.chmod(0o777)
    assert mps.server_folders(state) == []


SAYS = """
import sys
sys.stderr.write("before\\n"); sys.stderr.flush()
print(flush=True)
sys.stdin.read()
sys.stderr.write("after\\n")
"""


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_client_is_told_in_its_standard_error(tmp_path: Path, mode: str) -> None:
    log = tmp_path / "log"
    with log.open(mode) as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", SAYS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    process.stdout.readline()
    started = procfs.started_at(process.pid)
    assert started is not None
    mps_watcher.tell(MpsClient(process.pid, started), GPU, "a client failed")
    mps_watcher.tell(MpsClient(process.pid, started + 1), GPU, "this is for another process")
    process.communicate()
    told = f"aliquot: the MPS server of {GPU}: a client failed"
    assert log.read_text().splitlines() == ["before", told, "after"]


def test_a_client_whose_pipe_nobody_reads_keeps_nobody_waiting() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(1 << 16))
    os.set_blocking(writing, True)
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=writing
    )
    started = procfs.started_at(process.pid)
    assert started is not None
    mps_watcher.tell(MpsClient(process.pid, started), GPU, "a client failed")
    process.communicate(b"\n")
    os.close(reading)
    os.close(writing)


def test_a_client_is_terminated_before_it_is_killed(
    driver: Driver,
    control: Control,
    watcher: mps_watcher.Watcher,
    client: subprocess.Popen[bytes],
) -> None:
    watcher.look()
    mps.end_clients([os.getpid(), client.pid], driver)
    assert control.ask("terminated") == str(client.pid)


ANSWERS = """
import os, socket, sys, time
with socket.socket(socket.AF_UNIX) as listener:
    os.chdir(sys.argv[1])
    listener.bind("control")
    listener.listen()
    print(flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            {answer}
"""
LIES = {
    "no-pid": "connection.sendall(b'9' * 5000 + b' 4194305 -1 \\xb2')",
    "no-end": "\n            while True: connection.sendall(b'1 ' * 4096)",
    "nothing": "connection.recv(1)",
}


@pytest.fixture
def liar(
    request: pytest.FixtureRequest, short_tmp: Path, control: Control
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that answers in the place of its own daemon; a process of its own is its client."""
    pipes = short_tmp / "lies"
    pipes.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", ANSWERS.format(answer=LIES[request.param]), str(pipes)],
        env={**os.environ, **Control(control.program, pipes, pipes).variables},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("liar", LIES, indirect=True)
def test_a_tenants_daemon_that_lies_keeps_nobody_from_ending_it(
    driver: Driver, liar: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "_END_SECONDS", 3.0)
    begun = time.monotonic()
    mps.end_clients([liar.pid, liar.pid], driver)
    assert time.monotonic() - begun < 50  # one command of those waited for a minute


def test_commands_to_another_users_daemon_have_that_users_rights(
    control: Control, short_tmp: Path
) -> None:
    says = short_tmp / "says"
    says.write_text("#!/bin/sh\nid -u; id -G; env\n")
    says.chmod(0o755)
    theirs = replace(control, program=[str(says)], owner=(os.geteuid(), os.getegid()))
    told = theirs.ask("get_server_list").splitlines()
    assert "CUDA_MPS_PIPE_DIRECTORY=" + str(control.pipes) in told
    assert not [line for line in told if line.startswith(("HOME=", "PYTEST"))]
    if os.geteuid() == 0:
        short_tmp.chmod(0o755)
        theirs = replace(control, program=[str(says)], owner=(1234, 5678))
        assert theirs.ask("get_server_list").splitlines()[:2] == ["1234", "5678"]


@pytest.mark.parametrize("program", [["/nonexistent"], ["/bin/false"]])
def test_a_daemon_that_cannot_be_started_is_an_error_with_the_reason(
    folder: ServerFolder, program: list[str]
) -> None:
    watcher = mps_watcher.Watcher(folder, folder.control(program), lambda: True)
    with pytest.raises(MpsError):
        watcher.begin()


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    folder = ServerFolder(tmp_path / ("x" * 100) / GPU, GPU)
    with pytest.raises(MpsError, match="too long"):
        mps.make_folder(folder, simulated=False)
