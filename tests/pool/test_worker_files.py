"""Files that a worker writes, in all the ways that a hostile one would write them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from aliquot.pool.worker_files import LARGEST_BYTES, WorkerReport, read_ready, read_report
from users import needs_root

if TYPE_CHECKING:
    from pathlib import Path

REPORT = {"step": 3, "samples_per_second": 1.5, "size": 2, "at": 1e9}


def test_what_an_honest_worker_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "ready").write_text('{"generation": 4}')
    (tmp_path / "report").write_text(json.dumps(REPORT))
    assert read_ready(tmp_path) == 4
    assert read_report(tmp_path) == WorkerReport(3, 1.5, 1e9, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "null",
        '{"generation": "4"}',
        '{"generation": 4.5}',
        '{"generation": -1}',
        '{"generation": true}',
        '{"generation": null}',
        f'{{"generation": 1{"0" * 400}}}',
        f'{{"generation": 1{"0" * 9000}}}',
        "[" * LARGEST_BYTES,
        '{"generation": 4, "x": "' + "x" * LARGEST_BYTES + '"}',
        '{"generation": 4}' + " " * LARGEST_BYTES,
    ],
    ids=range(14),
)
def test_anything_else_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "ready").write_text(text)
    assert read_ready(tmp_path) is None


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", "[1]", '"1"', "true"])
def test_values_that_are_no_numbers_are_none(tmp_path: Path, value: str) -> None:
    (tmp_path / "report").write_text(f'{{"step": {value}, "at": 5, "size": {value}}}')
    assert read_report(tmp_path) == WorkerReport(None, None, 5, None)


def test_bytes_that_are_no_text_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "ready").write_bytes(b'{"generation": "\xff\xfe"}')
    assert read_ready(tmp_path) is None


class TestWhatIsNoFileOfTheWorker:
    def good(self, folder: Path) -> Path:
        path = folder / "good"
        path.write_text('{"generation": 4}')
        return path

    def test_a_symlink(self, tmp_path: Path) -> None:
        (tmp_path / "ready").symlink_to(self.good(tmp_path))
        assert read_ready(tmp_path) is None

    def test_a_symlink_as_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "worker").mkdir()
        self.good(tmp_path / "worker").rename(tmp_path / "worker" / "ready")
        (tmp_path / "link").symlink_to(tmp_path / "worker")
        assert read_ready(tmp_path / "worker") == 4
        assert read_ready(tmp_path / "link") is None

    def test_a_hard_link(self, tmp_path: Path) -> None:
        os.link(self.good(tmp_path), tmp_path / "ready")
        assert read_ready(tmp_path) is None

    def test_a_fifo(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "ready")
        assert read_ready(tmp_path) is None

    def test_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "ready").mkdir()
        assert read_ready(tmp_path) is None

    def test_a_file_as_large_as_a_disk(self, tmp_path: Path) -> None:
        (tmp_path / "ready").touch()
        os.truncate(tmp_path / "ready", 1 << 40)
        assert read_ready(tmp_path) is None

    @needs_root
    def test_a_file_of_another_user(self, tmp_path: Path) -> None:
        self.good(tmp_path).rename(tmp_path / "ready")
        os.chown(tmp_path, 4001, 4001)
        assert read_ready(tmp_path) is None
        os.chown(tmp_path / "ready", 4001, 4001)
        assert read_ready(tmp_path) == 4
