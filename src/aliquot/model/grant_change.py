"""A requested change of a running grant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from aliquot.model.grant import Policy, Priority
    from aliquot.model.units import Amount


@dataclass(frozen=True, slots=True)
class GrantChange:
    """New settings for every slice of a grant; a setting that is None does not change.

    `memory` in percent refers to each slice's own GPU. `compute_percent` 0 means an equal part of
    what the other slices leave.
    """

    memory: Amount | None = None
    compute_percent: int | None = None
    policy: Policy | None = None
    priority: Priority | None = None

    def __post_init__(self) -> None:
        given = (self.memory, self.compute_percent, self.policy, self.priority)
        if all(one is None for one in given):
            raise InvalidValueError(
                "no setting to change was given",
                "Give at least one, for example: --memory 8GiB, --compute 30, --compute equal,"
                " --policy hard, --priority latency",
            )
