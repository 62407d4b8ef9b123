"""Make, watch and resize grants on this machine."""

from aliquot.slices.arbiter import revive, running, serve
from aliquot.slices.grants import Made, make_grant
from aliquot.slices.library import prepare_library
from aliquot.slices.machines import Machine, find_grant, machines
from aliquot.slices.run import become, find_command, refuse_nested, tenant_environment
from aliquot.slices.state import State, locate, prepare

__all__ = [
    "Machine",
    "Made",
    "State",
    "become",
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
