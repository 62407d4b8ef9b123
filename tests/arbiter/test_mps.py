"""`make mps=1`: grants for clients of an MPS server; `--mps`: which GPUs allow them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter.rig import GPU, OTHER_GPU, Arbiter
from support import GIB, MIB, wait_until

if TYPE_CHECKING:
    from arbiter.rig import Machine
    from arbiter.test_move import Tenants

MAKE = f"make name=a kept=1 mps=1 slice={GPU},memory={8 * GIB}"


def isolations(arbiter: Arbiter) -> dict[str, str]:
    return {one["name"]: one["isolation"] for one in arbiter.status()["grants"]}


def test_a_grant_is_for_clients_also_under_the_next_arbiter(arbiter: Arbiter) -> None:
    assert "error" not in arbiter.ask(MAKE)
    assert "error" not in arbiter.ask(f"make name=b kept=1 slice={GPU},memory={GIB}")
    assert isolations(arbiter) == {"a": "mps", "b": "soft"}
    assert arbiter.status()["knows_mps"] is True
    arbiter.end()
    arbiter.start()
    assert isolations(arbiter) == {"a": "mps", "b": "soft"}


@pytest.mark.parametrize(
    "line",
    [
        MAKE.replace("mps=1", "mps=1 mps=1"),
        MAKE.replace("mps=1", "mps=0"),
        MAKE.replace("mps=1", "mps=1 swap=1"),
        MAKE.replace("mps=1", f"mps=1 spill={64 * MIB}"),
        MAKE.replace("mps=1", "mps=1 together=ranks"),
        f"{MAKE} slice={OTHER_GPU},memory={GIB}",
        f"resize name=a mps=1 slice={GPU},memory={GIB}",
    ],
)
def test_malformed_requests_are_refused(arbiter: Arbiter, line: str) -> None:
    assert arbiter.ask(line)["code"] == "malformed"
    assert arbiter.status()["grants"] == []


@pytest.mark.parametrize("state", ["switching", "parked"])
def test_its_programs_are_never_frozen(arbiter: Arbiter, state: str) -> None:
    arbiter.ask(MAKE)
    answer = arbiter.ask(f"set-state name=a to={state}")
    assert answer["code"] == "mps-stays"
    assert "clients of an MPS server" in answer["error"]
    assert arbiter.status()["grants"][0]["state"] == "active"


def test_a_list_of_clients_that_fails_gives_no_memory_back(
    arbiter: Arbiter, machine: Machine, tenants: Tenants
) -> None:
    tenant = tenants(Path(arbiter.ask(MAKE)["directory"]))
    tenant.hello()
    tenant.tell("hold", 0, GIB)
    machine.list_process(tenant.pid, 2 * GIB, kind="mps")
    wait_until(lambda: arbiter.status()["grants"][0]["slices"][0]["driver_bytes"] == GIB)
    machine.fail_mps_lists()
    tenant.kill()
    wait_until(lambda: arbiter.states() == ["ending"])
    before = machine.count_lists()
    wait_until(lambda: machine.count_lists() > before + 5)
    assert arbiter.counted() == GIB
    machine.fail_mps_lists(fail=False)
    machine.drop_process(tenant.pid)
    wait_until(lambda: arbiter.counted() == 0)


@pytest.mark.parametrize(("policy", "allowed"), [("none", ()), (GPU, (GPU,)), ("all", None)])
def test_only_gpus_of_the_policy_allow_it(
    stopped_arbiter: Arbiter, policy: str, allowed: tuple[str, ...] | None
) -> None:
    stopped_arbiter.start("--mps", policy)
    told = {one["uuid"]: one["allows_mps"] for one in stopped_arbiter.status()["gpus"]}
    assert told == {uuid: allowed is None or uuid in allowed for uuid in (GPU, OTHER_GPU)}
    answer = stopped_arbiter.ask(MAKE.replace(GPU, OTHER_GPU))
    assert answer.get("code") == (None if allowed is None else "no-mps")


def test_a_policy_that_names_no_gpus_is_refused(stopped_arbiter: Arbiter) -> None:
    for policy in ("", "some", f"{GPU},", "GPU-1"):
        done = subprocess.run(
            stopped_arbiter.command("--foreground", "--mps", policy),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "not all, none, or UUIDs" in done.stderr
