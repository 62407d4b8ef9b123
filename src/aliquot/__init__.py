"""Aliquot gives programs exact parts of GPUs.

People use the command `aliquot`, and programs the names of `__all__` (docs/python.md). Importing
this module imports none of them until one is used, so that `aliquot.worker` needs only this file
and its own. Each package imports only from packages below it (docs/architecture.md).

- `api`: what `import aliquot` gives a program: slices, jobs, GPUs and grants.
- `cli`: the commands.
- `console`: the web page of one machine, and its REST API.
- `containers`: what a container with a grant gets, and slices by name for plain containers.
- `devices`: what this machine has: GPUs, driver, health.
- `jupyter`: the magic `%aliquot`, which restarts a notebook's kernel in a slice.
- `kubernetes`: Aliquot on a cluster: scheduler, controller of jobs, and the agent on each node.
- `lazy`: packages whose names are imported when they are used first.
- `model`: the values that all packages share, and the state machine of a job.
- `placement`: which GPUs a request or a gang gets and when, and how large elastic jobs are.
- `pool`: one machine as a pool with a queue of jobs.
- `remote`: GPUs of another process, for PyTorch programs.
- `simulate`: replay of traces through placement.
- `slices`: make, watch and resize slices on this machine.
- `worker`: what a job's program may import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aliquot.api import GpuInfo, GrantedSlice, gpus, grants, job, jobs, slice, submit  # noqa: A004
    from aliquot.api import PoolJob as Job
    from aliquot.jupyter import load_ipython_extension
    from aliquot.model.errors import AliquotError
    from aliquot.model.grant import Grant
    from aliquot.model.job import JobPhase

__version__ = "0.1.0"

__all__ = [
    "AliquotError",
    "GpuInfo",
    "Grant",
    "GrantedSlice",
    "Job",
    "JobPhase",
    "gpus",
    "grants",
    "job",
    "jobs",
    "load_ipython_extension",
    "slice",
    "submit",
]

# Where each of them is, by its name there.
_PLACES = {
    **{name: ("aliquot.api", name) for name in __all__},
    "AliquotError": ("aliquot.model.errors", "AliquotError"),
    "Grant": ("aliquot.model.grant", "Grant"),
    "Job": ("aliquot.api", "PoolJob"),
    "JobPhase": ("aliquot.model.job", "JobPhase"),
    "load_ipython_extension": ("aliquot.jupyter", "load_ipython_extension"),
}


def __getattr__(name: str) -> object:
    try:
        module, inner = _PLACES[name]
    except KeyError:
        raise AttributeError(f"module 'aliquot' has no attribute {name!r}") from None
    from importlib import import_module  # noqa: PLC0415 - `import aliquot` costs nothing

    return getattr(import_module(module), inner)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
