"""Instances of GPUs (MIG) are GPUs: listed, sliced, checked by doctor, and seen inside a slice."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from aliquot.slices import control
from conftest import Cli, aliquot_command
from sim.program import Program
from slices.mig_machine import HALF, MIB, SHAPE, destroy, instance, listed, run
from support import wait_until


def test_instances_are_listed_after_the_gpus(cli: Cli, mig: Program) -> None:
    first, second = instance(mig, 0), instance(mig, 4)
    gpus = listed(cli)
    assert [one["index"] for one in gpus] == [0, 1, 101, 102]
    assert [one["uuid"] for one in gpus[2:]] == [first, second]
    assert [one["mig"] for one in gpus] == [True, False, False, False]
    assert [one["instance_of"] for one in gpus] == [None, None, 0, 0]
    assert gpus[2]["memory_bytes"] == 40448 * MIB
    assert gpus[2]["name"] == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert gpus[2]["strength"] == pytest.approx(gpus[1]["strength"] * 3 / 7, abs=0.1)


def test_a_slice_of_an_instance_is_all_that_its_program_sees(cli: Cli, mig: Program) -> None:
    uuid = instance(mig, 4)
    seen = run(cli, "--gpu", "102", "--memory", "8GiB")
    assert seen["count"] == 1
    assert seen["total"] == 8 << 30
    assert seen["fits"] == [0, 2]  # 4 GiB, and no 8 GiB more
    assert seen["nvml"] == [1, uuid, 8 << 30, "00000000:18:00.0"]
    assert seen["name"] == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"


def test_a_gpu_in_mig_mode_has_no_slices_itself(cli: Cli, mig: Program) -> None:
    instance(mig, 0)
    done = cli("run", "--simulate", SHAPE, "--gpu", "0", "--", "true")
    assert done.returncode != 0
    assert "--gpu 0 names no GPU" in done.stderr
    assert "1, 101" in done.stderr
    assert run(cli, "--gpus", "1", "--memory", "60GiB")["nvml"][1].startswith("GPU-")


def test_an_instance_is_no_part_of_a_request_for_several_gpus(cli: Cli, mig: Program) -> None:
    instance(mig, 0)
    done = cli("run", "--simulate", SHAPE, "--gpus", "2", "--memory", "1GiB", "--", "true")
    assert done.returncode != 0
    assert "it is an instance of a GPU" in done.stderr
    done = cli(
        "run", "--simulate", SHAPE, "--gpu", "101", "--memory", "8GiB", "--swap", "--", "true"
    )
    assert done.returncode != 0
    assert "whose slices have no --swap" in done.stderr


def test_an_arbiter_finds_instances_that_come_and_go(
    cli: Cli, mig: Program, aliquot_state: Path
) -> None:
    def offers(uuid: str) -> bool:
        found = control.status(aliquot_state / "simulated" / "h100-2").gpus
        return uuid in [one.gpu.uuid for one in found]

    def lacks(uuid: str) -> bool:
        return not offers(uuid)

    assert run(cli, "--memory", "8GiB")["nvml"][1].startswith("GPU-")
    for _ in range(2):
        uuid = instance(mig, 0)
        wait_until(partial(offers, uuid))
        assert run(cli, "--gpu", uuid, "--memory", "8GiB")["nvml"][1] == uuid
        destroy(mig, 0)
        wait_until(partial(lacks, uuid))
        done = cli("run", "--simulate", SHAPE, "--gpu", uuid, "--", "true")
        assert "names no GPU" in done.stderr


def test_an_instance_that_was_destroyed_under_a_grant_is_offered_to_nobody(
    cli: Cli, cli_env: dict[str, str], mig: Program
) -> None:
    uuid = instance(mig, 0)
    options = ["run", "--simulate", SHAPE, "--gpu", uuid, "--memory", "8GiB", "--name", "a"]
    waits = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        [aliquot_command(), *options, "--", *waits],
        env=cli_env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "\n"
        destroy(mig, 0)
        assert run(cli, "--memory", "4GiB")["nvml"][1].startswith("GPU-")
        refusal = cli("run", "--simulate", SHAPE, "--gpu", uuid, "--", "true")
        assert "it was destroyed" in refusal.stderr
        assert [one["uuid"] for one in listed(cli)][2:] == []


def test_a_gpu_instance_with_several_compute_instances_is_left_alone(
    cli: Cli, mig: Program
) -> None:
    mig("make", "half", 0, HALF, 0)
    for name in ("one", "two"):
        assert mig("divide", "half", name, 1).startswith("MIG-")
    assert [one["index"] for one in listed(cli)] == [0, 1]


def test_doctor_says_what_a_gpu_in_mig_mode_offers(cli: Cli, mig: Program) -> None:
    done = cli("doctor", "--simulate", SHAPE)
    assert "it is in MIG mode and has no instance that programs can use" in " ".join(
        done.stdout.split()
    )
    instance(mig, 4)
    done = cli("doctor", "--simulate", SHAPE)
    assert "it is in MIG mode: programs use GPU 102" in " ".join(done.stdout.split())
    assert done.returncode == os.EX_OK
