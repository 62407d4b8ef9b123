"""Jobs of `--isolation mps`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aliquot.model import Amount, Isolation, Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Job
from aliquot.model.owner import Owner
from aliquot.model.request import SwapDefault
from aliquot.pool.encoding import Submission, decode_submission, encode_submission
from support import GIB

if TYPE_CHECKING:
    from pool.conftest import PoolUp

OWNER = Owner(1000, 1000, "alice")


def test_a_job_keeps_it() -> None:
    request = Request(memory=Amount(bytes=GIB), isolation=Isolation.MPS)
    one = Submission(OWNER, Job(3, "a", ("true",), request), "/bin/true", "/")
    assert decode_submission(json.loads(json.dumps(encode_submission(one))), OWNER) == one
    forged = encode_submission(one)
    forged["request"]["isolation"] = "glass"
    with pytest.raises(InvalidValueError):
        decode_submission(forged, OWNER)
    plain = Submission(OWNER, Job(3, "a", ("true",), Request()), "/bin/true", "/")
    assert "isolation" not in encode_submission(plain)["request"], "an earlier pool would refuse it"


def test_a_queue_does_not_let_its_memory_leave() -> None:
    request = Request(memory=Amount(bytes=GIB), isolation=Isolation.MPS)
    assert SwapDefault(swap=True).applied(request) == request


def test_the_command_of_a_job_is_a_client(pool: PoolUp) -> None:
    pool.submit("--name", "a", "--isolation", "mps", "--memory", "1GiB", "--", "env")
    pool.wait_for("a", "Succeeded")
    assert "CUDA_MPS_PIPE_DIRECTORY=" in pool.ask("logs", "a").stdout
