"""Paths below a root whose owner may mean harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.kubernetes.node.below import exists_below


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with links of all sorts; beside it lies what must never be found."""
    made = tmp_path / "root"
    (made / "usr/lib").mkdir(parents=True)
    (made / "usr/lib/file").touch()
    (tmp_path / "secret").touch()
    (made / "lib").symlink_to("usr/lib")
    (made / "absolute").symlink_to("/usr/lib")
    (made / "usr/up").symlink_to("../../../usr/lib")
    (made / "out").symlink_to("../secret")
    (made / "far-out").symlink_to(tmp_path / "secret")
    (made / "loop").symlink_to("loop")
    (made / "circle").symlink_to("usr/../circle/usr")
    (made / "long").symlink_to("usr/../" * 100 + "usr")
    return made


@pytest.mark.parametrize(
    "path",
    [
        *("usr/lib/file", "/usr/lib/file", "usr//lib/./file", "lib/file", "absolute/file"),
        *("usr/up/file", "../../usr/lib/file", "lib/../lib/file", "lib", ""),
    ],
)
def test_what_is_there_is_found(root: Path, path: str) -> None:
    assert exists_below(root, path)


@pytest.mark.parametrize(
    "path",
    ["out", "far-out", "../secret", "loop", "circle", "long", "gone", "lib/file/on", "lib/gone"],
)
def test_nothing_leads_out_or_on_for_ever(root: Path, path: str) -> None:
    before = open_files()
    assert not exists_below(root, path)
    assert open_files() == before


def test_a_root_that_is_gone_has_nothing(tmp_path: Path) -> None:
    assert not exists_below(tmp_path / "gone", "lib")


def test_the_root_of_a_process_is_followed() -> None:
    assert exists_below(Path("/proc/self/root"), "proc/self/root/proc")
