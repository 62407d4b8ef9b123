from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.devices import Shape
from aliquot.model.errors import StateError
from aliquot.slices import control, state_directory


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALIQUOT_STATE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int = 1000) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_the_override_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALIQUOT_STATE", str(tmp_path / "mine"))
    assert state_directory.locate(None).directory == tmp_path / "mine"


def test_root_uses_the_system_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    assert state_directory.own_directory() == Path("/run/aliquot")


def test_each_user_has_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_user(monkeypatch)
    assert state_directory.own_directory() == Path("/tmp/aliquot-1000")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert state_directory.own_directory() == tmp_path / "aliquot"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert state_directory.own_directory() == Path("/tmp/aliquot-1000")


def test_the_system_arbiter_is_used_if_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    monkeypatch.setattr(control, "answers", lambda directory: directory == state_directory.SYSTEM)
    assert state_directory.locate(None).directory == state_directory.SYSTEM
    assert state_directory.locate(Shape("h100", 1)).directory.is_relative_to("/tmp/aliquot-1000")


def test_a_simulated_machine_has_its_own_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALIQUOT_STATE", str(tmp_path / "mine"))
    found = state_directory.locate(Shape("h100", 8))
    assert found.directory == tmp_path / "mine" / "simulated" / "h100-8"
    state_directory.prepare(found)
    assert found.meeting_place.is_dir()
    assert found.driver().variables == {
        "ALIQUOT_SIMULATE": "h100:8",
        "ALIQUOT_SIMULATE_STATE": str(found.meeting_place),
    }


def test_a_folder_that_cannot_be_created_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ALIQUOT_STATE", str(tmp_path / "file" / "state"))
    with pytest.raises(StateError, match="cannot be created") as caught:
        state_directory.prepare(state_directory.locate(None))
    assert f"ALIQUOT_STATE is {tmp_path / 'file' / 'state'}" in str(caught.value.hint)


def test_grants_are_listed_from_disk(tmp_path: Path) -> None:
    assert state_directory.StateDirectory(tmp_path).grants == []
    for name in ("grants/b", "kept/a", "grants/.incomplete"):
        (tmp_path / name).mkdir(parents=True)
    assert state_directory.StateDirectory(tmp_path).grants == ["a", "b"]


def test_a_folder_writable_by_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StateError, match="other users can write") as caught:
        state_directory.make_directory(tmp_path / "open")
    assert "chmod" in str(caught.value.hint)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="not a folder that belongs to this user"):
        state_directory.make_directory(tmp_path / "link")


def test_a_folder_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    as_user(monkeypatch, os.getuid() + 1)
    with pytest.raises(StateError, match="not a folder that belongs to this user"):
        state_directory.make_directory(tmp_path / "theirs")
