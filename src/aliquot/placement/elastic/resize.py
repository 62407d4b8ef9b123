"""How many workers each job should have: which jobs start, grow and shrink.

Each job has a list of sizes it can run with. What it has above the smallest is lent: it gets it
while no other job waits, and gives it back when one does. Four steps over one snapshot:

1. *Admit.* Waiting jobs are taken in fair-share order (`queues.quota`), each at its smallest size.
   If one does not fit, running jobs shrink step by step, always the one that loses least; nothing
   shrinks that does not help. A queue within its quota gives only to itself. In a tree this is
   decided, as in `preempt`, between the two queues where the paths of both sides part; below the
   one that has to give, those that borrow there give first.
2. *Exchange.* A job may give a step to another, or several, if both together are better off by more
   than `exchange_gain`; what is within a quota is not exchanged either.
3. *Grow.* Free GPUs go to the jobs that gain most by them.
4. *Wait and see.* A running job grows only if it could have for `settle_seconds`, and by at least
   `least_gain` of its speed.

No step makes a queue, or any that counts what it uses (`quota.Tree.counting`), pass its limit.

Checking whether sizes fit is what takes time. So the check is asked only if the answer may change
something, in the order in which a yes ends the search, and never about sizes that take more than is
free (`CountsFree`). If GPUs are merely counted, the decision is as if everything was asked. If it
matters which job has which GPU, some of the jobs that could give or grow are not tried after others
of the same kind were refused, and many steps may be taken at once (`shrink`); steps that were not
needed are undone. So a job may keep its size although it could have more. No job gets what does not
fit.

What a job loses and gains is measured in one number, the logarithm of its speed by the weight of
its queue (shared by the queue's jobs; a parent's by those below it that have jobs): a step counts
by how much it speeds up that job, so the sum is largest where each has its fair part and none has
GPUs it cannot use. Speeds are those that workers reported, and between two of them on the curve
through both; beyond them, and where there are none, n workers are taken to be n ** `EFFICIENCY` as
fast as one. Programs may report what they like: what is not `plausible` does not count, and twice
the workers are never taken to be more than twice as fast.

No job is resized twice within `resize_seconds`, so a job is resized at most 3600 / `resize_seconds`
times an hour, and a waiting job waits at most that long for another to shrink. An exchange raises
the sum, so two jobs cannot take the same GPUs from each other again and again. A job that repeats
work after each resize has `rest_seconds`: for that time after a resize it neither grows nor takes
part in exchanges, but it still shrinks for waiting jobs. A job that has waited for longer than
`patience_seconds` is not overtaken any more by jobs that may use only GPUs that it may use too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.placement.elastic.grow import Grow
from aliquot.placement.elastic.job import CountsFree
from aliquot.placement.elastic.shrink import Shrink
from aliquot.placement.elastic.sizes import JobSizes, Scales
from aliquot.placement.queues.quota import fair_share_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.elastic.job import Elastic, Fits, WorkerKind
    from aliquot.placement.queues.quota import Queue

DOES_NOT_FIT = "it does not fit beside what runs"
NOT_OVERTAKEN = "has waited longer, and is not overtaken"


@dataclass(frozen=True, slots=True)
class Rules:
    """How eagerly sizes are changed."""

    resize_seconds: float = 300.0
    settle_seconds: float = 300.0
    least_gain: float = 0.05
    exchange_gain: float = 0.1
    patience_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class SizeDecision:
    """What to do, in this order: `resizes`, then `starts` as soon as they fit.

    `could` is to be given to the next decision: since when, and to what size, jobs could grow.
    `waits` says why jobs wait, in the order of their turns, and `until` when those that `waits`
    names may be resized again.
    """

    resizes: dict[str, tuple[int, str]]
    starts: dict[str, int]
    waits: dict[str, str]
    could: dict[str, tuple[float, int]]
    until: dict[str, float] = field(default_factory=dict)


def decide(  # noqa: PLR0913, PLR0917 - the whole snapshot
    jobs: Sequence[Elastic],
    feasibility: Fits,
    queues: Mapping[str, Queue],
    hardware: Hardware,
    now: float,
    rules: Rules,
    could: Mapping[str, tuple[float, int]],
) -> SizeDecision:
    """Decide over one snapshot."""
    return _Decider(jobs, feasibility, queues, hardware, now, rules).decide(could)


class _Decider:
    def __init__(  # noqa: PLR0913, PLR0917 - the whole snapshot
        self,
        jobs: Sequence[Elastic],
        feasibility: Fits,
        queues: Mapping[str, Queue],
        hardware: Hardware,
        now: float,
        rules: Rules,
    ) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.feasibility, self.queues, self.hardware = feasibility, queues, hardware
        self.now, self.rules = now, rules
        self.scales = Scales(self.jobs, queues, hardware)
        self.standing = JobSizes.of(self.scales, {job.name: job.size for job in jobs if job.size})
        self.scales.weigh(self.standing.sizes)
        if isinstance(feasibility, CountsFree):
            free = feasibility.free_milli(self.standing.sizes)
            self.scales.most_milli = self.standing.milli + free
        self.waits: dict[str, str] = {}
        self.until: dict[str, float] = {}
        self.why: dict[str, str] = {}
        self.may_grow = True  # nobody waits for what growing would take

    def decide(self, could: Mapping[str, tuple[float, int]]) -> SizeDecision:
        self._admit()
        self._exchange()
        possible = self._grow() if self.may_grow else {}
        growing, could = self._wait_and_see(possible, could)
        sizes = self.standing.sizes
        resizes = {
            job.name: (size, self.why.get(job.name, "for a job that waits"))
            for job in self.jobs.values()
            if job.size and (size := sizes[job.name]) != job.size
        }
        resizes |= {name: (size, "GPUs are free") for name, size in growing.items()}
        starts = {name: size for name, size in sizes.items() if not self.jobs[name].size}
        return SizeDecision(resizes, starts, self.waits, could, self.until)

    # --- 1 ---

    def _admit(self) -> None:
        waiting = [job.gang(job.sizes.least) for job in self.jobs.values() if not job.size]
        order, refused = fair_share_order(waiting, self.queues, self.standing.used(), self.hardware)
        blockers: dict[frozenset[str] | None, Elastic] = {}  # by the GPUs that they may use
        reasons: dict[tuple[WorkerKind, int, str], str] = {}  # why not, until a job is admitted
        until: dict[tuple[WorkerKind, int, str], float] = {}
        for gang in order:
            job = self.jobs[gang.name]
            asked = job.kind, job.sizes.least, job.queue
            blocker = next((one for one in blockers.values() if one.holds_up(job)), None)
            if blocker is not None:
                self.waits[job.name] = f"{blocker.name} {NOT_OVERTAKEN}"
                continue
            found = self._with(job) if job.bound or asked not in reasons else None
            if found is not None:
                self.standing = found
                self.scales.weigh(found.sizes)
                reasons.clear()
                until.clear()
                continue
            if job.bound:
                self.waits[job.name] = "the GPUs it was suspended on are not free"
                continue
            if asked not in reasons:
                reasons[asked], allowed = self._why_not(job)
                until.update({} if allowed is None else {asked: allowed})
            self.waits[job.name] = reasons[asked]
            if asked in until:
                self.until[job.name] = until[asked]
            if self.now - job.submitted >= self.rules.patience_seconds:
                blockers.setdefault(job.gpus, job)
        self.waits.update(refused)

    def _with(self, job: Elastic) -> JobSizes | None:
        """The sizes with this job at its smallest and others shrunk if needed; None: it cannot."""
        trial = self.standing.changed(job, job.sizes.least)
        if self._holds(trial):
            return trial
        return Shrink(self._holds, self._movable(self.rules.resize_seconds)).until_fits(trial, job)

    def _why_not(self, job: Elastic) -> tuple[str, float | None]:
        """Why it does not fit, and when others may be resized for it.

        It also decides whether what is free should stay so.
        """
        running = [one for one in self.jobs.values() if self.standing.sizes.get(one.name)]
        trial = self.standing.changed(job, job.sizes.least)
        found = Shrink(self._holds, running).until_fits(trial, job)
        if found is None:
            return DOES_NOT_FIT, None
        self.may_grow = False
        names = sorted(name for name, size in found.sizes.items() if size < trial.sizes[name])
        until = max(self.jobs[name].resized_at for name in names) + self.rules.resize_seconds
        return f"{' and '.join(names)} cannot be made smaller again so soon", until

    # --- 2 ---

    def _exchange(self) -> None:
        from aliquot.placement.elastic.exchange import Exchange  # noqa: PLC0415 - numpy only to decide

        before, gained = self.standing, 0.0
        exchange = Exchange(self.scales, self._holds, self._movable(), before)
        while (best := exchange.best()) is not None:
            gained += best[0]
            self.standing = best[1]
            exchange.go_on(self.standing)
        if gained < self.rules.exchange_gain:
            self.standing = before
            return
        for name, size in self.standing.sizes.items():
            if size != before.sizes[name]:
                self.why.setdefault(name, "for fair shares")

    # --- 3 and 4 ---

    def _grow(self) -> dict[str, int]:
        """Give away what is left: new jobs have it at once, running ones only could."""
        found = Grow(self.scales, self._holds, self._movable()).most(self.standing).sizes
        new = {name: size for name, size in found.items() if not self.jobs[name].size}
        self.standing = self.standing.with_all(new)
        return {name: size for name, size in found.items() if name not in new}

    def _wait_and_see(
        self, possible: Mapping[str, int], could: Mapping[str, tuple[float, int]]
    ) -> tuple[dict[str, int], dict[str, tuple[float, int]]]:
        growing: dict[str, int] = {}
        now_could: dict[str, tuple[float, int]] = {}
        for name, size in possible.items():
            job = self.jobs[name]
            if size <= job.size or self.standing.sizes[name] != job.size:
                continue
            since, least = could.get(name, (self.now, size))
            if least <= job.size:  # it has grown since
                since, least = self.now, size
            least = min(least, size)
            now_could[name] = since, least
            gain = job.speed(least) / job.speed(job.size) - 1
            if self.now - since >= self.rules.settle_seconds and gain >= self.rules.least_gain:
                growing[name] = least
        return growing, now_could

    # --- parts ---

    def _holds(self, standing: JobSizes) -> bool:
        return standing.free >= 0 and self.feasibility.fits(standing.sizes)

    def _movable(self, rest: float | None = None) -> list[Elastic]:
        """Jobs whose size may change: new ones, and those whose last resize is long enough ago.

        `rest` is the minimum time since then; without it, `resize_seconds` or the job's own
        `rest_seconds`, whichever is longer.
        """
        return [
            job
            for name in sorted(self.standing.sizes)
            if (job := self.jobs[name]).sizes.elastic
            and (not job.size or (job.settled and self._is_rested(job, rest)))
        ]

    def _is_rested(self, job: Elastic, rest: float | None) -> bool:
        wanted = max(self.rules.resize_seconds, job.rest_seconds) if rest is None else rest
        return self.now - job.resized_at >= wanted
