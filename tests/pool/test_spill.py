"""Jobs that may have memory of the host (`--spill`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aliquot.model import Amount, Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Job
from aliquot.model.owner import Owner
from aliquot.model.request import SwapDefault
from aliquot.pool.encoding import Submission, decode_submission, encode_submission
from aliquot.slices import control
from support import GIB, MIB, wait_until

if TYPE_CHECKING:
    from pool.conftest import PoolUp

OWNER = Owner(1000, 1000, "alice")


def test_a_job_keeps_it() -> None:
    one = Submission(OWNER, Job(3, "a", ("true",), Request(spill=GIB)), "/bin/true", "/")
    assert decode_submission(json.loads(json.dumps(encode_submission(one))), OWNER) == one
    forged = encode_submission(one)
    forged["request"]["spill"] = "1GiB"
    with pytest.raises(InvalidValueError):
        decode_submission(forged, OWNER)
    plain = Submission(OWNER, Job(3, "a", ("true",), Request()), "/bin/true", "/")
    assert "spill" not in encode_submission(plain)["request"], "an earlier pool would refuse it"


def test_a_queue_does_not_let_such_memory_leave() -> None:
    request = Request(memory=Amount(bytes=GIB), spill=GIB)
    assert SwapDefault(swap=True).applied(request) == request


def test_a_job_waits_until_the_host_has_memory(pool: PoolUp) -> None:
    limit = control.status(pool.state).answer["host_memory_bytes"]
    most = str(limit - 32 * MIB)
    part = ("--memory", "1GiB", "--spill")
    pool.submit("--name", "first", *part, str(64 * MIB), "--", "sleep", "600")
    pool.wait_for("first", "Running")
    pool.submit("--name", "second", *part, most, "--", "true")
    wait_until(lambda: "of the host are left" in str(pool.job("second")["state"]["reason"]), 60)
    pool.wait_for("second", "Pending")
    for name in ("second", "first"):
        assert pool.ask("cancel", name).returncode == 0
