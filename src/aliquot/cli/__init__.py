"""The `aliquot` command.

Importing this package is cheap. Each command imports what it needs when it runs.

- `app`: the commands of one machine: their names, options and help.
- `arbiter`: `aliquot arbiter`.
- `completion`: `aliquot completion`: scripts for shells.
- `console`: `aliquot console`.
- `console_child`: the console beside `aliquot up`.
- `containers`: `aliquot slice`: what its commands do and print.
- `controller`: `aliquot controller`.
- `doctor`: `aliquot doctor`.
- `explain`: `aliquot explain --nodes`, for a simulated cluster.
- `explain_machine`: `aliquot explain` for this machine.
- `gang`: `aliquot describe gang/NAME`.
- `gpus`: `aliquot gpus`.
- `help_text`: blocks of lines at the end of a command's help.
- `install`: `aliquot install` and `uninstall`.
- `job_logs`: printing the output of jobs: merged, followed, with times.
- `jobs`: `aliquot jobs`, `describe`, `suspend`, `resume`, `cancel`, `update` and `prune`.
- `jobs_app`: the commands for jobs: their names, options and help.
- `keys`: waiting for a time or a key.
- `kill`: `aliquot kill`.
- `limits`: `aliquot limits`.
- `metrics`: `aliquot metrics`.
- `names`: names of grants and jobs for shell completion.
- `node`: `aliquot node`.
- `on_cluster`: options that the commands of a cluster share.
- `optional_wait`: the option `--wait`, whose value may be left out.
- `options`: options that the commands of one machine share.
- `ps`: `aliquot ps`.
- `remote`: `aliquot remote serve`, and `aliquot run --remote`.
- `remote_app`: `aliquot remote`: its options and help.
- `resize`: `aliquot resize`.
- `run`: `aliquot run`.
- `run_wait`: how `aliquot run --wait` shows its place in the queue.
- `scheduler`: `aliquot scheduler`.
- `screen`: a terminal that a command fills until a key ends it.
- `simulate`: `aliquot simulate` and `simulate compare`: what they print.
- `simulate_app`: `aliquot simulate`: its commands, options and help.
- `simulate_source`: the nodes and pods that `simulate` and `explain` work on.
- `simulate_overcommit`: `aliquot simulate overcommit`.
- `simulate_ways`: `aliquot simulate ways`.
- `slice_app`: `aliquot slice`: its commands, options and help.
- `start`: makes typer build one command, and convert no value that needs no converter.
- `submit`: `aliquot submit`, `resubmit` and `logs`.
- `suspend_command`: `suspend` and `resume` of commands of `aliquot run`.
- `tables`: how output for people and for programs looks.
- `top`: `aliquot top`.
- `up`: `aliquot up` and `aliquot down`.
- `usage`: errors about a command line.
- `wait`: `aliquot wait`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Run the command line; every AliquotError becomes a message and an exit code."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # Ctrl-C while modules load is no defect
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.stderr is None:  # Python sets it to None if it was closed
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end
    from aliquot.cli import names  # noqa: PLC0415 - `import aliquot.cli` costs nothing

    if sys.argv[1:2] == [names.COMMAND]:
        names.print_names(*sys.argv[2:3] or [""])
        return
    try:
        from aliquot.cli.app import run_app  # noqa: PLC0415 - `import aliquot.cli` costs nothing

        signal.signal(signal.SIGINT, interrupt)
        run_app()
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write(
            f"aliquot: {error.name} is not installed\n"
            f"  Install it with: {sys.executable} -m pip install {error.name}\n"
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)  # a shell's exit code after Ctrl-C
