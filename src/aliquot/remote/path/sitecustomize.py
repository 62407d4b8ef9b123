"""Python imports this when a program of `aliquot run --remote` starts: it waits for `import torch`.

It runs the `sitecustomize` that it hides, if there is one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _chain() -> None:
    here = Path(__file__).resolve().parent
    kept = sys.path[:]
    sys.path[:] = [one for one in kept if not one or Path(one).resolve() != here]
    sys.path_importer_cache.clear()
    own = sys.modules.pop("sitecustomize", None)
    try:
        spec = importlib.util.find_spec("sitecustomize")
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
    finally:
        if "sitecustomize" not in sys.modules and own is not None:
            sys.modules["sitecustomize"] = own


def _wait_for_torch() -> None:
    file = Path(__file__).resolve().parents[1] / "bootstrap.py"
    spec = importlib.util.spec_from_file_location("aliquot_remote_bootstrap", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is missing: install Aliquot again")
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    bootstrap.provide()
    from aliquot.remote.client import WaitForTorch  # noqa: PLC0415 - importable only now

    sys.meta_path.insert(0, WaitForTorch())


_wait_for_torch()
_chain()
