from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.model import ComputeUse, Gates, Process, Turn
from aliquot.slices.arbiter_status import Status
from aliquot.slices.share_problems import share_problems
from support import GIB, make_grant, make_shared


def told(compute: ComputeUse, *pids: int) -> list[str]:
    processes = tuple(Process(pid, "python", "live") for pid in pids)
    grant = replace(make_grant("a", gpu0=GIB), compute=(compute,), processes=processes)
    return list(share_problems(Status(1, (make_shared(),), (grant,), {})))


@pytest.mark.parametrize("turn", [Turn.IDLE, Turn.ALONE, Turn.OUT, Turn.HOLDS, Turn.DRAINS])
def test_a_slice_that_keeps_its_turns_is_no_problem(turn: Turn) -> None:
    assert told(ComputeUse(turn=turn, gates=Gates.WORK), 42) == []


def test_an_overdue_process_is_named() -> None:
    (words,) = told(ComputeUse(turn=Turn.OVERDUE), 42)
    assert words == (
        "grant a: process python (42) is overdue on GPU 0: the others run at the same time"
    )


def test_all_processes_of_an_overdue_slice_are_named() -> None:
    (words,) = told(ComputeUse(turn=Turn.OVERDUE), 42, 43)
    assert "one of python (42), python (43) is overdue" in words


def test_an_exempt_process_is_named() -> None:
    (words,) = told(ComputeUse(turn=Turn.EXEMPT), 42)
    assert words.startswith("grant a: process python (42) was overdue too often on GPU 0")


def test_failing_gates_are_named_with_the_cuda_error() -> None:
    (words,) = told(ComputeUse(gates=Gates.FAIL, why=801), 42)
    assert "compute share does not work on GPU 0: CUDA error 801 (not supported)" in words
    (words,) = told(ComputeUse(gates=Gates.FAIL, why=4711), 42)
    assert "CUDA error 4711;" in words


def test_a_process_with_an_impossible_work_page_is_named() -> None:
    (words,) = told(ComputeUse(gates=Gates.INVALID), 42)
    assert words.startswith("grant a: process python (42) wrote impossible counts")
