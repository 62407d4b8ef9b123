"""The start of a process that has PyTorch and perhaps no Aliquot: makes `aliquot` importable.

    python bootstrap.py MODULE ARGUMENT ...

runs `aliquot.remote.MODULE.main([ARGUMENT, ...])`. Only the package `aliquot` of this file becomes
importable, and nothing that is installed beside it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def provide() -> None:
    """Make this file's `aliquot` the one that is imported."""
    if "aliquot" in sys.modules:
        return
    folder = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "aliquot", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is there
    module = importlib.util.module_from_spec(spec)
    sys.modules["aliquot"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    del sys.path[0]  # this folder: its modules have names of their own, such as `client`
    provide()
    importlib.import_module(f"aliquot.remote.{sys.argv[1]}").main(sys.argv[2:])
