from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.model import ComputeUse, Gates, Process, Turn
from aliquot.slices.control import Status
from aliquot.slices.culprits import culprits
from support import GIB, make_grant, make_shared


def told(compute: ComputeUse, *pids: int) -> list[str]:
    processes = tuple(Process(pid, "python", "live") for pid in pids)
    grant = replace(make_grant("a", gpu0=GIB), compute=(compute,), processes=processes)
    return list(culprits(Status(1, (make_shared(),), (grant,), {})))


@pytest.mark.parametrize("turn", [Turn.IDLE, Turn.ALONE, Turn.OUT, Turn.HOLDS, Turn.DRAINS])
def test_who_keeps_to_its_turns_is_no_culprit(turn: Turn) -> None:
    assert told(ComputeUse(turn=turn, gates=Gates.WORK), 42) == []


def test_one_that_is_overdue_is_named() -> None:
    (words,) = told(ComputeUse(turn=Turn.OVERDUE), 42)
    assert words == (
        "grant a: process python (42) has not come to its end on GPU 0: the others go on beside it"
    )


def test_of_several_processes_each_may_be_it() -> None:
    (words,) = told(ComputeUse(turn=Turn.OVERDUE), 42, 43)
    assert "one of python (42), python (43) has not" in words


def test_one_that_is_exempt_is_named() -> None:
    (words,) = told(ComputeUse(turn=Turn.EXEMPT), 42)
    assert words.startswith("grant a: process python (42) was overdue too often on GPU 0")


def test_a_slice_without_gates_is_named_with_the_drivers_word() -> None:
    (words,) = told(ComputeUse(gates=Gates.FAIL, why=801), 42)
    assert "compute share does not hold on GPU 0: the driver said 801 (not supported)" in words
    (words,) = told(ComputeUse(gates=Gates.FAIL, why=4711), 42)
    assert "the driver said 4711;" in words
