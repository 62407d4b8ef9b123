"""`make spill=BYTES`: memory of the host beside a slice."""

from __future__ import annotations

import pytest

from arbiter.rig import GPU, Arbiter
from support import GIB, MIB

MAKE = f"make name=a kept=1 spill={64 * MIB} slice={GPU},memory={8 * GIB}"


def test_a_grant_says_what_it_may_have_and_has_of_the_host(arbiter: Arbiter) -> None:
    assert "error" not in arbiter.ask(MAKE)
    assert "error" not in arbiter.ask(f"make name=b kept=1 slice={GPU},memory={GIB}")
    found = {one["name"]: one for one in arbiter.status()["grants"]}
    told = {name: (one["spill_bytes"], one["on_host_bytes"]) for name, one in found.items()}
    assert told == {"a": (64 * MIB, 0), "b": (0, 0)}
    assert arbiter.status()["knows_spill"] is True


@pytest.mark.parametrize(
    "line",
    [
        MAKE.replace("spill=", "swap=1 spill="),
        MAKE.replace(f"spill={64 * MIB}", "spill=0"),
        MAKE.replace(f"spill={64 * MIB}", f"spill={MIB - 1}"),
        MAKE.replace(f"spill={64 * MIB}", "spill=64M"),
        MAKE.replace(f"spill={64 * MIB}", f"spill={1 << 47}"),
        MAKE.replace("kept=1", f"kept=1 spill={64 * MIB}"),
        f"{MAKE} slice=GPU-00000000-0000-0000-0000-000000000001,memory={GIB}",
        f"resize name=a spill={64 * MIB} slice={GPU},memory={GIB}",
    ],
)
def test_malformed_requests_are_refused(arbiter: Arbiter, line: str) -> None:
    assert arbiter.ask(line)["code"] == "malformed"
    assert arbiter.status()["grants"] == []


def test_more_than_the_host_has_is_refused(arbiter: Arbiter) -> None:
    answer = arbiter.ask(MAKE.replace(f"spill={64 * MIB}", f"spill={1 << 46}"))
    assert answer["code"] == "no-host-memory"
    assert f"{(1 << 46) // MIB} MiB requested" in answer["error"]
