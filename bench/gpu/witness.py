"""What was seen of a run, by two witnesses, and the arithmetic on it.

The arbiter's: the time each slice held the GPU, asked for ten times a second. The programs' own:
when how many units of their work were finished. Both are series over CLOCK_MONOTONIC, read between
their points by straight lines; a window of time is cut out of both at the same two instants.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from programs import GRANT, PATIENCE_SECONDS, Share, Spec, Stage

from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from aliquot.slices.arbiter_status import Status

LEAD_SECONDS = 0.8  # before a window: shares have changed, run-ahead is steady
TAIL_SECONDS = 0.3
SOON_SECONDS = 0.15
SAMPLE_SECONDS = 0.1
NVML_SECONDS = 0.1
ALONE_SECONDS = 2.0
FRESH_SECONDS = 240.0  # a speed alone is measured again when it is older
KEEPS_BUSY = 98.0
NOT_BUSY = frozenset({"tiny", "latency"})  # where NVML cannot be asked


@dataclass(frozen=True)
class Series:
    """A value that only grows, known at some times."""

    times: Sequence[float]
    values: Sequence[float]

    def at(self, when: float) -> float:
        after = bisect.bisect_left(self.times, when)
        if after == 0:
            return self.values[0]
        if after == len(self.times):
            return self.values[-1]
        t0, t1 = self.times[after - 1], self.times[after]
        v0, v1 = self.values[after - 1], self.values[after]
        return v0 + (v1 - v0) * (when - t0) / (t1 - t0)

    def grown(self, start: float, end: float) -> float:
        return self.at(end) - self.at(start)

    def bins(self, start: float, end: float, width: float) -> list[float]:
        """Growth per second in each bin."""
        count = int((end - start) / width + 1e-6)
        edges = [self.at(start + width * number) for number in range(count + 1)]
        return [round((b - a) / width, 4) for a, b in itertools.pairwise(edges)]

    def longest_gap(self, start: float, end: float) -> float:
        """The longest time between two points, the window's ends counted as points."""
        inner = [when for when in self.times if start < when < end]
        points = [start, *inner, end]
        return max(b - a for a, b in itertools.pairwise(points))


@dataclass(frozen=True)
class Sample:
    """What the arbiter knew at one time."""

    when: float
    credit_cpu: float
    used: Mapping[str, float]
    fallbacks: Mapping[str, int]
    handovers: Mapping[str, int]
    gates: Mapping[str, str]
    turn: Mapping[str, str]


def sample(status: Status) -> Sample:
    compute = {grant.name: grant.compute[0] for grant in status.grants}
    return Sample(
        when=status.now,
        credit_cpu=status.credit_cpu_seconds,
        used={name: one.used_seconds for name, one in compute.items()},
        fallbacks={name: one.fallbacks for name, one in compute.items()},
        handovers={name: one.handovers for name, one in compute.items()},
        gates={name: str(one.gates) for name, one in compute.items()},
        turn={name: str(one.turn) for name, one in compute.items()},
    )


class Sampler(threading.Thread):
    """Asks the arbiter again and again while a `with` lasts; one that is not there is left out."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self.stage, self.samples, self.over = stage, list[Sample](), threading.Event()

    def run(self) -> None:
        while not self.over.wait(SAMPLE_SECONDS):
            with suppress(AliquotError):
                self.samples.append(sample(self.stage.status()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


@dataclass(frozen=True)
class Seen:
    """A run, and the window of it that counts."""

    start: float
    end: float
    answers: Mapping[Spec, dict[str, Any]]
    samples: Sequence[Sample] = ()

    def progress(self, spec: Spec) -> Series:
        return Series(self.answers[spec]["times"], self.answers[spec]["done"])

    def rate(self, spec: Spec) -> float:
        return self.progress(spec).grown(self.start, self.end) / (self.end - self.start)

    def used(self, spec: Spec) -> Series:
        known = [one for one in self.samples if spec.name in one.used]
        return Series([one.when for one in known], [one.used[spec.name] for one in known])

    def used_ratio(self, spec: Spec, start: float, end: float) -> float:
        return self.used(spec).grown(start, end) / (end - start)

    def windows(self, width: float) -> list[tuple[float, float]]:
        """Every window of that width that begins at a sample."""
        begins = [one.when for one in self.samples if self.start <= one.when <= self.end - width]
        return [(begin, begin + width) for begin in begins]

    def credit_cpu_ratio(self) -> float:
        """The part of one core that giving credit took."""
        inside = [one for one in self.samples if self.start <= one.when <= self.end]
        if len(inside) < 2:
            return 0.0
        spent = inside[-1].credit_cpu - inside[0].credit_cpu
        return spent / (inside[-1].when - inside[0].when)

    def fallbacks(self, spec: Spec) -> int:
        known = [one.fallbacks[spec.name] for one in self.samples if spec.name in one.fallbacks]
        return known[-1] - known[0] if known else 0

    def handovers_per_second(self) -> float:
        if len(self.samples) < 2:
            return 0.0
        first, last = self.samples[0], self.samples[-1]
        grown = sum(last.handovers.values()) - sum(first.handovers.values())
        return grown / (last.when - first.when)

    def raw(self, width: float = SAMPLE_SECONDS) -> dict[str, Any]:
        """The series themselves, for plots: units per second and the part of the GPU, per bin."""
        begin, end = self.start - LEAD_SECONDS, self.end
        told = {"bin_seconds": width, "lead_seconds": LEAD_SECONDS}
        rates = {spec.name: self.progress(spec).bins(begin, end, width) for spec in self.answers}
        used = {
            spec.name: self.used(spec).bins(begin, end, width)
            for spec in self.answers
            if spec.where == GRANT and self.samples
        }
        return {**told, "rates": rates, "used": used}


def together(  # noqa: PLR0913 - most have a usual value
    stage: Stage,
    shares: Mapping[Spec, Share],
    seconds: float,
    *,
    sampled: bool = True,
    idle: Mapping[Spec, Share] | None = None,
    orders: Mapping[Spec, dict[str, Any]] | None = None,
) -> Seen:
    """Let these programs work at the same time.

    `idle` ones have their shares and do nothing; `orders` adds to what a program is told.
    """
    stage.set_shares({**shares, **(idle or {})})
    begin = time.monotonic() + SOON_SECONDS
    length = LEAD_SECONDS + seconds + TAIL_SECONDS
    for spec in shares:
        extra = (orders or {}).get(spec, {})
        stage[spec].tell(do="run", **{"at": begin, "seconds": length, **extra})
    start = begin + LEAD_SECONDS
    if not sampled:
        return Seen(start, start + seconds, answers(stage, shares, begin + length))
    with Sampler(stage) as sampler:
        said = answers(stage, shares, begin + length)
    return Seen(start, start + seconds, said, sampler.samples)


def answers(stage: Stage, specs: Mapping[Spec, Share], end: float) -> dict[Spec, dict[str, Any]]:
    deadline = end + PATIENCE_SECONDS
    return {spec: stage[spec].answer(deadline - time.monotonic()) for spec in specs}


class GpuMonitor(threading.Thread):
    """NVML's word on the GPU while a `with` lasts; None where it cannot be asked.

    How busy it is, and how fast it clocks: below its power limit a GPU is faster, and so is a
    program that has a part of it.
    """

    def __init__(self, *, simulated: bool) -> None:
        super().__init__(daemon=True)
        self.percents, self.clocks = list[int](), list[int]()
        self.over, self.simulated = threading.Event(), simulated

    def run(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self.over.wait(NVML_SECONDS):
                self.percents.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
                self.clocks.append(clock)
        except Exception as error:  # noqa: BLE001 - a witness more, and no case depends on it
            print(f"NVML cannot be asked: {error}", flush=True)

    def __enter__(self) -> Self:
        if not self.simulated:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        if not self.simulated:
            self.join()

    def busy_percent(self) -> float | None:
        return later_median(self.percents)

    def sm_mhz(self) -> float | None:
        return later_median(self.clocks)


def later_median(values: Sequence[float]) -> float | None:
    later = values[len(values) // 2 :]
    return statistics.median(later) if later else None


@dataclass(frozen=True)
class Alone:
    """One kind of program's speed when nothing else runs."""

    when: float
    rate: float
    busy_percent: float | None
    sm_mhz: float | None


@dataclass
class Speeds:
    """The speeds alone of all kinds, measured near the time when they are needed."""

    stage: Stage
    seconds: float = ALONE_SECONDS
    known: dict[tuple[str, str], list[Alone]] = field(default_factory=dict)

    def of(self, spec: Spec) -> Alone:
        """Of this program's kind, where it runs."""
        all_known = self.known.setdefault((spec.kind, spec.where), [])
        if not all_known or time.monotonic() - all_known[-1].when > FRESH_SECONDS:
            with self.monitor() as monitor:
                seen = together(self.stage, {spec: Share()}, self.seconds, sampled=False)
            now, rate = time.monotonic(), seen.rate(spec)
            all_known.append(Alone(now, rate, monitor.busy_percent(), monitor.sm_mhz()))
        return all_known[-1]

    def monitor(self) -> GpuMonitor:
        return GpuMonitor(simulated=self.stage.simulate is not None)

    def keeps_busy(self, spec: Spec) -> bool:
        """Whether it keeps the GPU busy when it is alone."""
        percent = self.of(spec).busy_percent
        return spec.workload not in NOT_BUSY if percent is None else percent >= KEEPS_BUSY

    def rates(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": kind,
                "where": where,
                "rate": round(one.rate, 3),
                "busy_percent": one.busy_percent,
                "sm_mhz": one.sm_mhz,
                "when": round(one.when, 1),
            }
            for (kind, where), all_known in self.known.items()
            for one in all_known
        ]
