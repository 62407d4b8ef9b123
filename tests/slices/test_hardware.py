"""--isolation hardware: an instance of a GPU (MIG) for each request, on a simulated machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import Cli, aliquot_command
from sim.program import TESTS, Program
from slices.mig_machine import MIB, SEES, SHAPE, run


def hardware(cli: Cli, *options: str) -> dict[str, Any]:
    return run(cli, "--isolation", "hardware", *options)


def test_hardware_is_an_instance_of_the_smallest_profile_for_it_alone(
    cli: Cli, mig: Program
) -> None:
    seen = hardware(cli, "--memory", "8GiB")
    assert seen["count"] == 1
    assert seen["nvml"][1].startswith("MIG-")
    assert seen["total"] == 9984 * MIB
    assert seen["name"].endswith("MIG 1g.10gb")
    assert hardware(cli, "--memory", "8GiB", "--compute", "40")["name"].endswith("MIG 3g.40gb")


def test_the_output_says_that_the_instance_is_for_it_alone(cli: Cli, mig: Program) -> None:
    options = ("--simulate", SHAPE, "--isolation", "hardware", "--memory", "8GiB", "--name", "a")
    done = cli("run", *options, "--", "true")
    text = "grant a: all of simulated GPU 113 (H100 80GB HBM3 MIG 1g.10gb), for it alone"
    assert text in done.stderr


def test_the_next_request_destroys_an_instance_that_nobody_needs(cli: Cli, mig: Program) -> None:
    whole = hardware(cli)
    assert whole["name"].endswith("MIG 7g.80gb")
    assert hardware(cli, "--memory", "8GiB")["name"].endswith("MIG 1g.10gb")
    assert whole["nvml"][1] not in mig("instances", 0)
    assert len(mig("instances", 0)) == 1


def test_requests_at_the_same_time_have_different_instances(
    cli: Cli, cli_env: dict[str, str], mig: Program
) -> None:
    options = ["run", "--simulate", SHAPE, "--isolation", "hardware", "--memory", "30GiB"]
    waits = [sys.executable, "-c", f"{SEES}\nimport sys; sys.stdout.flush(); sys.stdin.read()"]
    program = subprocess.Popen(
        [aliquot_command(), *options, "--", *waits],
        env=cli_env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        first = json.loads(program.stdout.readline())["nvml"][1]
        assert cli("restart", "--simulate", SHAPE).returncode == 0  # the instance is found again
        assert hardware(cli, "--memory", "30GiB")["nvml"][1] != first
        third = cli("run", "--simulate", SHAPE, "--isolation", "hardware", "--", "true")
        assert third.returncode != 0
        assert "no GPU in MIG mode has a place for all of it" in third.stderr
        assert mig("instances", 0) == [first]


THREADS = """
import os, threading
from aliquot import slices
from aliquot.devices import parse_shape
from aliquot.model import Isolation, Request, parse_amount
from aliquot.slices.instances import instance_for

state, driver = slices.check_machine(parse_shape(SHAPE), None, os.environ)

def asked(memory):
    return Request(memory=parse_amount(memory), isolation=Isolation.HARDWARE)

def others():
    for _ in range(2):  # the second one looks at what is left of the first one
        with instance_for(state, driver, asked("4GiB")):
            pass

with instance_for(state, driver, asked("30GiB")) as whole:
    thread = threading.Thread(target=others)
    thread.start()
    thread.join()
    print(*whole.which.named)
"""


def test_an_instance_waits_for_its_grant_while_another_thread_gets_one(
    cli_env: dict[str, str], mig: Program
) -> None:
    program = [sys.executable, "-c", THREADS.replace("SHAPE", repr(SHAPE))]
    done = subprocess.run(program, env=cli_env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in mig("instances", 0)


def test_hardware_is_refused_with_what_to_do(cli: Cli, mig: Program) -> None:
    words = {
        ("run", "--swap", "--memory", "1GiB"): "memory of an instance does not leave it",
        ("run", "--gpus", "2"): "it is an instance of one GPU",
        ("run", "--wait"): "the pool does not make instances of a GPU",
        ("submit",): "jobs cannot have --isolation hardware",
        ("run", "--dry-run"): "is known only when it is made",
        ("run", "--gpu", "GPU-ffffffff"): "leave no GPU in MIG mode; in MIG mode: GPU-",
    }
    for (command, *options), said in words.items():
        done = cli(command, "--simulate", SHAPE, "--isolation", "hardware", *options, "--", "true")
        assert done.returncode != 0
        assert said in " ".join((done.stdout + done.stderr).split())


def test_a_machine_without_mig_has_no_hardware_isolation(cli: Cli) -> None:
    done = cli("run", "--simulate", "h100:1", "--isolation", "hardware", "--", "true")
    assert "no GPU of this machine is in MIG mode" in done.stderr
    assert "nvidia-smi -i GPU -mig 1" in done.stderr


def test_on_the_simulated_driver_crashes_leave_nothing(
    cli_env: dict[str, str], short_tmp: Path
) -> None:
    """The state machine of test_instance_steps.py, with the driver's instances."""
    done = subprocess.run(
        [sys.executable, "-m", "slices.instance_crashes", SHAPE, str(short_tmp)],
        env={**cli_env, "PYTHONPATH": str(TESTS), "ALIQUOT_SIMULATE_MIG": "all"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
