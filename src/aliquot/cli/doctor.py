"""`aliquot doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import (
    clean,
    print_json,
    print_sentence,
    print_text,
    styled,
    terminal_width,
    text_width,
    wrapped,
)
from aliquot.devices import parse_shape
from aliquot.model.errors import NestedGrantError
from aliquot.slices.diagnostics import Finding, Health, diagnose
from aliquot.slices.tenant import CONTAINER_GRANT

if TYPE_CHECKING:
    from aliquot.devices import Shape

_STYLES = {Health.OK: "32", Health.WARNING: "33", Health.BROKEN: "1;31"}
_LEAST = 20  # columns for a finding, on a terminal however narrow


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
    """One line for each finding and its fix; on a terminal they go on below their beginning."""
    title = "this machine" if shape is None else f"simulated {shape}"
    width = terminal_width()
    subjects = max((text_width(one.subject) for one in findings), default=0)
    states = max((len(str(one.health)) for one in findings), default=0)
    indent = " " * (subjects + states + 4)
    print_text(f"{styled(title, '1')}\n")
    for one in findings:
        health = styled(f"{one.health!s:<{states}}", _STYLES[one.health])
        subject = one.subject + " " * (subjects - text_width(one.subject))
        parts = [clean(one.detail), *([] if one.fix is None else [f"→ {clean(one.fix)}"])]
        if width is not None:
            room = max(_LEAST, width - len(indent))
            parts = [line for part in parts for line in wrapped(part, room, whole_words=True)]
        first, *more = parts if width is not None else [" ".join(parts)]
        print_text(f"{subject}  {health}  {first}\n")
        print_text("".join(f"{indent}{line}\n" for line in more))
    print_sentence("Aliquot works here." if healthy else "Something is broken: see above.")
