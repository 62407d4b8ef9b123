"""A server of remote GPUs on a simulated machine, whose executors compute on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import aliquot_command

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PYTHON = os.environ.get("ALIQUOT_EXAMPLES_PYTHON", "")
LONG = 240  # ends a test that hangs


class Remote:
    """A server, and programs with its GPU."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.socket = folder / "gpu"
        self._programs: list[subprocess.Popen[str]] = []
        # One thread on both sides: with more, PyTorch adds up in another order.
        self.environment = {
            **environment,
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(ROOT / "build" / "remote"),
        }
        self.server = subprocess.Popen(
            [
                *[aliquot_command(), "remote", "serve", f"--socket={self.socket}"],
                *[f"--python={PYTHON}", "--device=cpu", "--simulate=h100:1"],
            ],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.server.stderr is not None
        assert "serving GPUs" in self.server.stderr.readline()

    def command(self, program: str, *arguments: str) -> list[str]:
        return [
            *[aliquot_command(), "run", f"--remote={self.socket}", "--memory=8GiB", "--"],
            *[PYTHON, str(PROGRAMS / program), *arguments],
        ]

    def run(self, program: str, *arguments: str, timeout: float = LONG) -> Any:
        """What a program prints, as JSON."""
        return printed(self.command(program, *arguments), self.environment, timeout)

    def start(self, program: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            self.command(program),
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._programs.append(started)
        return started

    def grants(self) -> list[dict[str, Any]]:
        made = subprocess.run(
            [aliquot_command(), "ps", "--json"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=LONG,
        )
        return list(json.loads(made.stdout)["grants"])

    def stop(self) -> None:
        for one in self._programs:
            if one.poll() is None:
                one.kill()
            one.__exit__(None, None, None)
        if self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
        self.server.communicate(timeout=LONG)


def printed(command: list[str], environment: dict[str, str], timeout: float = LONG) -> Any:
    made = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout.splitlines()[-1])


@pytest.fixture
def torch_python() -> str:
    """The Python that has PyTorch."""
    if not PYTHON:
        pytest.skip("ALIQUOT_EXAMPLES_PYTHON names no Python with PyTorch (make test-remote)")
    return PYTHON


@pytest.fixture
def remote(torch_python: str, short_tmp: Path, cli_env: dict[str, str]) -> Iterator[Remote]:
    assert torch_python
    started = Remote(short_tmp, cli_env)
    yield started
    started.stop()
