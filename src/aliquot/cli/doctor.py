"""`aliquot doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import console, new_table, print_json
from aliquot.devices import parse_shape
from aliquot.model.errors import NestedGrantError
from aliquot.slices.diagnostics import Finding, Health, diagnose
from aliquot.slices.tenant import CONTAINER_GRANT

if TYPE_CHECKING:
    from aliquot.devices import Shape

_STYLES = {Health.OK: "green", Health.WARNING: "yellow", Health.BROKEN: "bold red"}


def show_findings(simulate: str | None, *, json: bool) -> bool:
    """Print all findings; return whether nothing is broken."""
    shape = parse_shape(simulate) if simulate else None
    if shape is None and CONTAINER_GRANT.is_dir():
        raise NestedGrantError(
            "this container has a grant of its node; the node cannot be checked from here",
            "See the grant with: aliquot gpus. See the node with: kubectl get gpunodes -o yaml",
        )
    findings = list(diagnose(slices.locate(shape)))
    healthy = all(finding.health is not Health.BROKEN for finding in findings)
    if json:
        answer = {
            "simulated": None if shape is None else str(shape),
            "healthy": healthy,
            "findings": [asdict(finding) for finding in findings],
        }
        print_json(answer)
    else:
        _print(findings, shape, healthy=healthy)
    return healthy


def _print(findings: list[Finding], shape: Shape | None, *, healthy: bool) -> None:
    from rich.text import Text  # noqa: PLC0415 - imported when needed

    title = "this machine" if shape is None else f"simulated {shape}"
    table = new_table("Subject", "", "Finding", title=title)
    for finding in findings:
        detail = finding.detail if finding.fix is None else f"{finding.detail}\n→ {finding.fix}"
        health = Text(str(finding.health), style=_STYLES[finding.health])
        table.add_row(finding.subject, health, detail)
    console().print(table)
    console().print("Aliquot works here." if healthy else "Something is broken: see above.")
