"""What workers' reports say about a job: its progress, and what a restart costs it.

A job that restarts at an earlier step than it last reported repeats that work. The longest such
repetition, in seconds at the job's speed, estimates how long the job goes without saving. The job
is given more workers, or resized for the speed of others, only `TOLERABLE` times that long after
its last resize, so that growing costs it at most a tenth of its time. It still shrinks for waiting
work like every other job. A program that reports nothing has no such pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLERABLE = 10.0
REPORTED = ("step", "samples_per_second", "at")

Progress = dict[str, float | int | None]


def updated_progress(
    before: Mapping[str, Any], report: Mapping[str, Any], generation: int
) -> Progress:
    """The progress after a report by workers of that generation."""
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


def pause_after_resize(progress: Mapping[str, Any]) -> float:
    """How many seconds a job should not grow after a resize."""
    return TOLERABLE * float(progress.get("lost_seconds") or 0.0)
