"""Grants on one machine: making, running in, watching, resizing and freezing them.

- `arbiter_process`: starting the arbiter of a state directory, or becoming it.
- `checkpoint`: freezing and thawing the processes of a grant, by the driver's checkpoint API.
- `control`: the client of the arbiter's control socket.
- `diagnostics`: the checks behind `aliquot doctor`.
- `gate_support`: whether compute shares work on a GPU.
- `gpu_choice`: which GPUs of this machine satisfy a request, and what is free on each.
- `grant_creation`: choosing GPUs and making a grant on them.
- `grant_resize`: changing a grant while its programs run.
- `library`: the folder of stand-in libraries that a tenant's linker finds first.
- `machines`: all arbiters that run here, and the grants that they have.
- `procfs`: state and free memory of a process, from /proc and its cgroups.
- `prometheus`: an arbiter's status as Prometheus text.
- `rates`: what happened between two statuses of an arbiter.
- `share_problems`: slices whose compute share does not hold.
- `stand_in_symbols`: making a stand-in export exactly the symbols of a driver.
- `state_directory`: where the files of an arbiter are.
- `tenant`: the environment of a program in a grant, and the exec into it.
- `user_limits`: what each user of an arbiter may have and has.
- `visible_devices`: the GPUs that CUDA_VISIBLE_DEVICES names.
"""

from aliquot.slices.arbiter_process import revive, running, serve
from aliquot.slices.grant_creation import NewGrant, make_grant
from aliquot.slices.library import prepare_library
from aliquot.slices.machines import LocalMachine, check_address, find_grant, machines
from aliquot.slices.state_directory import StateDirectory, locate, prepare
from aliquot.slices.tenant import exec_program, find_command, refuse_nested, tenant_environment

__all__ = [
    "LocalMachine",
    "NewGrant",
    "StateDirectory",
    "check_address",
    "exec_program",
    "find_command",
    "find_grant",
    "locate",
    "machines",
    "make_grant",
    "prepare",
    "prepare_library",
    "refuse_nested",
    "revive",
    "running",
    "serve",
    "tenant_environment",
]
