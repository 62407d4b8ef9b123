"""The module `aliquot.worker` as a program uses it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import aliquot.worker
from aliquot import worker


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALIQUOT_WORKER", str(tmp_path))
    monkeypatch.setenv("ALIQUOT_GENERATION", "3")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return tmp_path


def tell(folder: Path, name: str, **words: object) -> None:
    (folder / f".{name}").write_text(json.dumps(words))
    (folder / f".{name}").rename(folder / name)


def test_outside_a_job_there_is_one_worker_and_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALIQUOT_WORKER", "ALIQUOT_GENERATION", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (worker.rank(), worker.size(), worker.generation()) == (0, 1, 0)
    assert worker.notice() is None
    worker.ready()
    worker.report(step=1)


def test_a_worker_knows_its_rank_size_and_generation(folder: Path) -> None:
    assert (worker.rank(), worker.size(), worker.generation()) == (1, 2, 3)


def test_a_worker_reads_a_notice_and_reports_ready(folder: Path) -> None:
    assert worker.notice() is None
    deadline = time.time() + 60
    tell(folder, "notice", generation=3, kind="shrink", size=1, deadline=deadline)
    notice = worker.notice()
    assert notice == worker.Notice(3, "shrink", 1, deadline)
    assert 0 < notice.seconds_left <= 60
    worker.ready()
    assert json.loads((folder / "ready").read_text()) == {"generation": 3}


def test_a_live_program_reads_its_new_size(folder: Path) -> None:
    tell(folder, "notice", generation=3, kind="shrink", size=1, deadline=0.0)
    tell(folder, "size", generation=4, size=1)
    assert (worker.size(), worker.generation()) == (1, 4)
    assert worker.notice() is None, "that change is over"


def test_a_callback_is_called_once_per_notice(folder: Path) -> None:
    heard: list[worker.Notice] = []
    one, two = threading.Event(), threading.Event()

    def hear(notice: worker.Notice) -> None:
        heard.append(notice)
        (one if len(heard) == 1 else two).set()

    worker.on_notice(hear)
    tell(folder, "notice", generation=3, kind="grow", size=4, deadline=0.0)
    assert one.wait(60)
    tell(folder, "notice", generation=4, kind="suspend", size=0, deadline=0.0)
    assert two.wait(60)
    assert [notice.generation for notice in heard] == [3, 4]


def test_a_report_is_written_atomically(folder: Path) -> None:
    worker.report(step=7, samples_per_second=12.5)
    words = json.loads((folder / "report").read_text())
    assert (words["step"], words["samples_per_second"], words["size"]) == (7, 12.5, 2)
    assert [path.name for path in folder.iterdir()] == ["report"]


def test_a_missing_folder_does_not_fail_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALIQUOT_WORKER", str(folder / "gone"))
    worker.report(step=1)
    worker.ready()
    assert worker.notice() is None


def test_the_module_needs_only_the_standard_library() -> None:
    tree = ast.parse(Path(aliquot.worker.__file__).read_text())
    names = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {(name or "").partition(".")[0] for name in names} <= sys.stdlib_module_names
    code = "import sys, aliquot.worker; print([m for m in sys.modules if m.startswith('aliquot.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['aliquot.worker']"


def test_outside_a_slice_nothing_is_on_the_host() -> None:
    class Tensor:
        @staticmethod
        def data_ptr() -> int:
            return 1 << 30

    assert worker.prefer(1 << 30)
    assert worker.prefer(Tensor())
    assert not worker.prefer("no memory")
