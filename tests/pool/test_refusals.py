"""What a pool refuses, in the form of all errors."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

import pytest

from pool.conftest import SHAPE, PoolUp
from refusals import check_form, refusal

if TYPE_CHECKING:
    from pathlib import Path


def test_refusals_say_what_and_what_to_do(
    pool: PoolUp,
    aliquot_state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ALIQUOT_STATE", str(aliquot_state))
    monkeypatch.setenv("ALIQUOT_SIMULATE", SHAPE)
    pool.submit("--name", "full", "--workers", "4", "--", "sleep", "600")
    pool.submit("--name", "done", "--", "true")
    pool.submit("--name", "sweep", "--array", "1-2", "--", "true")
    assert pool.ask("cancel", "done").returncode == 0
    pool.wait_for("done", "Cancelled")
    pool.wait_for("full", "Running")
    submit = ("submit", "--name", "new")
    for words, what, remedy in (
        (("describe", "nobody"), "nobody", "aliquot jobs"),
        (("logs", "nobody"), "nobody", "aliquot jobs"),
        (("cancel", "99"), "99", "aliquot jobs"),
        (("logs", "full", "--rank", "7"), "7", "--rank"),
        (("resume", "done"), "done (2)", "cancelled"),
        (("suspend", "done"), "done (2)", "cancelled"),
        (("update", "done", "--time", "2h"), "done (2)", "aliquot resubmit 2"),
        (("update", "full", "--memory", "1GiB"), "--memory", "while it waits"),
        (("update", "full", "--queue", "nowhere"), "--queue", "while it waits"),
        ((*submit, "--queue", "nowhere", "--", "true"), "nowhere", "default"),
        ((*submit, "--after", "nobody", "--", "true"), "nobody", "aliquot jobs"),
        ((*submit, "--workers", "9", "--", "true"), "9 workers", "--workers"),
        ((*submit, "--gpus", "9", "--", "true"), "9 GPUs", "--gpus"),
        ((*submit, "--memory", "900GiB", "--", "true"), "900 GiB", "--memory"),
        (("submit", "--name", "full", "--", "true"), "full", "--name"),
        (("submit", "--name", "sweep", "--", "true"), "sweep", "--name"),
        (("submit", "--name", "a b", "--", "true"), "'a b'", "A-Z"),
        ((*submit, "--", "no-such-command"), "no-such-command", "after --"),
    ):
        code, error = refusal(words, monkeypatch, capsys)
        check_form(error, what, remedy)
        assert code in {1, 2, 127}, error


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ("client.encode_submission", ("submit", "--", "true")),
        ("client.encode_change", ("update", "full", "--time", "2h")),
        ("run_client.encode_request", ("run", "--queue", "default", "--", "true")),
    ],
)
def test_a_field_of_a_later_version_is_refused_by_name_with_what_to_restart(  # noqa: PLR0917
    pool: PoolUp,
    aliquot_state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    encoder: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv("ALIQUOT_STATE", str(aliquot_state))
    monkeypatch.setenv("ALIQUOT_SIMULATE", SHAPE)
    pool.submit("--name", "full", "--", "sleep", "600")
    encode = pkgutil.resolve_name(f"aliquot.pool.{encoder}")
    monkeypatch.setattr(f"aliquot.pool.{encoder}", lambda one: {**encode(one), "colour": "blue"})
    code, error = refusal(words, monkeypatch, capsys)
    assert code == 2
    check_form(error, "the pool does not know the field 'colour'", "aliquot down && aliquot up")
    assert "TypeError" not in error
