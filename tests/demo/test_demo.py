from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import environment

DEMO = Path(__file__).parents[2] / "demo" / "demo.py"


def test_the_demo_shows_what_it_says() -> None:
    answer = subprocess.run(
        [sys.executable, str(DEMO)],
        env=environment(ALIQUOT_SIMULATE="h100:1"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "simulated" in answer.stdout
    assert "All is as it should be." in answer.stdout
