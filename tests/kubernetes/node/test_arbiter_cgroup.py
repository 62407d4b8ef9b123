"""The cgroup of an arbiter that leaves its container; tests/cluster shows that it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.kubernetes.node import arbiter

UID = "59d78a16-9388-4c99-9b7a-d63a82235347"


@pytest.mark.parametrize(
    ("line", "group"),
    [
        (f"5:devices:/kubepods/burstable/pod{UID}/b6f9e4", "devices/aliquot"),
        (f"1:name=systemd:/kubepods/pod{UID}/b6f9e4", "systemd/aliquot"),
        (f"4:cpu,cpuacct:/test/node-0/kubepods/pod{UID}/b6f9e4", "cpu,cpuacct/test/node-0/aliquot"),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-pod{UID.replace('-', '_')}",
            "aliquot",
        ),
        (
            f"0::/docker/8c1/kubelet.slice/kubelet-kubepods.slice/pod{UID}",
            "docker/8c1/kubelet.slice/aliquot",
        ),
        ("0::/", None),
        ("3:cpuset:/user.slice", None),
    ],
)
def test_the_cgroup_is_next_to_the_parent_of_all_pods(
    line: str, group: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter, "CGROUPS", tmp_path)
    found = arbiter.cgroup_next_to_pods(line)
    assert (found and str(found)) == group


def test_version_2_next_to_version_1_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter, "CGROUPS", tmp_path)
    (tmp_path / "unified").mkdir()
    assert str(arbiter.cgroup_next_to_pods(f"0::/kubepods/pod{UID}")) == "unified/aliquot"
