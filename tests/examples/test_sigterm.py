"""Examples that are stopped without a notice still save, and do not look finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml  # type: ignore[import-untyped] # lightkube brings it, without types

from examples.conftest import PYTHON, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def plain(saved: Path) -> list[str]:
    options = ("--steps", "1000000", "--every", "1000000", "--save", str(saved))
    return [PYTHON, str(ROOT / "examples" / "plain.py"), *options]


def elastic(saved: Path) -> list[str]:
    job = yaml.safe_load((ROOT / "examples" / "kubernetes" / "elastic.yaml").read_text("utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    *_, option, program = container["command"]
    assert "/saved/step.json" in program
    return [PYTHON, option, program.replace("/saved/step.json", str(saved))]


@pytest.mark.parametrize("command", [plain, elastic])
@pytest.mark.timeout(120)
def test_at_sigterm_a_program_saves_and_ends_unfinished(
    command: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    saved = tmp_path / "step.json"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command(saved), env=env, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert "at step 0" in program.stdout.readline()
            program.send_signal(signal.SIGTERM)
            assert program.wait(60) == 128 + signal.SIGTERM
        finally:
            program.kill()
    assert json.loads(saved.read_text())["step"] > 0
