"""Asks a console all that its document allows, and compares the answers with it."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from console.conftest import Console

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def ask_everything(console: Console, document: dict[str, Any]) -> set[str]:
    """The operations that were tried, each with what its description allows and forbids."""
    api = schemathesis.openapi.from_dict(document)
    api.config.update(base_url=f"{console.address}api/v1")
    tried = set[str]()
    for result in api.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        tried.add(operation.label)

        @settings(
            max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy())
        def asks(case: Any) -> None:
            case.headers = {"Authorization": f"Bearer {console.token}"}
            case.call_and_validate(checks=CHECKS)

        asks()
    return tried
