"""`aliquot metrics`."""

from __future__ import annotations

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
