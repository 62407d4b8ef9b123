"""cuInit among threads and forks: nobody hangs, and the program's environment stays whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from standin.changed import changed_driver
from standin.conftest import MakeMachine
from standin.machine import GIB, NOT_INITIALIZED, Grant, Machine

ENVIRONMENTS = Path(__file__).with_name("environments.c")
DRIVER_NOT_LOADED = 9

# A driver whose cuInit stays inside, with a lock as a driver has one, until the test lets it go on.
SLOW = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int cuInit(unsigned flags)
{
	int (*real)(unsigned) = simulated("cuInit");
	pthread_mutex_lock(&lock);
	fclose(fopen(getenv("TEST_INSIDE"), "w"));
	while (access(getenv("TEST_GO_ON"), F_OK) != 0)
		usleep(1000);
	int result = real(flags);
	pthread_mutex_unlock(&lock);
	return result;
}
"""

FORK = """
import ctypes, json, os, signal, threading, time
driver = ctypes.CDLL("libcuda.so.1")
thread = threading.Thread(target=driver.cuInit, args=(0,))
thread.start()
%s
child = os.fork()
if child == 0:
    signal.alarm(10)
    os._exit(driver.cuInit(0))
%s
status = os.waitpid(child, 0)[1]
%s
thread.join()
print(json.dumps([status, driver.cuInit(0)]))
"""
WAIT_INSIDE = "while not os.path.exists(os.environ['TEST_INSIDE']): time.sleep(0.001)"
GO_ON = "open(os.environ['TEST_GO_ON'], 'w').close()"


@pytest.fixture
def slow(make_machine: MakeMachine, native_dir: Path, tmp_path: Path) -> Machine:
    driver = changed_driver(tmp_path / "driver", native_dir / "sim", SLOW, defined=["cuInit"])
    return make_machine(driver=driver)


@pytest.fixture
def signs(tmp_path: Path) -> dict[str, str]:
    """Where the slow driver says that it is inside, and learns that it may go on."""
    return {"TEST_INSIDE": str(tmp_path / "inside"), "TEST_GO_ON": str(tmp_path / "go-on")}


def test_a_child_forked_while_the_driver_starts_does_not_hang(
    slow: Machine, signs: dict[str, str]
) -> None:
    """It is told what every forked child is told: the driver is half started in it."""
    code = FORK % (WAIT_INSIDE, "", GO_ON)
    status, parent = slow.python(slow.grant(GIB), code, **signs)
    assert os.waitstatus_to_exitcode(status) == NOT_INITIALIZED
    assert parent == 0


def test_a_child_forked_while_its_parent_joins_can_join_by_itself(machine: Machine) -> None:
    """The parent's thread waits for the arbiter when the child is forked."""
    code = FORK % ("time.sleep(0.5)", "print('forked', flush=True)", "")
    environment = machine.inside(machine.grant(2 * GIB))
    with machine.stopped_arbiter():
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        assert process.stdout.readline() == "forked\n"
    answer, _ = process.communicate(timeout=60)
    status, parent = json.loads(answer)
    assert os.waitstatus_to_exitcode(status) == 0
    assert parent == 0


def test_a_child_forked_while_nvml_opens_the_grant_does_not_hang(
    machine: Machine, tmp_path: Path
) -> None:
    """The grant's page is a pipe, so opening it takes until the pipe has a writer."""
    os.mkfifo(tmp_path / "limits")
    code = """
import ctypes, json, os, signal, sys, threading, time
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlErrorString(0)  # the driver's library is open
thread = threading.Thread(target=nvml.nvmlInit_v2)
thread.start()
time.sleep(0.5)
child = os.fork()
if child == 0:
    signal.alarm(10)
    os._exit(nvml.nvmlInit_v2())
time.sleep(0.5)
writer = os.open(sys.argv[1], os.O_WRONLY)
print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
thread.join()
"""
    done = machine.run(
        Grant("made-up", tmp_path), sys.executable, "-c", code, str(tmp_path / "limits")
    )
    assert json.loads(done.stdout) == DRIVER_NOT_LOADED, done.stderr


def test_threads_that_start_the_driver_together_all_succeed(
    slow: Machine, signs: dict[str, str]
) -> None:
    code = """
import ctypes, json, os, threading, time
driver, results = ctypes.CDLL("libcuda.so.1"), []
threads = [threading.Thread(target=lambda: results.append(driver.cuInit(0))) for _ in range(8)]
for thread in threads: thread.start()
while not os.path.exists(os.environ["TEST_INSIDE"]): time.sleep(0.001)
time.sleep(0.1)
shown = os.system("test -n \\"$CUDA_VISIBLE_DEVICES\\"")
open(os.environ["TEST_GO_ON"], "w").close()
for thread in threads: thread.join()
after = os.system("test -z \\"$CUDA_VISIBLE_DEVICES\\"")
print(json.dumps([results, shown, after]))
"""
    assert slow.python(slow.grant(GIB), code, **signs) == [[0] * 8, 0, 0]


# --- the environment


@pytest.mark.parametrize("what", ["read", "setenv", "add"])
def test_threads_that_use_the_environment_while_the_driver_starts_find_it_whole(
    slow: Machine, signs: dict[str, str], tmp_path: Path, what: str
) -> None:
    program = tmp_path / "program"
    subprocess.run(["gcc", "-pthread", str(ENVIRONMENTS), "-o", str(program), "-ldl"], check=True)
    done = slow.run(slow.grant(GIB), str(program), what, **signs)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if what == "add":
        del found["moved"]  # by the program itself
    else:
        assert found.pop("moved") == 0
    assert found == {
        "result": 0,
        "changed": 2,
        "added": 3 if what == "add" else 0,
        "visible": "0" if what == "setenv" else "",
        "path": 1,
    }
