"""Grants on one machine: making, running in, watching, resizing and freezing them.

- `arbiter_process`: starting the arbiter of a state directory, or becoming it.
- `arbiter_status`: what an arbiter says of itself in its reply to `status`.
- `bounded_command`: running a command that may hang or never stop writing.
- `checkpoint`: freezing and thawing the processes of a grant, by the driver's checkpoint API.
- `contexts`: how much of a GPU one CUDA context takes.
- `control`: the client of the arbiter's control socket.
- `diagnostics`: the checks behind `aliquot doctor`.
- `gate_support`: whether compute shares work on a GPU.
- `gpu_choice`: which GPUs of this machine satisfy a request, and what is free on each.
- `grant_creation`: choosing GPUs and making a grant on them.
- `grant_facts`: what a grant does, its command, and what needs attention, for people.
- `grant_kill`: ending the programs of a grant.
- `grant_resize`: changing a grant while its programs run.
- `instance_plan`: which instance of a GPU answers a request, and which are destroyed.
- `instances`: making, adopting and destroying instances of GPUs (MIG).
- `library`: the folder of stand-in libraries that a tenant's linker finds first.
- `machines`: all arbiters that run here, and the grants that they have.
- `moving`: freezing and thawing swappable grants, whose programs move their memory themselves.
- `mps`: joining an MPS server, and ending a client of one.
- `mps_control`: commands to NVIDIA's control daemon of MPS servers.
- `mps_simulated`: the control daemon of a simulated machine.
- `mps_state`: what happens to an MPS server next: a pure decision.
- `mps_watcher`: the process that starts, watches and ends an MPS server.
- `named_gpus`: the GPUs that --gpu and --not-gpu name.
- `procfs`: state, start, command and free memory of a process, from /proc and its cgroups.
- `prometheus`: an arbiter's status as Prometheus text.
- `rates`: what happened between two statuses of an arbiter.
- `share_problems`: slices whose compute share does not hold.
- `silence`: telling a person that a command waits for an arbiter or a pool that does not answer.
- `stand_in_symbols`: making a stand-in export exactly the symbols of a driver.
- `state_directory`: where the files of an arbiter are.
- `tenant`: the environment of a program in a grant, and the exec into it.
- `turn_room`: what a new slice can have of a GPU in turns with others.
- `user_limits`: what each user of an arbiter may have and has.
- `visible_devices`: the GPUs that CUDA_VISIBLE_DEVICES names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot import lazy

if TYPE_CHECKING:
    from aliquot.slices.arbiter_process import revive, serve
    from aliquot.slices.grant_creation import (
        NewGrant,
        OpenGrant,
        Preview,
        check_machine,
        preview_grant,
    )
    from aliquot.slices.library import prepare_library
    from aliquot.slices.machines import (
        LocalMachine,
        SilentMachine,
        Survey,
        check_address,
        find_grant,
        local_machines,
        shown_name,
        survey,
    )
    from aliquot.slices.state_directory import StateDirectory, locate, prepare
    from aliquot.slices.tenant import exec_program, find_command, refuse_nested, tenant_environment

__all__ = [
    "LocalMachine",
    "NewGrant",
    "OpenGrant",
    "Preview",
    "SilentMachine",
    "StateDirectory",
    "Survey",
    "check_address",
    "check_machine",
    "exec_program",
    "find_command",
    "find_grant",
    "local_machines",
    "locate",
    "prepare",
    "prepare_library",
    "preview_grant",
    "refuse_nested",
    "revive",
    "serve",
    "shown_name",
    "survey",
    "tenant_environment",
]

__getattr__ = lazy.names_of(
    __name__,
    {
        "arbiter_process": "revive serve",
        "grant_creation": "NewGrant OpenGrant Preview check_machine preview_grant",
        "library": "prepare_library",
        "machines": "LocalMachine SilentMachine Survey check_address find_grant local_machines "
        "shown_name survey",
        "state_directory": "StateDirectory locate prepare",
        "tenant": "exec_program find_command refuse_nested tenant_environment",
    },
)
