"""What is to become of a grant while its program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from aliquot.model.grant import Policy, Priority
    from aliquot.model.units import Amount


@dataclass(frozen=True, slots=True)
class Change:
    """New settings for every slice of a grant; what is None stays as it is.

    A `memory` in percent is of each slice's own GPU. `compute_percent` 0 is an equal part of what
    the others leave.
    """

    memory: Amount | None = None
    compute_percent: int | None = None
    policy: Policy | None = None
    priority: Priority | None = None

    def __post_init__(self) -> None:
        given = (self.memory, self.compute_percent, self.policy, self.priority)
        if all(one is None for one in given):
            raise InvalidValueError(
                "nothing to change was given",
                "Give at least one, for example: --memory 8GiB, --compute 30, --compute equal,"
                " --policy hard, --priority latency",
            )
