"""How long an inference step takes beside a training, by each way of sharing the GPU.

A graph of a 12-layer transformer is replayed every 10 ms; a ResNet-50 training runs beside it. With
credit the first is a `latency` slice and the second a `background` one. All ways are measured by
turns in one run, with both programs alone on the GPU as the measure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from cases import Case, Context
from programs import GRANT, MPS, MPS_LOW, PLAIN, Share, Spec, TenantError
from witness import LEAD_SECONDS, SOON_SECONDS, TAIL_SECONDS, together

from aliquot.model import Priority

EVERY_SECONDS = 0.010
WINDOW_SECONDS, ROUNDS = 5.0, 2
MOST_OF_TIME_SLICING, LEAST_TRAINING, MOST_OF_ALONE = 0.7, 0.85, 2.0
STEPS_BEFORE = int(LEAD_SECONDS / EVERY_SECONDS)
CREDIT, TIME_SLICING, ALONE = "credit", "time-slicing", "alone"


@dataclass(frozen=True)
class Way:
    """The inference step, the training beside it, or one of them alone."""

    step: Spec | None
    training: Spec | None
    shares: Mapping[Spec, Share]


def way(step: Spec | None, training: Spec | None) -> Way:
    shares = {}
    if step is not None:
        shares[step] = Share(50, priority=Priority.LATENCY)
    if training is not None:
        shares[training] = Share(priority=Priority.BACKGROUND)
    return Way(step, training, shares)


def step_at(where: str) -> Spec:
    return Spec("latency", where=where)


def train_at(where: str) -> Spec:
    return Spec("train", where=where)


WAYS = {
    ALONE: way(step_at(PLAIN), None),
    "training alone": way(None, train_at(PLAIN)),
    CREDIT: way(step_at(GRANT), train_at(GRANT)),
    TIME_SLICING: way(step_at(PLAIN), train_at(PLAIN)),
    "MPS": way(step_at(MPS), train_at(MPS)),
    "MPS, training at low priority": way(step_at(MPS), train_at(MPS_LOW)),
}
WITH_MPS = (step_at(MPS), train_at(MPS), train_at(MPS_LOW))


def cases(*, quick: bool) -> list[Case]:
    rounds = 1 if quick else ROUNDS
    each = WINDOW_SECONDS + LEAD_SECONDS + TAIL_SECONDS + SOON_SECONDS
    specs = (step_at(GRANT), train_at(GRANT), step_at(PLAIN), train_at(PLAIN))
    length = rounds * len(WAYS) * each + 15
    return [
        Case(
            "latency: a step every 10 ms beside train",
            "latency",
            length,
            specs,
            lambda context: measure(context, rounds),
        )
    ]


def measure(context: Context, rounds: int) -> None:
    ways = dict(WAYS)
    try:
        context.stage.need(WITH_MPS)
    except TenantError as error:
        context.found["without_mps"] = str(error)
        ways = {name: one for name, one in WAYS.items() if not name.startswith("MPS")}
    latencies: dict[str, list[float]] = {name: [] for name in ways}
    trained: dict[str, list[float]] = {name: [] for name in ways}
    fallbacks = 0
    for number in range(rounds):
        names = list(ways) if number % 2 == 0 else list(reversed(ways))
        for name in names:
            step, training = ways[name].step, ways[name].training
            orders = {} if step is None else {step: {"every": EVERY_SECONDS}}
            seen = together(context.stage, ways[name].shares, WINDOW_SECONDS, orders=orders)
            if step is not None:
                latencies[name] += seen.answers[step]["latencies_ms"][STEPS_BEFORE:]
            if training is not None:
                trained[name].append(seen.rate(training))
            fallbacks += sum(seen.fallbacks(one) for one in ways[name].shares if one.where == GRANT)
    tell(context, latencies, trained, fallbacks)


def tell(
    context: Context,
    latencies: dict[str, list[float]],
    trained: dict[str, list[float]],
    fallbacks: int,
) -> None:
    whole = statistics.mean(trained["training alone"])
    table = {
        name: {
            "count": len(all_of),
            "p50_ms": quantile(all_of, 0.50),
            "p99_ms": quantile(all_of, 0.99),
            "max_ms": max(all_of, default=None),
            "training": statistics.mean(trained[name]) / whole if trained[name] else None,
        }
        for name, all_of in latencies.items()
    }
    raw = {name: sorted(all_of) for name, all_of in latencies.items() if all_of}
    context.found |= {"ways": table, "latencies_ms": raw, "fallbacks": fallbacks}
    credit, sliced = table[CREDIT], table[TIME_SLICING]
    p99, others = credit["p99_ms"], sliced["p99_ms"]
    alone = table[ALONE]["p99_ms"]
    if p99 is None or others is None or alone is None:
        return
    context.at_most("p99 over time-slicing's", p99 / others, MOST_OF_TIME_SLICING)
    context.tell(f"p99 over p99 alone (to try for: {MOST_OF_ALONE:g})", p99 / alone)
    context.at_least("training over its speed alone", credit["training"], LEAST_TRAINING)
    context.at_most("fallbacks", fallbacks, 0)


def quantile(values: list[float], part: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None
