"""Jobs and their states as JSON, for the database and the API, and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from aliquot.model import Amount, Policy, Priority, Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Desired, Job, JobPhase, Sizes
from aliquot.model.job_state import JobState, Stage, Stopping, read_slots


@dataclass(frozen=True, slots=True)
class Submission:
    """A job with the program file, directory and environment of the user who submitted it."""

    job: Job
    program: str
    directory: str
    environment: dict[str, str] = field(default_factory=dict)


def encode_submission(one: Submission) -> dict[str, Any]:
    """The JSON object."""
    job, request = one.job, one.job.request
    memory = request.memory
    return {
        **asdict(job),
        "sizes": list(job.sizes.allowed),
        "command": list(job.command),
        "request": {
            **asdict(request),
            "memory": None if memory is None else _encode_amount(memory),
        },
        "program": one.program,
        "directory": one.directory,
        "environment": one.environment,
    }


def decode_submission(fields: dict[str, Any], number: int | None = None) -> Submission:
    """The submission; InvalidValueError if the JSON is invalid."""
    try:
        job, request = dict(fields), dict(fields["request"])
        program, directory = str(job.pop("program")), str(job.pop("directory"))
        environment = {str(key): str(value) for key, value in job.pop("environment").items()}
        request["memory"] = None if request["memory"] is None else _decode_amount(request["memory"])
        request["policy"] = Policy(request["policy"])
        request["priority"] = Priority(request["priority"])
        job["request"] = Request(**request)
        job["sizes"] = Sizes(tuple(job["sizes"]))
        job["command"] = tuple(map(str, job["command"]))
        if number is not None:
            job["number"] = number
        return Submission(Job(**job), program, directory, environment)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(f"invalid job: {error!r}") from error


def encode_state(state: JobState) -> dict[str, Any]:
    """The JSON object."""
    return asdict(state)


def decode_state(fields: dict[str, Any]) -> JobState:
    """The state of a job."""
    stopping = fields["stopping"]
    if stopping is not None:
        stopping = Stopping(
            **{**stopping, "then": JobPhase(stopping["then"]), "stage": Stage(stopping["stage"])}
        )
    return JobState(
        **{
            **fields,
            "phase": JobPhase(fields["phase"]),
            "desired": Desired(fields["desired"]),
            "slots": read_slots(fields["slots"]),
            "stopping": stopping,
        }
    )


def _encode_amount(amount: Amount) -> dict[str, Any]:
    percent = amount.percent
    return {"bytes": amount.bytes, "percent": None if percent is None else str(percent)}


def _decode_amount(fields: dict[str, Any]) -> Amount:
    percent = fields["percent"]
    return Amount(fields["bytes"], None if percent is None else Fraction(percent))
