"""What users do wrong: one line says what, with the value; the next says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from refusals import check_form, refusal

ONE = ("--simulate", "h100:1")
HERE = Path(__file__)


@pytest.fixture(autouse=True)
def _in_this_state(aliquot_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIQUOT_STATE", str(aliquot_state))
    monkeypatch.delenv("ALIQUOT_SIMULATE", raising=False)
    monkeypatch.setenv("KUBECONFIG", "/no/kubeconfig")


USAGE = [
    (("rum",), "'rum'", "Did you mean run"),
    (("run", "--memry", "8GiB", "--", "true"), "--memry", "--memory"),
    (("run",), "COMMAND", "aliquot run --memory 8GiB -- python train.py"),
    (("wait",), "JOB", "aliquot wait train"),
    (("gpus", "3", "4"), "3 4", "aliquot gpus --help"),
    (("up", "--config"), "--config", "--help"),
    (("run", "--gpus", "0", "--", "true"), "'0'", "from 1 to 16"),
    (("run", "--gpus", "two", "--", "true"), "'two'", "a whole number"),
    (("kill", "a", "--grace", "-1"), "'-1'", "at least 0"),
    (("run", "--policy", "soft", "--", "true"), "'soft'", "elastic or hard"),
    (("completion", "tcsh"), "'tcsh'", "bash, zsh or fish"),
    (("simulate", "nonsense"), "'nonsense'", "aliquot simulate --help"),
    (("simulate", "--day", "4", "--arrive", "inf"), "inf", "--help"),
    (("run", "--memory", "8X", "--", "true"), "'8X'", "8GiB"),
    (("run", "--memory", "101%", "--", "true"), "101", "%"),
    (("run", "--compute", "30x", "--", "true"), "'30x'", "1 to 100"),
    (("run", "--compute", "0", "--", "true"), "'0'", "1 to 100"),
    (("run", "--policy", "hard", "--", "true"), "hard", "--compute"),
    (("run", "--json", "--", "true"), "--json", "--dry-run"),
    (("run", *ONE, "--name", "a/b", "--", "true"), "'a/b'", "A-Z"),
    (("run", *ONE, "--wait=soon", "--", "true"), "'soon'", "10m"),
    (("gpus", "--simulate", "voodoo2:1"), "voodoo2", "h100"),
    (("gpus", "--simulate", "h100:0"), "h100:0", "h100"),
    (("gpus", *ONE, "--format", "{nonsense}"), "{nonsense}", "{uuid}"),
    (("gpus", *ONE, "--json", "--format", "{gpu}"), "--json", "Leave one"),
    (("ps", "--json", "--watch"), "--watch", "Leave one"),
    (("top", "--once", "-n", "2"), "--once", "Leave one"),
    (("resize", "mine"), "no setting to change", "--memory"),
    (("resize", "mine", "--compute", "5", "--wait"), "--wait", "--memory"),
    (("resize", "a b", "--compute", "5"), "'a b'", "A-Z"),
    (("submit", "--workers", "0", "--", "true"), "0", "1..4"),
    (("submit", "--workers", "4..1", "--", "true"), "4..1", "1..4"),
    (("submit", "--array", "10-1", "--", "true"), "10-1", "1-10"),
    (("submit", "--time", "later", "--", "true"), "'later'", "2h"),
    (("update", "train"), "nothing to change", "--help"),
    (("update", "train", "--compute", "150"), "'150'", "1 to 100"),
    (("prune", "--older", "old"), "'old'", "10m"),
    (("logs", "train", "--rank", "first"), "'first'", "all"),
    (("wait", "train", "--timeout", "never"), "'never'", "10m"),
    (("cancel",), "cancel", "--all"),
    (("suspend", "train", "--all"), "--all", "aliquot suspend --help"),
    (("jobs", "--watch", "--json"), "--watch", "Leave one"),
    (("explain", *ONE, "--cpu", "4"), "--cpu", "--nodes"),
    (("explain", *ONE, "--compute", "200"), "'200'", "1 to 100"),
    (("explain", "--nodes", "/no/nodes.csv"), "/no/nodes.csv", "CSV"),
    (("explain", "--nodes", str(HERE)), str(HERE), "gpus"),
    (("simulate", "--seed", "1"), "nothing to simulate", "--nodes"),
    (("simulate", "--nodes", "/no/n.csv", "--pods", "/no/p.csv"), "/no/n.csv", "CSV"),
    (("simulate", "--day", "2", "--strategy", "luck"), "luck", "fragmentation"),
    (("simulate", "compare", "--day", "2", "--seeds", "x"), "'x'", "42-51"),
    (("up", *ONE, "--config", "/no/pool.toml"), "/no/pool.toml", "--config"),
    (("console", *ONE, "--tls-cert", "/c", "--tls-key", "/k"), "--tls-cert", "--cluster"),
    (("submit", *ONE, "--isolation", "hardware", "--", "true"), "jobs", "aliquot run"),
]

REFUSED = [
    (("install", "--dry-run", "--python", "/no/python"), "/no/python", "--python"),
    (("submit", "--", "true"), "no pool", "aliquot up"),
    (("jobs", *ONE), "h100:1", "aliquot up --simulate h100:1"),
    *(
        ((verb, *ONE, "train"), "h100:1", "aliquot up --simulate h100:1")
        for verb in ("describe", "logs", "wait", "suspend", "resume", "cancel")
    ),
    (("update", *ONE, "train", "--time", "2h"), "h100:1", "aliquot up --simulate h100:1"),
    (("prune", *ONE), "h100:1", "aliquot up --simulate h100:1"),
    (("kill", *ONE, "mine"), "mine", "There are no grants"),
    (("resize", *ONE, "mine", "--compute", "5"), "mine", "There are no grants"),
    (("restart", *ONE), "no arbiter", "aliquot run"),
    (("limits", *ONE, "--reload"), "no arbiter", "aliquot run"),
    (("run", *ONE, "--gpus", "2", "--", "true"), "2", "--gpus"),
    (("run", *ONE, "--memory", "90GiB", "--dry-run", "--", "true"), "90 GiB", "--memory"),
    (("describe", "gang/train"), "/no/kubeconfig", "--kubeconfig"),
]


@pytest.mark.parametrize(
    ("words", "what", "remedy", "expected"),
    [*((*one, 2) for one in USAGE), *((*one, 1) for one in REFUSED)],
    ids=str,
)
def test_errors_say_what_is_wrong_and_what_to_do(  # noqa: PLR0917 - pytest's
    words: tuple[str, ...],
    what: str,
    remedy: str,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, error = refusal(words, monkeypatch, capsys)
    check_form(error, what, remedy)
    assert code == expected, error
