"""Command lines that are refused, run in this process."""

from __future__ import annotations

import sys

import pytest

from aliquot.cli.app import run_app


def refusal(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """The exit code and the error of a command line that prints nothing else."""
    monkeypatch.setattr(sys, "argv", ["aliquot", *words])
    with pytest.raises(SystemExit) as ended:
        run_app()
    printed = capsys.readouterr()
    assert printed.out == ""
    return int(str(ended.value.code)), printed.err


def check_form(error: str, what: str, remedy: str) -> None:
    first, *rest = error.splitlines()
    assert first.startswith("aliquot: "), error
    assert what in first, error
    assert rest, f"it does not say what to do: {error}"
    assert all(line.startswith("  ") for line in rest), error
    assert remedy in " ".join(rest), error
