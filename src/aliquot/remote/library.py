"""The compiled half of a client: built once for each PyTorch, with the machine's C++ compiler."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from aliquot.remote.greeting import RemoteError

_SOURCE = Path(__file__).parent / "client.cpp"
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-w")


def build(torch: Path, version: str) -> Path:
    """The library for the PyTorch in this folder; compiles it if it is not in the cache."""
    digest = hashlib.sha256(
        f"{version} {torch} {_FLAGS}".encode() + _SOURCE.read_bytes()
    ).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aliquot" / "remote"
    built = cache / f"client-{digest[:24]}.so"
    if built.exists():
        return built
    compiler = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")
    if compiler is None:
        raise RemoteError(
            f"the client of remote GPUs for PyTorch {version} is not built, and there is no C++"
            " compiler",
            "Install g++ (on Debian: apt-get install g++), or set CXX.",
        )
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _compile(compiler, torch, version, built)
    return built


def _compile(compiler: str, torch: Path, version: str, built: Path) -> None:
    sys.stderr.write(
        f"aliquot: compiling the client of remote GPUs for PyTorch {version}: once, a minute\n"
    )
    sys.stderr.flush()
    partial = built.with_suffix(f".{os.getpid()}")
    include = torch / "include"
    command = [compiler, *_FLAGS, f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"]
    command += [str(_SOURCE), "-o", str(partial), f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    command += [f"-Wl,-rpath,{torch / 'lib'}"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        partial.unlink(missing_ok=True)
        raise RemoteError(
            f"the client of remote GPUs does not compile with PyTorch {version}:\n"
            f"{made.stderr[:2000]}",
            "docs/remote.md names the versions of PyTorch that it was tried with.",
        )
    partial.rename(built)
