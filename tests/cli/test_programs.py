"""Kinds of programs that `aliquot run` starts: each is limited, or is refused with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import support
from aliquot.devices import CUDA
from aliquot.model.errors import CommandNotExecutableError, CommandNotFoundError
from aliquot.slices.tenant import find_command
from conftest import Cli
from standin.test_loading import build
from support import GIB, MIB

ONE = ("--simulate", "h100:1", "--memory", "2GiB")
TAKE = (f"open:{CUDA}", "take", "close")
SANITIZERS = ("address", "undefined", "thread")


# As compilers link them by default, and AddressSanitizer as a library of its own with clang, too.
SANITIZED = [
    *((compiler, f"-fsanitize={name}") for compiler in ("gcc", "clang") for name in SANITIZERS),
    ("clang", "-fsanitize=address", "-shared-libsan"),
]


@pytest.mark.parametrize("how", SANITIZED, ids=" ".join)
def test_a_program_with_a_sanitizer_is_limited(
    cli: Cli, tmp_path: Path, how: tuple[str, ...]
) -> None:
    compiler, *flags = how
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    runtime = ["-Wl,-rpath," + ask(compiler, "-print-runtime-dir")] if "clang" in how else []
    program = build(tmp_path / "program", *flags, *runtime, "-pthread", compiler=compiler)
    answer = cli("run", *ONE, "--", str(program), *TAKE, *TAKE)
    assert answer.returncode == 0, answer.stderr
    taken = [int(line) * MIB for line in answer.stdout.splitlines()[1::2]]
    assert len(taken) == 2
    assert all(0 < one < 2 * GIB for one in taken)


def ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_sanitizer_still_finds_errors(cli: Cli, tmp_path: Path) -> None:
    source = (
        "#include <stdlib.h>\n"
        "int main(int n, char **a) { char *p = malloc(8); p[7 + n] = **a; return p[7 + n]; }"
    )
    program = tmp_path / "wrong"
    command = ["gcc", "-fsanitize=address", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source, text=True, check=True)
    answer = cli("run", *ONE, "--", str(program), env={"ASAN_OPTIONS": "exitcode=77"})
    assert answer.returncode == 77
    assert "heap-buffer-overflow" in answer.stderr


def test_libraries_that_the_user_preloads_are_in_front_of_the_stand_in(
    cli: Cli, tmp_path: Path
) -> None:
    """A tool that replaces a function of the driver finds the next one."""
    source = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int cuDriverGetVersion(int *version)
{
	int (*next)(int *) = (int (*)(int *))dlsym(RTLD_NEXT, "cuDriverGetVersion");
	puts("seen");
	return next(version);
}
"""
    tool = support.compile_library(tmp_path, "libtool.so", source, "-ldl")
    code = (
        "import ctypes; library = ctypes.CDLL(None); number = ctypes.c_int();"
        "print(library.cuDriverGetVersion(ctypes.byref(number)), number.value > 0, flush=True)"
    )
    answer = cli("run", *ONE, "--", sys.executable, "-c", code, env={"LD_PRELOAD": str(tool)})
    assert answer.returncode == 0, answer.stderr
    assert sorted(answer.stdout.splitlines()) == ["0 True", "seen"]


def test_pythons_fault_handler_works(cli: Cli) -> None:
    code = (
        "import ctypes, faulthandler; faulthandler.enable();"
        f"ctypes.CDLL('{CUDA}').cuInit(0); ctypes.string_at(0)"
    )
    answer = cli("run", *ONE, "--", sys.executable, "-c", code)
    assert answer.returncode == -11
    assert "Fatal Python error: Segmentation fault" in answer.stderr
    assert "string_at" in answer.stderr


# --- programs with other rights


def test_a_script_of_this_folder_is_refused_with_how_to_name_and_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.sh").write_text("#!/bin/sh\n")
    with pytest.raises(CommandNotFoundError, match=r"write \./sweep\.sh"):
        find_command("sweep.sh")
    with pytest.raises(CommandNotExecutableError, match=r"chmod \+x \./sweep\.sh"):
        find_command("./sweep.sh")
    (tmp_path / "sweep.sh").chmod(0o755)
    assert find_command("./sweep.sh") == "./sweep.sh"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a file of another user")
@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_a_setuid_program_is_refused(cli: Cli, short_tmp: Path, mode: int) -> None:
    program = short_tmp / "mighty"
    shutil.copy(shutil.which("true") or "/bin/true", program)
    os.chown(program, 1000, 1000)
    program.chmod(mode)
    answer = cli("run", *ONE, "--", str(program))
    assert answer.returncode == 126
    assert "would use the GPU outside the slice" in answer.stderr
    assert "sudo aliquot run" in answer.stderr
    program.chmod(0o755)
    assert cli("run", *ONE, "--", str(program)).returncode == 0


def test_a_program_with_file_capabilities_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "able"
    program.touch(0o755)
    find_command(str(program))
    monkeypatch.setattr(os, "listxattr", lambda _: ["user.x", "security.capability"])
    monkeypatch.setattr(os, "geteuid", lambda: program.stat().st_uid + 1)
    with pytest.raises(CommandNotExecutableError, match="file capabilities"):
        find_command(str(program))
