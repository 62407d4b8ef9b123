"""Commands of several Unix users on one machine. Needs root.

The users have numbers and no names: nothing is added to the machine's list of users.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ALICE, BOB, CAROL = 4001, 4002, 4003

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users")

_AS_ALIQUOT = "import site, sys; site.addsitedir({!r}); from aliquot.cli import main; main()"


@contextmanager
def everyones_python(folder: Path) -> Iterator[Path]:
    """A Python that all users can run: this one may lie below a folder of root's alone.

    A mount shows it at another place. A copy would not find its libraries.
    """
    prefix = Path(sys.base_prefix).resolve()
    place = folder / "python"
    place.mkdir(mode=0o755)
    subprocess.run(["mount", "--bind", prefix, place], check=True)
    try:
        yield place / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    finally:
        subprocess.run(["umount", "-l", place], check=True)


class User:
    """A user, its groups and its home directory; runs `aliquot` and other programs."""

    def __init__(
        self, uid: int, python: Path, home: Path, env: Mapping[str, str], groups: Sequence[int] = ()
    ) -> None:
        self.uid, self.groups, self.home = uid, list(groups), home
        self._python = python
        self.home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        own = {"HOME": str(home), "USER": str(uid), "LOGNAME": str(uid)}
        self.env = {**env, **own, "PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, *args: str) -> list[str]:
        """The command line of `aliquot`, for this user."""
        packages = sysconfig.get_paths()["purelib"]
        return [str(self._python), "-P", "-c", _AS_ALIQUOT.format(packages), *args]

    def python_command(self, script: str, *args: str) -> list[str]:
        """The command line of a Python program that may import `aliquot`, for this user."""
        packages = sysconfig.get_paths()["purelib"]
        head = f"import site; site.addsitedir({packages!r})\n"
        return [str(self._python), "-P", "-c", head + script, *args]

    def start(self, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        """Start a program as this user."""
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            command,
            env=self.env,
            user=self.uid,
            group=self.uid,
            extra_groups=self.groups,
            cwd=self.home,
            text=True,
            **options,
        )

    def python(self, script: str, *args: str) -> subprocess.Popen[str]:
        """Start a Python program as this user, with pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self.start([str(self._python), "-P", "-c", script, *args], **pipes)

    def aliquot(self, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run `aliquot` as this user."""
        command = self.command(*args)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(command, **pipes) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)
