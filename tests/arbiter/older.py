"""Programs of earlier commits of this repository."""

from __future__ import annotations

import io
import subprocess
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments],
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout


def has_history() -> bool:
    """Whether this is a checkout of the repository, and no copy without earlier commits."""
    return (ROOT / ".git").exists()


def extract(commit: str, part: str, folder: Path) -> Path:
    """A folder of an earlier commit, in that folder."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, part))) as archive:
        archive.extractall(folder, filter="data")
    return folder / part


def build_arbiter(commit: str, folder: Path) -> Path:
    """The arbiter of an earlier commit."""
    extract(commit, "native", folder)
    native, program = folder / "native", folder / "aliquot-arbiter"
    headers = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "include"
    sources = [*native.glob("arbiter/*.c"), *native.glob("ledger/*.c")]
    options = ["-O1", "-std=gnu11", "-D_GNU_SOURCE", "-fno-strict-aliasing"]
    includes = [f"-I{native / 'include'}", f"-I{headers}"]
    libraries = ["-lpthread", "-ldl"]
    command = ["cc", *options, *includes, *map(str, sources), "-o", str(program), *libraries]
    subprocess.run(command, check=True, timeout=200)
    return program
