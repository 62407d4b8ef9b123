"""`aliquot slice`: a slice by name is a kept grant and a CDI device, made and removed together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aliquot.containers.hook import grant_names
from aliquot.containers.size_names import parse_size
from aliquot.model import Life, Slice, check_name
from aliquot.model.errors import InvalidValueError
from aliquot.model.units import Amount
from aliquot.slices import control
from conftest import Cli
from support import GIB
from users import needs_root

SHAPE = ("--simulate", "h100:2")


@pytest.fixture
def cdi(short_tmp: Path) -> Path:
    return short_tmp / "cdi"


@pytest.fixture
def state(aliquot_state: Path) -> Path:
    return aliquot_state / "simulated" / "h100-2"


def create(cli: Cli, cdi: Path, name: str, *options: str) -> None:
    done = cli("slice", "create", "--name", name, "--cdi-dir", str(cdi), *options, *SHAPE)
    assert done.returncode == 0, done.stderr
    assert f"--device aliquot.io/slice={name}" in done.stdout


def listed(cli: Cli) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cli("slice", "list", "--json", *SHAPE).stdout)[
        "slices"
    ]
    return found


def edits(cdi: Path, name: str) -> dict[str, Any]:
    spec = json.loads((cdi / f"aliquot.io-slice-{name}.json").read_text("utf-8"))
    assert spec["kind"] == "aliquot.io/slice"
    (device,) = spec["devices"]
    assert device["name"] == name
    found: dict[str, Any] = device["containerEdits"]
    return found


def test_a_slice_is_a_grant_and_a_device(cli: Cli, cdi: Path, state: Path) -> None:
    create(cli, cdi, "demo", "--memory", "8GiB", "--compute", "30", "--policy", "hard")
    (grant,) = control.status(state).grants
    (part,) = grant.slices
    assert (grant.name, grant.life) == ("demo", Life.KEPT)
    assert (part.memory_bytes, part.compute_percent, str(part.policy)) == (8 * GIB, 30, "hard")
    mounts = {one["containerPath"]: one["hostPath"] for one in edits(cdi, "demo")["mounts"]}
    assert mounts["/run/aliquot/grant"] == str(state / "kept" / "demo")
    assert all(Path(source).exists() for source in mounts.values())
    (one,) = listed(cli)
    assert (one["name"], one["state"], one["device"]) == ("demo", "active", "aliquot.io/slice=demo")
    assert "demo" in cli("slice", "list", *SHAPE).stdout

    assert cli("slice", "delete", "demo", *SHAPE).stdout == "slice demo deleted\n"
    assert list(cdi.iterdir()) == []
    assert control.status(state).grants == ()
    assert listed(cli) == []


def test_a_name_is_published_once(cli: Cli, cdi: Path, state: Path) -> None:
    create(cli, cdi, "demo", "--memory", "8GiB")
    again = cli("slice", "create", "--name", "demo", "--memory", "1GiB", *SHAPE)
    assert again.returncode == 1
    assert "already a slice named demo" in again.stderr
    (grant,) = control.status(state).grants
    assert grant.slices[0].memory_bytes == 8 * GIB


@pytest.mark.parametrize("name", ["a b", "-a", "a.", "a/b", "job.1.0.3", "shared"])
def test_a_name_is_valid_for_a_grant_and_a_device(cli: Cli, name: str) -> None:
    done = cli("slice", "create", "--memory", "1GiB", f"--name={name}", *SHAPE)
    assert done.returncode == 2
    assert "not a valid name" in done.stderr


def test_nothing_is_left_of_a_slice_that_cannot_be_made(cli: Cli, cdi: Path, state: Path) -> None:
    too_large = cli("slice", "create", "--name", "a", "--memory", "900GiB", *SHAPE)
    assert too_large.returncode == 1
    assert "no GPU has 900 GiB" in too_large.stderr
    cdi.write_text("no folder")
    no_folder = ("--cdi-dir", str(cdi))
    refused = cli("slice", "create", "--name", "b", "--memory", "1GiB", *no_folder, *SHAPE)
    assert refused.returncode == 1
    assert "cannot be written" in refused.stderr
    assert control.status(state).grants == ()
    assert listed(cli) == []


def test_slices_return_after_a_reboot(cli: Cli, cdi: Path, state: Path) -> None:
    """A reboot ends all processes, and empties the folders of grants and devices."""
    create(cli, cdi, "one", "--memory", "8GiB", "--compute", "30")
    create(cli, cdi, "two", "--gpus", "2", "--memory", "50%", "--priority", "latency")
    before = {grant.name: grant.slices for grant in control.status(state).grants}
    specs = {path.name: path.read_bytes() for path in cdi.iterdir()}
    for name in before:
        control.end(state, name)
    shutil.rmtree(cdi)
    assert {one["state"].partition(":")[0] for one in listed(cli)} == {"missing"}

    done = cli("slice", "restore", *SHAPE)
    assert done.returncode == 0, done.stderr
    assert {grant.name: grant.slices for grant in control.status(state).grants} == before
    assert {path.name: path.read_bytes() for path in cdi.iterdir()} == specs
    cli("slice", "restore", *SHAPE)
    assert {path.name: path.read_bytes() for path in cdi.iterdir()} == specs


def test_a_slice_that_does_not_return_is_named(cli: Cli, cdi: Path, state: Path) -> None:
    create(cli, cdi, "one", "--memory", "60GiB", "--gpu", "0")
    control.end(state, "one")
    create(cli, cdi, "two", "--memory", "60GiB", "--gpu", "0")
    done = cli("slice", "restore", *SHAPE)
    assert done.returncode == 1
    assert "slice one is not restored" in done.stderr
    assert {grant.name for grant in control.status(state).grants} == {"two"}


def test_a_slice_that_is_not_there_is_not_deleted(cli: Cli, cdi: Path) -> None:
    create(cli, cdi, "demo", "--memory", "1GiB")
    done = cli("slice", "delete", "other", "demo", *SHAPE)
    assert done.returncode == 1
    assert "no slice named other" in done.stderr
    assert done.stdout == "slice demo deleted\n"


def test_a_slice_whose_list_is_lost_can_be_deleted(cli: Cli, cdi: Path, state: Path) -> None:
    """As after a command that was killed when it had made the grant."""
    create(cli, cdi, "demo", "--memory", "1GiB")
    (state / "containers/published.json").unlink()
    assert cli("slice", "delete", "demo", *SHAPE).stdout == "slice demo deleted\n"
    assert control.status(state).grants == ()
    assert cli("slice", "delete", "demo", *SHAPE).returncode == 1


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_all_read_and_the_maker_writes_whatever_the_umask(
    cli: Cli, cdi: Path, state: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        create(cli, cdi, "demo", "--memory", "1GiB")
    finally:
        os.umask(before)
    spec = cdi / "aliquot.io-slice-demo.json"
    modes = [
        path.stat().st_mode & 0o777 for path in (cdi, spec, state / "containers/published.json")
    ]
    assert modes == [0o755, 0o644, 0o644]


def test_nothing_is_left_of_a_slice_that_cannot_be_listed(cli: Cli, cdi: Path, state: Path) -> None:
    create(cli, cdi, "first", "--memory", "1GiB")
    (state / "containers/.published.json.new").mkdir()
    words = ("--memory", "1GiB", "--cdi-dir", str(cdi))
    done = cli("slice", "create", "--name", "demo", *words, *SHAPE)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert [grant.name for grant in control.status(state).grants] == ["first"]
    assert [path.name for path in cdi.iterdir()] == ["aliquot.io-slice-first.json"]


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "memory", "compute"),
    [
        ("8gib-30pct", Amount(bytes=8 * GIB), 30),
        ("8GiB", Amount(bytes=8 * GIB), 0),
        ("1.5gib-5pct", Amount(bytes=3 * GIB // 2), 5),
        ("30pct", None, 30),
    ],
)
def test_a_name_says_a_size(name: str, memory: Amount | None, compute: int) -> None:
    assert parse_size(name) == (memory, compute)


@pytest.mark.parametrize("name", ["", "small", "8", "8gib-", "-30pct", "8gib30", "30pct-8gib"])
def test_other_names_say_no_size(name: str) -> None:
    with pytest.raises(InvalidValueError, match="does not say a size"):
        parse_size(name)


def publish(cli: Cli, cdi: Path, *words: str) -> None:
    done = cli("slice", "publish", *words, "--cdi-dir", str(cdi), *SHAPE)
    assert done.returncode == 0, done.stderr


def test_a_size_is_a_device_with_a_hook_and_reserves_nothing(
    cli: Cli, cdi: Path, state: Path
) -> None:
    publish(cli, cdi, "8gib-30pct")
    publish(cli, cdi, "small", "--memory", "12.5%", "--gpu", "1", "--priority", "background")
    status = control.status(state)
    assert status.grants == ()
    assert status.answer["linger_seconds"] == 0, "no command starts it when a container does"
    (hook,) = edits(cdi, "8gib-30pct")["hooks"]
    assert hook["hookName"] == "createRuntime"
    assert Path(hook["path"]).is_absolute()
    mounts = {one["containerPath"]: one["hostPath"] for one in edits(cdi, "small")["mounts"]}
    assert list(Path(mounts["/run/aliquot/grant"]).iterdir()) == []
    found = json.loads(cli("slice", "list", "--json", *SHAPE).stdout)["sizes"]
    assert [(one["name"], one["memory"], one["compute_percent"]) for one in found] == [
        ("8gib-30pct", "8 GiB", 30),
        ("small", "12.5%", 0),
    ]
    specs = {path.name: path.read_bytes() for path in cdi.iterdir()}
    shutil.rmtree(cdi)
    assert cli("slice", "restore", *SHAPE).returncode == 0
    assert {path.name: path.read_bytes() for path in cdi.iterdir()} == specs
    assert cli("slice", "delete", "small", "8gib-30pct", *SHAPE).returncode == 0
    assert list(cdi.iterdir()) == []
    assert "no slices" in cli("slice", "list", *SHAPE).stdout


def test_a_size_that_cannot_be_is_not_published(cli: Cli, cdi: Path) -> None:
    create(cli, cdi, "8gib", "--memory", "1GiB")
    for words, why in (
        (["8gib"], "already a slice named 8gib"),
        (["small"], "does not say a size"),
        (["50pct", "--gpu", "7"], "names no GPU"),
    ):
        done = cli("slice", "publish", *words, "--cdi-dir", str(cdi), *SHAPE)
        assert done.returncode != 0
        assert why in done.stderr
    assert [path.name for path in cdi.iterdir()] == ["aliquot.io-slice-8gib.json"]


def test_containers_have_different_names_of_grants() -> None:
    """Docker's ids are random; those of `ctr` and `runc` are what people write."""
    size = "a" * 60
    ids = [*(f"training-run-{number}" for number in range(20)), "training-run", "a b", "a/b", "a-b"]
    names = [name for one in ids for name in grant_names(size, one)]
    assert len(set(names)) == len(names)
    assert {check_name(name) for name in names} == set(names)
    assert grant_names("8gib", "3f2a9c1b7d10" + "0" * 52)[0] == "8gib-3f2a9c1b7d10"


def test_a_container_is_listed_with_its_own_size(cli: Cli, cdi: Path, state: Path) -> None:
    for size in ("8gib", "8gib-30pct"):
        publish(cli, cdi, size)
    gpu = control.status(state).gpus[0].gpu.uuid
    name = grant_names("8gib-30pct", "demo")[0]
    control.make(state, name, [Slice(gpu, GIB)], kept=True, pid=os.getpid())
    found = json.loads(cli("slice", "list", "--json", *SHAPE).stdout)["sizes"]
    assert {one["name"]: one["grants"] for one in found} == {"8gib": [], "8gib-30pct": [name]}
    control.end(state, name)


def test_a_hook_without_a_container_fails_and_says_why(cli: Cli, cdi: Path) -> None:
    publish(cli, cdi, "8gib")
    (hook,) = edits(cdi, "8gib")["hooks"]
    for given in ("", "{}", '{"id": "a", "pid": 1, "bundle": "/nowhere"}'):
        done = subprocess.run(
            [hook["path"], *hook["args"][1:]],
            env={},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "no slice of size 8gib: the runtime does not tell" in done.stderr


@needs_root
def test_publishing_with_code_that_another_user_can_write_is_warned_of(
    cli: Cli, cdi: Path, short_tmp: Path
) -> None:
    """Root would run it at each start of a container."""
    python = short_tmp / "python"
    python.symlink_to(sys.executable)
    short_tmp.chmod(0o777)
    words = ["slice", "publish", "8gib", "--cdi-dir", str(cdi), *SHAPE]
    run = "import sys; sys.executable = sys.argv.pop(1); from aliquot.cli import main; main()"
    env = {**os.environ, "ALIQUOT_STATE": str(short_tmp / "state")}
    done = subprocess.run(
        [sys.executable, "-c", run, str(python), *words],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"warning: other users can write to {short_tmp}, and root would run it" in done.stderr
