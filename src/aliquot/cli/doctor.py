"""`aliquot doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import console, new_table, print_json
from aliquot.devices import parse_shape
from aliquot.model.errors import NestedGrantError
from aliquot.slices.examine import Finding, Health
from aliquot.slices.examine import examine as find
from aliquot.slices.run import SHOWN_GRANT

if TYPE_CHECKING:
    from aliquot.devices import Shape

_STYLES = {Health.OK: "green", Health.WARNING: "yellow", Health.BROKEN: "bold red"}


def examine(simulate: str | None, *, json: bool) -> bool:
    """Print what was found; whether nothing is broken."""
    shape = parse_shape(simulate) if simulate else None
    if shape is None and SHOWN_GRANT.is_dir():
        raise NestedGrantError(
            "this is a container with a grant of its node, which is not examined from here",
            "See what it has with: aliquot gpus, and its node with: kubectl get gpunodes -o yaml",
        )
    findings = list(find(slices.locate(shape)))
    well = all(finding.health is not Health.BROKEN for finding in findings)
    if json:
        answer = {
            "simulated": None if shape is None else str(shape),
            "well": well,
            "findings": [asdict(finding) for finding in findings],
        }
        print_json(answer)
    else:
        _print(findings, shape, well=well)
    return well


def _print(findings: list[Finding], shape: Shape | None, *, well: bool) -> None:
    from rich.text import Text  # noqa: PLC0415 - imported when needed

    title = "this machine" if shape is None else f"simulated {shape}"
    table = new_table("Subject", "", "What was found", title=title)
    for finding in findings:
        detail = finding.detail if finding.mend is None else f"{finding.detail}\n→ {finding.mend}"
        health = Text(str(finding.health), style=_STYLES[finding.health])
        table.add_row(finding.subject, health, detail)
    console().print(table)
    console().print("Aliquot works here." if well else "Something is broken: see above.")
