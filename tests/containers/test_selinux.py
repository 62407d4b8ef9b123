"""Labels for SELinux, which this kernel may keep without knowing them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.containers import selinux


@pytest.mark.parametrize(
    ("text", "on"), [("nodev\tselinuxfs\n\text4\n", True), ("nodev\tsysfs\n\text4\n", False)]
)
def test_a_kernel_with_selinux_has_its_file_system(tmp_path: Path, text: str, *, on: bool) -> None:
    listed = tmp_path / "filesystems"
    listed.write_text(text)
    assert selinux.is_on(listed) is on
    assert not selinux.is_on(tmp_path / "missing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets labels")
def test_a_folder_and_all_in_it_are_labelled_and_nothing_outside(tmp_path: Path) -> None:
    ours, outside = tmp_path / "ours", tmp_path / "outside"
    (ours / "inner").mkdir(parents=True)
    (ours / "inner" / "file").write_text("x")
    outside.write_text("x")
    (ours / "link").symlink_to(outside)
    selinux.label_for_containers([ours, tmp_path / "missing"])
    for path in (ours, ours / "inner", ours / "inner" / "file"):
        assert os.getxattr(path, selinux.ATTRIBUTE) == selinux.LABEL
    assert selinux.ATTRIBUTE not in os.listxattr(outside)
