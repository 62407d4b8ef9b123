"""What the reports of workers tell of a job: how far it is, and what a restart costs it.

A job that goes on at an earlier step than it had reported does that work again. The most that this
has ever been, in seconds at the speed it had, says how long it goes without saving; such a job is
given more workers, or changed for the sake of others' speed, only `BEARABLE` times so long after
its last resize. So growing costs at most a tenth of its time. To those that wait it gives as every
other does. Of a program that reports nothing nothing is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

BEARABLE = 10.0
REPORTED = ("step", "samples_per_second", "at")

Progress = dict[str, float | int | None]


def noted(before: Mapping[str, Any], report: Mapping[str, Any], generation: int) -> Progress:
    """What is known after a report by workers of that generation."""
    after: Progress = {**before, **{key: report.get(key) for key in REPORTED}}
    step, at = after["step"], after["at"]
    if not isinstance(step, int | float) or not isinstance(at, int | float):
        return after
    if before.get("generation") != generation:
        back = max(0, (before.get("step") or 0) - step)
        lost = back * (before.get("step_seconds") or 0.0)
        most = max(lost, before.get("lost_seconds") or 0.0)
        first: Progress = {"generation": generation, "first_step": step, "first_at": at}
        return {**after, **first, "lost_seconds": most}
    steps, seconds = step - before["first_step"], at - before["first_at"]
    return {**after, "step_seconds": seconds / steps} if steps > 0 else after


def rest_seconds(progress: Mapping[str, Any]) -> float:
    """How long a job should be left as it is after a resize, for its own sake."""
    return BEARABLE * float(progress.get("lost_seconds") or 0.0)
