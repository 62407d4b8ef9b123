"""`aliquot metrics`."""

from __future__ import annotations

import sys

from aliquot import slices
from aliquot.cli.tables import print_text
from aliquot.devices import parse_shape
from aliquot.slices import control
from aliquot.slices.prometheus import exposition


def show_metrics(simulate: str | None) -> None:
    """Print the status of an arbiter, of this machine or a simulated one, as Prometheus text."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    slices.revive(state)
    try:
        status = control.status(state.directory)
    except control.NoArbiterError:
        status = None
    print_text(exposition(status))
    if status is None and simulate is None:
        _point_to_simulated()


def _point_to_simulated() -> None:
    """Tell the user if only simulated machines run: one of them may be meant."""
    shapes = sorted(str(one.state.shape) for one in slices.local_machines() if one.state.shape)
    if shapes:
        ways = " or ".join(f"--simulate {shape}" for shape in shapes)
        sys.stderr.write(f"aliquot: only simulated machines run here: add {ways}\n")
