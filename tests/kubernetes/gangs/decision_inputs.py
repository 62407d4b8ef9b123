"""Inputs of decisions without a cluster: nodes, gangs, and what runs on them."""

from __future__ import annotations

from typing import Any

from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Gang, Running, whole
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.decide import DecisionInput, decide

NOW = 1000.0


def nodes(*gpus: int) -> Allocations:
    specs = [
        NodeHardware(
            f"n{number}", count, model="m", gpu_bytes=80, rack=f"r{number // 2}", block="b"
        )
        for number, count in enumerate(gpus)
    ]
    return Allocations(empty(specs))


def gang(name: str, members: int, gpus: int = 1, **more: Any) -> Gang:
    return Gang(name, (whole(gpus),) * members, **more)


def question(allocations: Allocations, *waiting: Gang, **more: Any) -> DecisionInput:
    asked: dict[str, Any] = {
        "running": [],
        "planned": [],
        "waiting": waiting,
        "incomplete": [],
        "queues": {},
        "now": NOW,
        "by": strategy("fragmentation", allocations.hardware),
        **more,
    }
    return DecisionInput(allocations, **asked)


def started(allocations: Allocations, one: Gang, seconds: float = 100.0) -> Running:
    (found,) = decide(question(allocations, one)).starts
    allocations.take_gang(found)
    return Running(one, found.placements, NOW, NOW + seconds)


def parts_of(one: Running, least: int) -> tuple[Running, ...]:
    """What a job that runs has above its smallest size, worker by worker."""
    mine = one.gang
    unit = gang(mine.name, 1, queue=mine.queue, priority=mine.priority)
    return tuple(
        Running(unit, (place,), one.start, one.end) for place in reversed(one.placements[least:])
    )
