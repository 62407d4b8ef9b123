"""The `aliquot` command.

`main` is all that is imported at start. The commands are in `app`, each in a module of its own, and
what they need is imported when they run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command line; every AliquotError becomes a message and an exit code."""
    if sys.stderr is None:  # so Python has it where it was closed
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end
    try:
        from aliquot.cli.app import run_app  # noqa: PLC0415 - `import aliquot.cli` costs nothing

        run_app()
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write(
            f"aliquot: {error.name} is not installed\n"
            f"  Install it with: {sys.executable} -m pip install {error.name}\n"
        )
        sys.exit(1)
