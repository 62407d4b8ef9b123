"""`aliquot install` into a folder: what it makes, what it refuses, and that its commands run."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.cli.install import UNITS, InstallTarget, check_folders, check_source, unit_texts
from aliquot.model.errors import InstallationError
from aliquot.slices import control
from support import wait_until
from users import ALICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Cli

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = Path(f"/usr/bin/python{VERSION}")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"needs {PYTHON}"),
]


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A machine's root folder with Aliquot in it, which all users reach."""
    with tempfile.TemporaryDirectory(prefix="aq-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "etc/pam.d").mkdir(parents=True)
        yield root


def install(cli: Cli, root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return cli("install", "--root", str(root), "--python", str(PYTHON), *args)


def test_a_dry_run_prints_every_step_and_changes_nothing(cli: Cli, installed: Path) -> None:
    before = sorted(installed.rglob("*"))
    answer = install(cli, installed, "--dry-run")
    assert answer.returncode == 0, answer.stderr
    for words in ("would make the folder /opt/aliquot", "files to /opt/aliquot/releases/",
                  "would link /usr/local/bin/aliquot to", "would write /etc/pam.d/aliquot",
                  *(f"would write /etc/systemd/system/{unit}" for unit in UNITS)):  # fmt: skip
        assert words in answer.stdout
    assert sorted(installed.rglob("*")) == before


def test_it_installs_once_and_is_roots_alone(cli: Cli, installed: Path) -> None:
    answer = install(cli, installed)
    assert answer.returncode == 0, answer.stderr
    assert "Start the services by hand" in answer.stdout
    again = install(cli, installed)
    assert "nothing to do" in again.stdout
    for path in (installed / "opt").rglob("*"):
        found = path.lstat()
        assert found.st_uid == 0, path
        assert stat.S_ISLNK(found.st_mode) or not found.st_mode & 0o022, path
    assert (installed / "usr/local/bin/aliquot").readlink() == Path(
        "/opt/aliquot/current/bin/aliquot"
    )
    settings = (installed / "etc/aliquot/pool.toml").read_text()
    assert "# [queues.default]" in settings
    assert tomllib.loads(settings) == {}
    names = {path.name for path in (installed / "opt/aliquot/current/lib").rglob("*.pth")}
    assert names == set(), "no file that leads Python elsewhere"


def test_an_installed_release_runs_for_every_user_without_the_checkout(
    cli: Cli, installed: Path
) -> None:
    install(cli, installed)
    python = installed / "opt/aliquot/current/bin/python"
    program = (
        "import aliquot, sys\nfrom aliquot.devices import native_dir\n"
        "print(aliquot.__file__, native_dir(), sys.flags.isolated)\n"
    )
    done = subprocess.run(
        [str(python), "-I", "-c", program],
        user=ALICE, group=ALICE, env={"PYTHONPATH": "/nowhere"}, cwd="/",
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    module, native, isolated = done.stdout.split()
    assert Path(module).resolve().is_relative_to(installed.resolve() / "opt")
    assert Path(native).resolve().is_relative_to(installed.resolve() / "opt")
    assert isolated == "1"


def test_the_commands_of_the_units_run(
    cli: Cli, installed: Path, cli_env: dict[str, str], aliquot_state: Path
) -> None:
    install(cli, installed)
    target = InstallTarget(installed / "opt/aliquot")
    env = {**cli_env, "ALIQUOT_SIMULATE": "h100:1"}
    state = aliquot_state / "simulated" / "h100-1"
    lines = [
        line.removeprefix("ExecStart=")
        for text in unit_texts(target).values()
        for line in text.splitlines()
        if line.startswith("ExecStart=")
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(subprocess.Popen(shlex.split(lines[0]), env=env, cwd="/"))
        wait_until(lambda: control.answers(state), 60)
        assert control.status(state).answer["admission"] == "pool"
        started.append(
            subprocess.Popen(shlex.split(lines[1]), env=env, cwd="/", stderr=subprocess.PIPE)
        )
        assert started[1].stderr
        assert b"up on simulated" in started[1].stderr.readline()
    finally:
        for process in reversed(started):
            process.terminate()
            assert process.wait(60) == 0
            if process.stderr:
                process.stderr.close()


def test_systemd_accepts_the_units(cli: Cli, installed: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("needs systemd-analyze")
    install(cli, installed)
    folder = installed / "units"
    folder.mkdir(exist_ok=True)
    files = []
    for name, text in unit_texts(InstallTarget(installed / "opt/aliquot")).items():
        (folder / name).write_text(text)
        files.append(str(folder / name))
    done = subprocess.run(
        [verify, "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "aliquot" in line]
    assert ours == []
    for text in unit_texts(InstallTarget()).values():
        for words in ("Restart=always", "RestartSec=100ms", "KillMode=process"):
            assert words in text


@pytest.mark.parametrize(("version", "expected"), [("252 (252.38)", False), ("254.1", True)])
def test_the_pools_unit_names_a_cgroup_of_its_own_if_systemd_knows_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, version: str, expected: bool
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\necho 'systemd {version}'\necho +PAM\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lines = unit_texts(InstallTarget())[UNITS[1]].splitlines()
    assert "Delegate=yes" in lines
    assert ("DelegateSubgroup=pool" in lines) is expected


def test_uninstall_leaves_settings_and_says_so(cli: Cli, installed: Path) -> None:
    install(cli, installed)
    (installed / "etc/aliquot/users").write_text("# mine\n")
    answer = cli("uninstall", "--root", str(installed))
    assert answer.returncode == 0, answer.stderr
    assert "left: /etc/aliquot" in answer.stdout
    assert "left: /var/lib/aliquot" in answer.stdout
    assert not (installed / "opt/aliquot").exists()
    assert not (installed / "usr/local/bin/aliquot").is_symlink()
    assert list((installed / "etc/systemd/system").iterdir()) == []
    assert (installed / "etc/aliquot/users").exists()
    assert "nothing to do" in cli("uninstall", "--root", str(installed)).stdout


class TestRefusals:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        tmp_path.chmod(0o755)
        (tmp_path / "opt").mkdir(mode=0o755)
        return tmp_path

    def test_a_parent_that_others_can_write(self, cli: Cli, root: Path) -> None:
        (root / "opt").chmod(0o777)
        answer = install(cli, root)
        assert answer.returncode == 1
        assert f"other users can write to {root}/opt" in answer.stderr
        assert list((root / "opt").iterdir()) == []

    def test_a_parent_that_belongs_to_a_user_or_is_a_link(self, root: Path) -> None:
        os.chown(root / "opt", ALICE, ALICE)
        with pytest.raises(InstallationError, match="other users can write"):
            check_folders(root / "opt/aliquot", root)
        (root / "link").symlink_to(root / "opt")
        with pytest.raises(InstallationError, match="is a link"):
            check_folders(root / "link/aliquot", root)

    @pytest.mark.parametrize(("mode", "uid"), [(0o666, 0), (0o664, 0), (0o644, ALICE)])
    def test_a_source_that_others_can_write(self, root: Path, mode: int, uid: int) -> None:
        source = root / "module.py"
        source.touch()
        source.chmod(mode)
        os.chown(source, uid, ALICE)
        with pytest.raises(InstallationError, match="root would run it"):
            check_source([source], frozenset({0}))
        source.chmod(0o644)
        check_source([source], frozenset({0, uid}))

    def test_a_folder_of_the_source_that_others_can_write(self, root: Path) -> None:
        source = root / "opt" / "module.py"
        source.touch()
        check_source([source], frozenset({0}))
        (root / "opt").chmod(0o777)
        with pytest.raises(InstallationError, match="opt, and root would run it"):
            check_source([source], frozenset({0}))

    def test_a_python_that_not_everybody_can_run(self, cli: Cli, root: Path) -> None:
        own = root / "python"
        shutil.copy(PYTHON, own)
        own.chmod(0o700)
        answer = cli("install", "--root", str(root), "--python", str(own))
        assert answer.returncode == 1
        assert "that everybody can run and only root can change" in answer.stderr


def test_old_releases_are_removed_unless_a_program_uses_them(cli: Cli, installed: Path) -> None:
    install(cli, installed)
    releases = installed / "opt/aliquot/releases"
    for age, name in enumerate(("last", "used", "old", "older")):
        (releases / name / "bin").mkdir(parents=True)
        shutil.copy("/bin/sleep", releases / name / "bin")
        os.utime(releases / name, (1e9 - age, 1e9 - age))
    with subprocess.Popen([releases / "used" / "bin" / "sleep", "1000"]) as program:
        answer = install(cli, installed)
        program.kill()
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("remove /opt/aliquot/releases/old") == 2
    current = (installed / "opt/aliquot/current").readlink().name
    assert {one.name for one in releases.iterdir()} == {current, "last", "used"}
