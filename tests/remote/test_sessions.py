"""A session that does not start as it should gives its slice back. Needs no PyTorch."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from aliquot.remote import greeting
from aliquot.remote.server import ExecutorSettings, RemoteServer
from conftest import Cli
from support import wait_until

LEAVES = """#!{python}
import os, sys, time
os.write(2, b"aliquot: it leaves\\n")
os.close(int(sys.argv[3]))  # the socket of the session
time.sleep(1000)
"""


def test_a_session_that_leaves_without_ending_is_ended(
    cli: Cli, cli_env: dict[str, str], short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cli_env.items():
        monkeypatch.setenv(name, value)
    python = short_tmp / "python"
    python.write_text(LEAVES.format(python=sys.executable))
    python.chmod(0o700)
    server = RemoteServer(short_tmp / "gpu", ExecutorSettings(str(python), "cpu", "h100:1"))
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        with pytest.raises(greeting.RemoteError, match="it leaves"):
            greeting.ask(short_tmp / "gpu", {"open": {"memory": "8GiB", "compute": 0}})

        def is_free() -> bool:
            return not json.loads(cli("ps", "--json", "--simulate", "h100:1").stdout)["grants"]

        wait_until(is_free, 60)
    finally:
        server.close()
