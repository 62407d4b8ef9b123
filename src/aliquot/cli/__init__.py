"""The `aliquot` command.

Importing this package is cheap. Each command imports what it needs when it runs.

- `app`: the commands of one machine: their names, options and help.
- `arbiter`: `aliquot arbiter`.
- `controller`: `aliquot controller`.
- `doctor`: `aliquot doctor`.
- `explain`: `aliquot explain`.
- `gang`: `aliquot describe gang/NAME`.
- `gpus`: `aliquot gpus`.
- `help_text`: blocks of lines at the end of a command's help.
- `jobs`: `aliquot jobs`, `describe`, `logs`, `suspend`, `resume` and `cancel`.
- `jobs_app`: the commands for jobs: their names, options and help.
- `keys`: waiting for a time or a key.
- `limits`: `aliquot limits`.
- `metrics`: `aliquot metrics`.
- `node`: `aliquot node`.
- `on_cluster`: options that the commands of a cluster share.
- `ps`: `aliquot ps`.
- `resize`: `aliquot resize`.
- `run`: `aliquot run`.
- `scheduler`: `aliquot scheduler`.
- `simulate`: `aliquot simulate` and `simulate compare`: what they print.
- `simulate_app`: `aliquot simulate`: its commands, options and help.
- `simulate_source`: the nodes and pods that `simulate` and `explain` work on.
- `simulate_ways`: `aliquot simulate ways`.
- `submit`: `aliquot submit`.
- `tables`: how output for people and for programs looks.
- `top`: `aliquot top`.
- `up`: `aliquot up`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command line; every AliquotError becomes a message and an exit code."""
    if sys.stderr is None:  # Python sets it to None if it was closed
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
