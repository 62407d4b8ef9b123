"""The tour works on a simulated GPU, and docs/tour.md is of this tour."""

from __future__ import annotations

import subprocess
import sys

import pytest

from repository.files import ROOT
from support import environment

TOUR = ROOT / "demo" / "tour.py"
PAGE = ROOT / "docs" / "tour.md"


def lines(page: str, *starts: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(starts)]


@pytest.mark.timeout(600)  # 25 commands and some programs, on processors that may be busy
def test_the_tour_works_and_is_the_one_on_its_page() -> None:
    done = subprocess.run(
        [sys.executable, str(TOUR)],
        env=environment(ALIQUOT_SIMULATE="h100:1"),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "- ✗" not in done.stdout
    assert "what runs: 2 grants of aliquot run\n" in done.stdout
    page = PAGE.read_text("utf-8")
    parts = ("## ", "$ ", "- ✓")
    assert lines(page, *parts) == lines(done.stdout, *parts), "write it again: make tour"
