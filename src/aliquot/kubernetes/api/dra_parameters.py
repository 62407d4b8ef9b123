"""Policy and priority of a claim's slices, given as opaque parameters by it or by its class.

    config:
      - opaque:
          driver: aliquot.io
          parameters: {apiVersion: aliquot.io/v1alpha1, kind: SliceParameters, priority: background}

The authors of claims write them: they are checked here, and nowhere else. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.api.names import GROUP, VERSION
from aliquot.model import Policy, Priority
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.dra import AllocationConfig

KIND = "SliceParameters"
LONGEST = 10_000  # bytes, as the API server has it
DEEPEST = 16

_HINT = (
    f"Write apiVersion: {GROUP}/{VERSION}, kind: {KIND}, and of these what you want: policy"
    f" ({', '.join(Policy)}), priority ({', '.join(Priority)})."
)


class InvalidClaimError(AliquotError):
    """What a claim asks for cannot be given; `reason` is that of its event."""

    def __init__(self, message: str, hint: str | None = None, *, reason: str = "InvalidClaim"):
        super().__init__(message, hint)
        self.reason = reason


class Parameters(msgspec.Struct, frozen=True):
    """The settings that hold for the slices of a request; None: nothing says it."""

    policy: Policy | None = None
    priority: Priority | None = None

    def over(self, before: Parameters) -> Parameters:
        """These, and where they say nothing those before."""
        return Parameters(self.policy or before.policy, self.priority or before.priority)


class _Written(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: Literal["aliquot.io/v1alpha1"]
    kind: Literal["SliceParameters"]
    policy: Policy | None = None
    priority: Priority | None = None


def parameters_of(request: str, config: Iterable[AllocationConfig]) -> Parameters:
    """The parameters of a request; later ones come over earlier ones: a claim's over its class's.

    A request that is one of several alternatives is called MAIN/ALTERNATIVE.
    """
    found = Parameters()
    for one in config:
        if one.opaque is None or one.opaque.driver != DRIVER:
            continue
        if one.requests and not {request, request.partition("/")[0]} & set(one.requests):
            continue
        found = _checked(bytes(one.opaque.parameters)).over(found)
    return found


def _checked(text: bytes) -> Parameters:
    if len(text) > LONGEST or _depth(text) > DEEPEST:
        raise InvalidClaimError("the parameters are too long or nested too deep", _HINT)
    try:
        written = msgspec.json.decode(text, type=_Written)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidClaimError(f"the parameters are invalid: {error}", _HINT) from error
    return Parameters(written.policy, written.priority)


def _depth(text: bytes) -> int:
    """How deep a text is nested at most, brackets in strings included."""
    depth = most = 0
    for byte in text:
        if byte in b"[{":
            depth += 1
            most = max(most, depth)
        elif byte in b"]}":
            depth -= 1
    return most
