"""`aliquot arbiter`."""

from __future__ import annotations

from aliquot import slices
from aliquot.devices import check_version, parse_shape


def serve(simulate: str | None) -> None:
    """Become the arbiter of this machine, or of a simulated one."""
    state = slices.locate(parse_shape(simulate) if simulate else None)
    driver = state.driver()
    if state.shape is None:
        check_version(driver)
    slices.prepare(state)
    slices.serve(state.directory, driver)
