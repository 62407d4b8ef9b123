from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import environment

DEMO = Path(__file__).parents[2] / "demo" / "demo.py"


@pytest.mark.shares
@pytest.mark.timeout(300)  # where the processors are busy, shares are measured more than once
def test_the_demo_shows_what_it_says() -> None:
    answer = subprocess.run(
        [sys.executable, str(DEMO)],
        env=environment(ALIQUOT_SIMULATE="h100:1"),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stderr == ""
    assert "On a simulated GPU" in answer.stdout
    checked = [line for line in answer.stdout.splitlines() if line.startswith("✓")]
    for words in (
        "out-of-memory",
        "killed",
        "50, 30 and 20",
        "goes idle",
        "works again",
        "resized",
    ):
        assert any(words in line for line in checked), words
    assert "✗" not in answer.stdout
    assert "All checks passed." in answer.stdout
