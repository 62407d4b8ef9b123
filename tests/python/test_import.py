"""What `import aliquot` costs, and what it needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import aliquot
from repository.files import ROOT, read

if TYPE_CHECKING:
    from pathlib import Path

BARE = [sys.executable, "-I", "-S"]


def test_the_files_that_the_page_copies_into_an_image_suffice_for_a_worker(tmp_path: Path) -> None:
    (line,) = re.findall(r"^COPY (.*)$", read(ROOT / "docs" / "jobs.md"), re.MULTILINE)
    *sources, target = line.split()
    folder = tmp_path / target.strip("/")
    folder.mkdir(parents=True)
    for source in sources:
        shutil.copy(ROOT / source, folder)
    code = (
        f"import sys; sys.path.insert(0, {str(folder.parent)!r})\n"
        "from aliquot import worker\n"
        "import aliquot\n"
        "print(worker.rank(), worker.notice(), hasattr(aliquot, 'nothing'), dir(aliquot) != [])"
    )
    done = subprocess.run([*BARE, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 None False True\n"


def test_importing_aliquot_and_its_worker_imports_nothing_else_of_it() -> None:
    code = (
        "import sys, aliquot; from aliquot import worker;"
        "print(sorted(one for one in sys.modules if one.startswith('aliquot.')),"
        " 'importlib.metadata' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("['aliquot.worker'] ")
    assert done.stdout.endswith(" False\n")


def test_every_public_name_is_there() -> None:
    assert set(aliquot.__all__) <= set(dir(aliquot))
    for name in aliquot.__all__:
        assert getattr(aliquot, name) is not None


def test_the_package_is_typed() -> None:
    assert (ROOT / "src" / "aliquot" / "py.typed").exists()
