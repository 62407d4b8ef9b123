"""Jobs and records as JSON, for the database and for the door, and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from aliquot.model import Amount, Policy, Priority, Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Job, Sizes, State, Wish
from aliquot.model.record import Leaving, Record, Stage, slots_of


@dataclass(frozen=True, slots=True)
class Submission:
    """A job with what its command needs of the one who asked for it: `program` is its file."""

    job: Job
    program: str
    directory: str
    environment: dict[str, str] = field(default_factory=dict)


def submission_words(one: Submission) -> dict[str, Any]:
    """For the door and the database."""
    job, request = one.job, one.job.request
    memory = request.memory
    return {
        **asdict(job),
        "sizes": list(job.sizes.allowed),
        "command": list(job.command),
        "request": {
            **asdict(request),
            "memory": None if memory is None else _amount_words(memory),
        },
        "program": one.program,
        "directory": one.directory,
        "environment": one.environment,
    }


def read_submission(words: dict[str, Any], number: int | None = None) -> Submission:
    """The opposite; InvalidValueError where it cannot be read."""
    try:
        job, request = dict(words), dict(words["request"])
        program, directory = str(job.pop("program")), str(job.pop("directory"))
        environment = {str(key): str(value) for key, value in job.pop("environment").items()}
        request["memory"] = None if request["memory"] is None else _amount(request["memory"])
        request["policy"] = Policy(request["policy"])
        request["priority"] = Priority(request["priority"])
        job["request"] = Request(**request)
        job["sizes"] = Sizes(tuple(job["sizes"]))
        job["command"] = tuple(map(str, job["command"]))
        if number is not None:
            job["number"] = number
        return Submission(Job(**job), program, directory, environment)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(f"this cannot be read as a job: {error!r}") from error


def record_words(record: Record) -> dict[str, Any]:
    """For the door and the database."""
    return asdict(record)


def read_record(words: dict[str, Any]) -> Record:
    """The opposite."""
    leaving = words["leaving"]
    if leaving is not None:
        leaving = Leaving(
            **{**leaving, "then": State(leaving["then"]), "stage": Stage(leaving["stage"])}
        )
    return Record(
        **{
            **words,
            "state": State(words["state"]),
            "wish": Wish(words["wish"]),
            "slots": slots_of(words["slots"]),
            "leaving": leaving,
        }
    )


def _amount_words(amount: Amount) -> dict[str, Any]:
    percent = amount.percent
    return {"bytes": amount.bytes, "percent": None if percent is None else str(percent)}


def _amount(words: dict[str, Any]) -> Amount:
    percent = words["percent"]
    return Amount(words["bytes"], None if percent is None else Fraction(percent))
