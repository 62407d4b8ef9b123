"""Files that a user owns in folders of the pool's: mounts, links and deep folders."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from aliquot.pool import logs
from aliquot.pool.json_files import write_json
from aliquot.pool.user_files import open_in, remove_tree, stat_in
from aliquot.pool.worker_files import read_ready
from pool.silent_mount import silent_mount
from users import ALICE

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")


def test_a_plain_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("text")
    with os.fdopen(open_in(tmp_path, "inner/file", os.O_RDONLY)) as file:
        assert file.read() == "text"
    assert stat_in(tmp_path, "inner/file").st_size == 4
    with pytest.raises(FileNotFoundError):
        stat_in(tmp_path, "inner/other")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "here").symlink_to(".")
    for path in ("link", "here/file"):
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            open_in(tmp_path, path, os.O_RDONLY)


@needs_root
@pytest.mark.timeout(30)
def test_nothing_of_a_mount_that_never_answers_is_read(tmp_path: Path) -> None:
    worker, log = tmp_path / "worker", tmp_path / "rank-0.log"
    worker.mkdir()
    (worker / "ready").write_text('{"generation": 4}')
    log.write_text("text")
    with silent_mount(worker, ALICE), silent_mount(log, ALICE):
        assert read_ready(worker) is None
        for use in (
            lambda: logs.read(log, 0, 10),
            lambda: logs.end_of(log),
            lambda: logs.open_log(log, ALICE),
        ):
            with pytest.raises(OSError, match=os.strerror(errno.EXDEV)):
                use()
    assert read_ready(worker) == 4


@needs_root
def test_a_user_gets_a_file_when_it_is_whole_and_cannot_guess_its_name_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Path] = []

    def give(handle: int, uid: int, _gid: int) -> None:
        assert uid == ALICE
        given.append(Path(f"/proc/self/fd/{handle}").readlink())
        assert given[-1].read_text() == '{"jobs": []}'

    monkeypatch.setattr(os, "fchown", give)
    for _ in range(2):
        write_json(tmp_path / "file", {"jobs": []}, ALICE)
    assert len(set(given)) == 2
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@needs_root
@pytest.mark.timeout(60)
def test_a_folder_is_removed_with_mounts_that_never_answer(tmp_path: Path) -> None:
    job = tmp_path / "1"
    (job / "3.0" / "worker" / "inner").mkdir(parents=True)
    (job / "rank-0.log").write_text("text")
    with (
        silent_mount(job / "3.0" / "worker" / "inner", ALICE),
        silent_mount(job / "3.0" / "worker", ALICE),
        silent_mount(job / "rank-0.log", ALICE),
    ):
        remove_tree(job)
    assert not job.exists()


def test_a_folder_is_removed_however_deep_it_is(tmp_path: Path) -> None:
    job, outside = tmp_path / "1", tmp_path / "outside"
    job.mkdir()
    outside.write_text("stays")
    inner = os.open(job, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("inner", dir_fd=inner)
        os.symlink(outside, "link", dir_fd=inner)
        below = os.open("inner", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
    os.close(inner)
    remove_tree(job)
    assert not job.exists()
    assert outside.read_text() == "stays"
    remove_tree(job)
