"""Which grants are idle by the rules of their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.model import Grant
    from aliquot.model.idle import IdleRule


def idle_together(grants: Collection[Grant]) -> float | None:
    """For how long none of these grants has been used; None if that is not known."""
    found = [seconds for one in grants if (seconds := one.idle_seconds) is not None]
    return min(found) if found and len(found) == len(grants) else None


def idle_names(granted: Iterable[tuple[Grant, str]], rules: Mapping[str, IdleRule]) -> set[str]:
    """The names of the grants that are idle by the rule of their queue; each with its queue."""
    return {
        grant.name
        for grant, queue in granted
        if (rule := rules.get(queue)) is not None
        and (seconds := grant.idle_seconds) is not None
        and seconds >= rule.after_seconds
    }
