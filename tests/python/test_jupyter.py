"""`%aliquot` in a real kernel: it restarts in a slice, shows it, changes it and leaves it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from jupyter_client.manager import KernelManager

from cli.conftest import grants_of
from python.notebook import Notebook
from support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Cli

SIZE = """
from cuda.bindings import driver as cuda
cuda.cuInit(0); cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
print(round(cuda.cuMemGetInfo()[2] / 2**30), 'GiB')
"""


@pytest.fixture
def notebook(cli_env: dict[str, str], tmp_path: Path) -> Iterator[Notebook]:
    manager = KernelManager()
    env = {**cli_env, "IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    manager.start_kernel(env=env, cwd=str(tmp_path))
    opened = Notebook(manager)
    try:
        opened.run("mark = 1")
        assert opened.run("%load_ext aliquot") == ""
        yield opened
    finally:
        opened.close()


def test_a_kernel_restarts_in_a_slice_changes_it_and_leaves_it(
    notebook: Notebook, cli: Cli
) -> None:
    pid = notebook.pid
    assert "in no slice" in notebook.run("%aliquot")
    said = notebook.run("%aliquot memory=8GiB compute=30 name=mine simulate=h100:1")
    assert said == "This kernel restarts in the slice mine. Its variables are lost."
    notebook.restarts(in_a_slice=True)
    assert notebook.run("print('mark' in globals())") == "False\n"
    assert notebook.run("import os; print(os.getpid())") == f"{pid}\n"
    assert notebook.run(SIZE) == "8 GiB\n"
    notebook.run("%load_ext aliquot")
    shown = notebook.run("mark = 2\n%aliquot")
    assert re.fullmatch(
        r"This kernel is in the slice mine: 8 GiB of GPU 0 \(H100 80GB HBM3\), compute 30%,"
        r" [\d.]+ [GM]iB used\n",
        shown,
    ), shown
    assert "12 GiB" in notebook.run("%aliquot memory=12GiB")
    assert notebook.run("print(mark, round(cuda.cuMemGetInfo()[2] / 2**30))") == "2 12\n"
    assert "mine" in cli("ps").stdout
    assert "without the slice mine" in notebook.run("%aliquot off")
    notebook.restarts(in_a_slice=False)
    changed = "LD_PRELOAD LD_LIBRARY_PATH ALIQUOT_GRANT ALIQUOT_KERNEL ASAN_OPTIONS"
    assert notebook.run(f"import os; print([x for x in {changed.split()} if x in os.environ])") == (
        "[]\n"
    )
    assert notebook.run("print(os.getpid())") == f"{pid}\n"
    wait_until(lambda: "mine" not in cli("ps").stdout)


def test_cells_that_wait_behind_the_restart_do_not_run(notebook: Notebook, tmp_path: Path) -> None:
    for code in ("%aliquot memory=8GiB simulate=h100:1", "open('ran', 'w').close()"):
        notebook.client.execute(code)
    notebook.restarts(in_a_slice=True)
    assert notebook.run("print(1)") == "1\n"
    assert not (tmp_path / "ran").exists()


def test_a_refused_slice_restarts_nothing(notebook: Notebook, cli: Cli) -> None:
    for line, why in (
        ("memory=800GiB simulate=h100:1", "UsageError"),
        ("memory=8 GiB", "does not know 'GiB'"),
        ("memory=eight", "not an amount of memory"),
        ("memory=8GiB priority=high", "'high' is not a priority"),
    ):
        assert why in notebook.run(f"%aliquot {line}")
    assert "in no slice" in notebook.run("%aliquot off")
    assert notebook.run("print(mark)") == "1\n"
    assert not grants_of(cli)


def test_the_grant_ends_with_the_kernel(notebook: Notebook, cli: Cli) -> None:
    notebook.run("%aliquot memory=8GiB name=mine simulate=h100:1")
    notebook.restarts(in_a_slice=True)
    assert notebook.run(SIZE) == "8 GiB\n"
    notebook.manager.interrupt_kernel()
    assert notebook.run("print(1)").endswith("1\n")
    notebook.manager.shutdown_kernel(now=True)
    wait_until(lambda: "mine" not in cli("ps").stdout)


def test_ipython_without_a_kernel_is_told_how_to_start_in_a_slice(
    cli_env: dict[str, str], tmp_path: Path
) -> None:
    code = (
        "from IPython.core.interactiveshell import InteractiveShell as Shell; s = Shell.instance();"
        " s.run_cell('%load_ext aliquot'); s.run_cell('%aliquot memory=8GiB')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**cli_env, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "aliquot run --memory 8GiB -- ipython" in done.stderr
