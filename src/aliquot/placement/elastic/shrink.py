"""Which jobs shrink for a waiting one, and by how much.

Jobs shrink step by step. If single steps are enough, the one with the least loss is taken; if none
is, the one with the least loss for each GPU, and so on. Steps that turn out not to be needed are
undone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from aliquot.placement.elastic.sizes import TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.placement.elastic.job import Elastic, WorkerKind
    from aliquot.placement.elastic.sizes import JobSizes

SINGLE_STEPS = 8  # taken one by one, each after a check that it is not enough yet


@dataclass(frozen=True, slots=True)
class _Step:
    """A job shrunk by one step: what that costs it, in all and for each GPU."""

    job: Elastic
    size: int
    given: int
    loss: float
    loss_of_each: float


@dataclass(frozen=True, slots=True)
class Shrink:
    """Jobs that can shrink, as far as their queues have to give."""

    holds: Callable[[JobSizes], bool]
    jobs: Sequence[Elastic]

    def until_fits(self, trial: JobSizes, job: Elastic) -> JobSizes | None:
        """The sizes with others shrunk until all fit, none more than needed; None if that fails."""
        if not self.holds(self._all_given(trial, job)):
            return None
        before, refusals = trial, 0
        while not self.holds(trial):
            steps = self._steps(trial, job)
            if not steps:
                return None
            enough, was_asked = self._enough(trial, steps)
            if enough is not None:
                trial = enough
                break
            refusals += was_asked
            leap = 1 << max(0, refusals - SINGLE_STEPS)
            for smaller in islice(self._downwards(trial, job, steps), leap):
                trial = smaller
        return self._given_back(trial, before)

    def _all_given(self, trial: JobSizes, job: Elastic) -> JobSizes:
        """These sizes with every job that has to give at its smallest size."""
        willing = self._ranks(trial, job)
        return trial.with_all(
            {
                one.name: min(trial.sizes[one.name], one.sizes.least)
                for one in self.jobs
                if willing[one.queue] is not None
            }
        )

    def _ranks(self, trial: JobSizes, job: Elastic) -> dict[str, int | None]:
        queues = {one.queue for one in self.jobs}
        return {queue: trial.reluctance(queue, job.queue) for queue in queues}

    def _steps(self, trial: JobSizes, job: Elastic) -> list[_Step]:
        """One step for each job that can shrink and whose queue has to give.

        Only jobs of the queues with the lowest `reluctance`: those queues give first.
        """
        ranks, scales = self._ranks(trial, job), trial.scales
        found: dict[int, list[_Step]] = {}
        for one in self.jobs:
            has, rank = trial.sizes[one.name], ranks[one.queue]
            if rank is None or (size := one.sizes.below(has)) is None:
                continue
            loss = scales.value(one, has) - scales.value(one, size)
            given = scales.milli_between(one, size, has)
            found.setdefault(rank, []).append(_Step(one, size, given, loss, loss / max(1, given)))
        return found[min(found)] if found else []

    def _downwards(self, trial: JobSizes, job: Elastic, steps: list[_Step]) -> Iterator[JobSizes]:
        """Step after step, each the one that loses least for each GPU."""
        while steps:
            step = min(steps, key=lambda one: one.loss_of_each)
            trial = trial.changed(step.job, step.size)
            yield trial
            steps = self._steps(trial, job)

    def _enough(self, trial: JobSizes, steps: list[_Step]) -> tuple[JobSizes | None, bool]:
        """The step that is enough with the least loss; and whether any was checked."""
        refused: Counter[tuple[WorkerKind, int]] = Counter()
        for step in sorted(steps, key=lambda one: one.loss):
            kind = step.job.kind, trial.sizes[step.job.name] - step.size
            if trial.free + step.given < 0 or refused[kind] >= TRIES:
                continue
            smaller = trial.changed(step.job, step.size)
            if self.holds(smaller):
                return smaller, True
            refused[kind] += 1
        return None, bool(refused)

    def _given_back(self, trial: JobSizes, before: JobSizes) -> JobSizes:
        """The sizes with all back at what they had before, as far as that fits."""
        for name, had in before.sizes.items():
            job = trial.scales.jobs[name]
            for size in job.sizes.allowed if trial.sizes[name] < had else ():
                if trial.sizes[name] < size <= had:
                    larger = trial.changed(job, size)
                    if not self.holds(larger):
                        break
                    trial = larger
        return trial
