"""PodDisruptionBudgets, as far as evictions depend on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.objects import Expression, Meta, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping


class LabelSelector(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Selects objects by their labels; without any condition, all of them."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            one.holds(labels) for one in self.match_expressions
        )


class BudgetSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The pods of a budget; without a selector, none."""

    selector: LabelSelector | None = None


class BudgetStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How many pods of a budget may be evicted now."""

    disruptions_allowed: int = 0


class PodDisruptionBudget(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A budget."""

    metadata: Meta = Meta()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


BUDGETS = Resource(PodDisruptionBudget, "policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
