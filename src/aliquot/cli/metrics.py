"""`aliquot metrics`."""

from __future__ import annotations

import sys

from aliquot import slices
from aliquot.cli.tables import print_text
from aliquot.devices import parse_shape
from aliquot.slices import control
from aliquot.slices.metrics import exposition


def show_metrics(simulate: str | None) -> None:
    """Print what the arbiter of this machine, or of a simulated one, knows as Prometheus text."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    slices.revive(state)
    try:
        seen = control.status(state.directory)
    except control.NoArbiterError:
        seen = None
    print_text(exposition(seen))
    if seen is None and simulate is None:
        _point_to_simulated()


def _point_to_simulated() -> None:
    """Where only simulated machines run, one of them may be what was meant."""
    shapes = sorted(str(one.state.shape) for one in slices.machines() if one.state.shape)
    if shapes:
        ways = " or ".join(f"--simulate {shape}" for shape in shapes)
        sys.stderr.write(f"aliquot: only simulated machines run here: add {ways}\n")
