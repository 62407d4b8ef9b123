"""Questions to the brain, without a cluster: nodes, gangs, and what runs on them."""

from __future__ import annotations

from typing import Any

from aliquot.kubernetes.gangs.decide import Question, decide
from aliquot.placement.books import Books
from aliquot.placement.demand import Gang, Running, whole
from aliquot.placement.snapshot import NodeSpec, empty
from aliquot.placement.strategies import strategy

NOW = 1000.0


def nodes(*gpus: int) -> Books:
    specs = [
        NodeSpec(f"n{number}", count, model="m", gpu_bytes=80, rack=f"r{number // 2}", block="b")
        for number, count in enumerate(gpus)
    ]
    return Books(empty(specs))


def gang(name: str, members: int, gpus: int = 1, **more: Any) -> Gang:
    return Gang(name, (whole(gpus),) * members, **more)


def question(books: Books, *waiting: Gang, **more: Any) -> Question:
    asked: dict[str, Any] = {
        "running": [],
        "promised": [],
        "waiting": waiting,
        "rests": [],
        "queues": {},
        "now": NOW,
        "by": strategy("fragmentation", books.hardware),
        **more,
    }
    return Question(books, **asked)


def started(books: Books, one: Gang, seconds: float = 100.0) -> Running:
    (found,) = decide(question(books, one)).starts
    books.take_gang(found)
    return Running(one, found.placements, NOW, NOW + seconds)


def parts_of(one: Running, least: int) -> tuple[Running, ...]:
    """What a job that runs has above its smallest size, worker by worker."""
    mine = one.gang
    unit = gang(mine.name, 1, queue=mine.queue, priority=mine.priority)
    return tuple(
        Running(unit, (place,), one.start, one.end) for place in reversed(one.placements[least:])
    )
