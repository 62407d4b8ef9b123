"""`deploy/release` with tools that write down how they are called; Helm packages for real."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from kubernetes import chart

DIGEST = "sha256:" + "12" * 32
OF_CHART = "sha256:" + "34" * 32
LOCAL = "sha256:" + "56" * 32  # podman's own, of layers that are not compressed


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """A copy of the checkout's deploy folder, and an environment with pretended tools."""
    try:
        helm = chart.find_helm()
    except chart.NoHelmError as error:
        if os.environ.get("ALIQUOT_REQUIRE_CLUSTER"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    folder = tmp_path / "bin"
    folder.mkdir()
    told = tmp_path / "told"
    scripts = {
        "podman": f"""case "$1" in
image) echo "r.example/t/aliquot@{LOCAL}" ;;
push) echo -n {DIGEST} > "$3" ;;
esac""",
        "docker": f'[ "$1" = image ] && echo "r.example/t/aliquot@{DIGEST}" || true',
        "cosign": "true",
        "helm": f"""[ "$1" = push ] || exec {helm} "$@"
[ -z "$REFUSES" ] || {{ echo "no such registry" >&2; exit 1; }}
echo "Digest: {OF_CHART}" """,
        "git": 'case "$1" in rev-parse) echo abc;; status) cat "$STATUS";; esac',
    }
    for name, script in scripts.items():
        tool = folder / name
        tool.write_text(f'#!/bin/bash\necho "{name} $*" >> {told}\n{script}\n')
        tool.chmod(0o755)
    status = tmp_path / "status"
    status.write_text("")
    return {"PATH": f"{folder}:/usr/bin:/bin", "STATUS": str(status), "HOME": str(tmp_path)}


def release(
    tmp_path: Path, env: dict[str, str], *arguments: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    root = tmp_path / "checkout"
    if not root.exists():
        root.mkdir()
        subprocess.run(["cp", "-r", str(chart.ROOT / "deploy"), str(root)], check=True)
    done = subprocess.run(
        [str(root / "deploy" / "release"), *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    told = tmp_path / "told"
    return done, told.read_text().splitlines() if told.exists() else []


@pytest.mark.parametrize("engine", ["", "podman", "docker"])
def test_image_and_chart_are_built_pushed_and_signed_by_digest(
    tmp_path: Path, tools: dict[str, str], engine: str
) -> None:
    env = {**tools, "COSIGN_KEY": "k.key", "ENGINE": engine}
    env["COSIGN_OPTIONS"] = "--tlog-upload=false"
    done, told = release(tmp_path, env, "r.example/t")
    assert done.returncode == 0, done.stderr
    assert [line for line in told if line.startswith(f"{engine or 'podman'} push")]
    signed = [line for line in told if line.startswith("cosign")]
    assert signed == [
        f"cosign sign --yes --key=k.key --tlog-upload=false r.example/t/aliquot@{DIGEST}",
        f"cosign sign --yes --key=k.key --tlog-upload=false r.example/t/charts/aliquot@{OF_CHART}",
    ]
    packed = tmp_path / "checkout" / "dist" / "aliquot-0.1.0.tgz"
    with tarfile.open(packed) as files:
        assert "aliquot/values.yaml" in files.getnames()
    written = (tmp_path / "checkout" / "dist" / "release.txt").read_text()
    assert f"image r.example/t/aliquot@{DIGEST}" in written
    assert f"--set image.digest={DIGEST}" in done.stdout


def test_a_dry_run_neither_pushes_nor_signs(tmp_path: Path, tools: dict[str, str]) -> None:
    done, told = release(tmp_path, tools, "r.example/t", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [line for line in told if line.startswith(("cosign", "podman push", "helm push"))] == []
    assert [line for line in told if line.startswith("podman build")]


def test_a_changed_checkout_is_not_published(tmp_path: Path, tools: dict[str, str]) -> None:
    Path(tools["STATUS"]).write_text(" M file\n")
    done, told = release(tmp_path, tools, "r.example/t")
    assert done.returncode == 1
    assert "the checkout has changes" in done.stderr
    assert not [line for line in told if line.startswith(("podman", "cosign"))]


def test_what_helm_says_of_a_failed_push_is_shown(tmp_path: Path, tools: dict[str, str]) -> None:
    done, told = release(tmp_path, {**tools, "REFUSES": "1"}, "r.example/t")
    assert done.returncode == 1
    assert "no such registry" in done.stderr
    assert not [line for line in told if line.startswith("cosign")]


def test_another_base_of_the_image_can_be_named(tmp_path: Path, tools: dict[str, str]) -> None:
    env = {**tools, "PYTHON_IMAGE": "mirror.example/python:3.12"}
    done, told = release(tmp_path, env, "r.example/t", "--dry-run")
    assert done.returncode == 0, done.stderr
    (build,) = [line for line in told if line.startswith("podman build")]
    assert "--build-arg PYTHON_IMAGE=mirror.example/python:3.12" in build


def test_a_registry_must_be_named(tmp_path: Path, tools: dict[str, str]) -> None:
    done, _ = release(tmp_path, tools)
    assert done.returncode == 1
    assert "no registry" in done.stderr
