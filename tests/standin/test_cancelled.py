"""A thread that is cancelled inside the driver leaves nothing behind that others wait for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aliquot.devices import CUDA
from standin import pages
from standin.changed import changed_driver
from standin.conftest import MakeGated, MakeMachine
from standin.machine import GIB, Grant
from storm.test_storm import headers

SOURCE = Path(__file__).with_name("cancels.c")

# A driver in which a thread can be cancelled when it puts gates and marks into a stream.
SLOW = """
#include <unistd.h>
typedef unsigned long long word;
#define SLOW(name) \\
	int name(void *stream, word at, word value, unsigned flags) \\
	{ \\
		int (*real)(void *, word, word, unsigned) = simulated(#name); \\
		usleep(5000); \\
		return real(stream, at, value, flags); \\
	}
SLOW(cuStreamWaitValue64_v2)
SLOW(cuStreamWriteValue64_v2)
"""
SLOWER = ["cuStreamWaitValue64_v2", "cuStreamWriteValue64_v2"]


@pytest.fixture
def program(library: Path, tmp_path: Path) -> Path:
    path = tmp_path / "cancels"
    flags = ["-std=gnu11", "-O1", "-g", "-pthread", f"-I{headers()}"]
    command = ["gcc", *flags, str(SOURCE), "-o", str(path), str(library / CUDA)]
    subprocess.run(command, check=True)
    return path


def test_launches_have_gates_after_a_launching_thread_was_cancelled(
    make_gated: MakeGated, native_dir: Path, program: Path, tmp_path: Path
) -> None:
    driver = changed_driver(tmp_path / "driver", native_dir / "sim", SLOW, defined=SLOWER)
    gated = make_gated(driver=driver)
    gated.arbiter.greet_with(pace=pages.TURNS, quantum_ns=100_000)
    process = subprocess.Popen(
        [str(program)],
        env=gated.machine.inside(Grant("by-hand", gated.arbiter.directory)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout

    def next_line() -> str:
        assert process.stdin
        assert process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline()

    assert process.stdout.readline() == "ready\n"
    assert next_line() == "cancelled\n"
    closed = int(gated.arbiter.work().closed)
    assert next_line() == "done\n"
    assert gated.arbiter.work().closed > closed
    process.communicate(timeout=60)
    assert process.returncode == 0


# A driver in which the first thread that makes a context is cancelled as soon as it can be: inside
# the driver, which opens files there, or right after it.
FIRST = """
#include <pthread.h>
int cuDevicePrimaryCtxRetain(void **context, int device)
{
	static int calls;
	int (*real)(void **, int) = simulated("cuDevicePrimaryCtxRetain");
	int result = real(context, device);
	if (calls++ == 0) {
		pthread_cancel(pthread_self());
		%s;
	}
	return result;
}
"""


@pytest.mark.parametrize("then", ["pthread_testcancel()", ""], ids=["inside", "after"])
def test_a_cancelled_thread_does_not_keep_the_slice_for_its_context(
    make_machine: MakeMachine, native_dir: Path, program: Path, tmp_path: Path, then: str
) -> None:
    """The whole slice is held for a process's first context, until the arbiter has measured it."""
    defined = ["cuDevicePrimaryCtxRetain"]
    driver = changed_driver(tmp_path / "driver", native_dir / "sim", FIRST % then, defined=defined)
    machine = make_machine(driver=driver)
    done = machine.run(machine.grant(2 * GIB), str(program), "take")
    assert done.stdout == "done\n", done.stdout + done.stderr
