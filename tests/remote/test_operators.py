"""PyTorch's own samples of its operators: the same results as here, or a refusal."""

from __future__ import annotations

import os

import pytest

from remote.conftest import Remote

# ALIQUOT_REMOTE_OPERATORS=1 takes all operators; by default each 20th, one sample of each dtype.
STEP = int(os.environ.get("ALIQUOT_REMOTE_OPERATORS", "20"))
SAMPLES = "1"


@pytest.mark.timeout(1800)
def test_samples_of_operators_are_the_same_or_refused(remote: Remote) -> None:
    found = remote.run("operators.py", "7" if STEP > 7 else "0", str(STEP), SAMPLES, timeout=1700)
    assert found["wrong"] == {}
    assert found["operators"] > 400 / STEP
    assert len(found["refused"]) < 0.15 * found["operators"], found["refused"]
