"""Jobs of `--isolation mps`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot import slices
from aliquot.model import Amount, Isolation, Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Job
from aliquot.model.owner import Owner
from aliquot.model.request import SwapDefault
from aliquot.pool.account import Surroundings
from aliquot.pool.clients import ServerError, end_work, join_server
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


SAYS = """
import os, sys
if "aliquot.slices.mps" in sys.orig_argv:
    {says}
    sys.stdout.flush()
    os._exit({code})
"""
LAUNCH = {"state": "/nonexistent", "mps": {"gpu": "GPU-1", "priority": "normal", "simulate": None}}


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ("print('[1]')", 0),
        ("print('[' * 100000)", 0),
        ('print(\'{"LD_PRELOAD": "/tmp/a.so"}\')', 0),
        ("print('{\"CUDA_MPS_PIPE_DIRECTORY\": 1}')", 0),
        ("while True: print('1' * 10000)", 0),
        ("sys.stderr.write('\\x1b[31mno' * 5000)", 1),
    ],
)
def test_what_a_users_process_says_of_its_server_is_not_believed(
    says: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SAYS.format(says=says, code=code))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launch: dict[str, Any] = {**LAUNCH, "environment": {}}
    with pytest.raises(ServerError) as refused:
        join_server(launch, None, Surroundings({}, 0o077))
    assert launch["environment"] == {}
    assert len(refused.value.message) <= 1000
    assert refused.value.message.isprintable()


def test_what_an_upgrade_has_replaced_keeps_no_worker_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aliquot.slices.mps", None)
    monkeypatch.delattr(slices, "mps", raising=False)
    end_work({**LAUNCH, "driver": {"cuda": "/a", "nvml": "/b"}}, [os.getpid()])


def test_the_command_of_a_job_is_a_client(pool: PoolUp) -> None:
    pool.submit("--name", "a", "--isolation", "mps", "--memory", "1GiB", "--", "env")
    pool.wait_for("a", "Succeeded")
    assert "CUDA_MPS_PIPE_DIRECTORY=" in pool.ask("logs", "a").stdout
