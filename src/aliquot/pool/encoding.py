"""Jobs and their states as JSON, for the database and the API, and back."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, is_dataclass
from dataclasses import fields as fields_of
from fractions import Fraction
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from aliquot.model import Amount, Isolation, Policy, Priority, Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import (
    ArrayIndex,
    Dependency,
    Desired,
    Job,
    JobChange,
    JobPhase,
    Needs,
    Sizes,
    check_indices,
)
from aliquot.model.job_state import JobState, Stage, Stopping, read_slots
from aliquot.model.neighbours import Neighbours
from aliquot.model.parking_rule import ParkingRule
from aliquot.model.selection import GpuSelection

if TYPE_CHECKING:
    from aliquot.model.job import Indices
    from aliquot.model.owner import Owner

PHASE_HEADER, FROM_HEADER = "X-Aliquot-Phase", "X-Aliquot-From"  # of the API's log
RESTART_POOL = (
    "Restart the pool; its jobs keep running: aliquot down && aliquot up --detach, or for root's"
    " pool: sudo systemctl restart aliquot-pool"
)
_LARGEST = 1 << 53  # JSON's numbers are exact below it
_LONGEST_TEXT = (1 << 17) - 1  # of an argument or variable, on Linux
_PERCENT = re.compile(r"[0-9]{1,9}(/[0-9]{1,9})?", re.ASCII)
# In annotations.
_NAMES = {
    "Request": Request,
    "Amount": Amount,
    "GpuSelection": GpuSelection,
    "Neighbours": Neighbours,
    "ParkingRule": ParkingRule,
    "Priority": Priority,
    "Isolation": Isolation,
}


def _names(
    kind: type[Job | JobChange | Request | GpuSelection | Neighbours | ParkingRule],
) -> frozenset[str]:
    return frozenset(one.name for one in fields_of(kind))


# `priority` is what earlier versions wrote for `urgency`.
_SUBMISSION_FIELDS = _names(Job) | {"program", "directory", "environment", "priority"}


@dataclass(frozen=True, slots=True)
class Submission:
    """A job with its owner, and the program file, directory and environment to run it with.

    The pool knows the owner from the socket of the request. The JSON object does not contain it.
    """

    owner: Owner
    job: Job
    program: str
    directory: str
    environment: dict[str, str] = field(default_factory=dict)


def encode_submission(one: Submission) -> dict[str, Any]:
    """The JSON object, without the owner."""
    job = one.job
    return {
        **asdict(job),
        "sizes": list(job.sizes.allowed),
        "command": list(job.command),
        "request": encode_request(job.request),
        "program": one.program,
        "directory": one.directory,
        "environment": one.environment,
    }


def decode_submission(
    fields: dict[str, Any], owner: Owner, number: int | None = None
) -> Submission:
    """The submission of that owner; InvalidValueError if the JSON is invalid."""
    try:
        job = dict(fields)
        _check_known("job", job, _SUBMISSION_FIELDS)
        program, directory = str(job.pop("program")), str(job.pop("directory"))
        environment = {str(key): str(value) for key, value in job.pop("environment").items()}
        job["request"] = decode_request(job["request"])
        job["sizes"] = Sizes(tuple(job["sizes"]))
        job["command"] = tuple(map(str, job["command"]))
        job["after"] = tuple(map(_decode_dependency, job.get("after", ())))
        job["array"] = _decode_array(job.get("array"))
        if "priority" in job:  # what earlier versions wrote
            job["urgency"] = job.pop("priority")
        if number is not None:
            job["number"] = number
        checked = Job(**job)
        _check_type("job", checked, Job)
        _check_texts(program, directory, *environment, *environment.values(), *checked.command)
        _check_texts(checked.queue, *(one.job for one in checked.after))
        return Submission(owner, checked, program, directory, environment)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(f"invalid job: {error!r}") from error


def _check_known(what: str, given: dict[str, Any], known: frozenset[str]) -> None:
    """Refuse fields that only a later version has: to ignore one could do something else."""
    unknown = sorted(given.keys() - known)
    if unknown:
        raise InvalidValueError(
            f"the pool does not know the field {unknown[0]!r} of a {what}: it runs an earlier"
            " version of Aliquot than this command",
            RESTART_POOL,
        )


def _check_texts(*texts: str) -> None:
    """Raise ValueError unless the kernel takes each of the texts."""
    for text in texts:
        if "\0" in text or len(text.encode()) > _LONGEST_TEXT:
            raise ValueError("a text contains a NUL or is too long")


def _check_type(name: str, value: Any, kind: Any) -> None:
    """Raise TypeError unless the value has this type, as annotated, with all that is in it."""
    if get_origin(kind) is tuple:
        for one in value if isinstance(value, tuple) else (None,):
            _check_type(name, one, get_args(kind)[0])
    elif get_origin(kind) is UnionType:
        if value is not None:
            (inner,) = (one for one in get_args(kind) if one is not NoneType)
            _check_type(name, value, inner)
    elif type(value) is not kind and (kind, type(value)) != (float, int):
        raise TypeError(f"{name} is not of type {kind.__name__}: {value!r}")
    elif kind in {int, float}:
        if not -_LARGEST < value < _LARGEST:
            raise TypeError(f"{name} is too large: {value!r}")
    elif is_dataclass(kind):
        for inner, hint in get_type_hints(kind, localns=_NAMES).items():
            _check_type(f"{name}.{inner}", getattr(value, inner), hint)


def encode_change(change: JobChange) -> dict[str, Any]:
    """The JSON object."""
    memory, sizes = change.memory, change.sizes
    return {
        **asdict(change),
        "memory": None if memory is None else _encode_amount(memory),
        "sizes": None if sizes is None else list(sizes.allowed),
    }


def decode_change(fields: dict[str, Any]) -> JobChange:
    """The change; InvalidValueError if the JSON is invalid."""
    try:
        _check_known("change", fields, _names(JobChange))
        memory, sizes, priority = (fields.get(key) for key in ("memory", "sizes", "priority"))
        change = JobChange(
            **{
                **fields,
                "memory": None if memory is None else _decode_amount(memory),
                "priority": None if priority is None else Priority(priority),
                "sizes": None if sizes is None else Sizes(tuple(sizes)),
            }
        )
        _check_type("change", change, JobChange)
        _check_texts(change.queue or "")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(f"invalid change: {error!r}") from error
    return change


def decode_indices(indices: Any, at_once: Any) -> Indices:
    """The indices of an array, and how many of its jobs run at once; InvalidValueError if not."""
    try:
        found = tuple(indices)
        _check_type("indices", found, tuple[int, ...])
        _check_type("at_once", at_once, int | None)
    except TypeError as error:
        raise InvalidValueError(f"invalid array: {error!r}") from error
    return check_indices(found, at_once), at_once


def encode_request(request: Request) -> dict[str, Any]:
    """The JSON object; `compute_percent` is null for an equal share."""
    memory = request.memory
    fields = {
        **asdict(request),
        "memory": None if memory is None else _encode_amount(memory),
        "compute_percent": request.compute_percent or None,
    }
    if not request.min_strength:  # a pool of an earlier version refuses a field that it lacks
        del fields["min_strength"]
    if not request.which:
        del fields["which"]
    if not request.neighbours:
        del fields["neighbours"]
    if request.swap is None:
        del fields["swap"]
    if request.park_after is None:
        del fields["park_after"]
    if not request.swap_wait:
        del fields["swap_wait"]
    if not request.overcommit:
        del fields["overcommit"]
    if not request.spill:
        del fields["spill"]
    if request.isolation is Isolation.SOFT:
        del fields["isolation"]
    del fields["owner"]  # the pool knows it from the socket of the request
    return fields


def decode_request(fields: dict[str, Any]) -> Request:
    """The request; an exception that `decode_submission` handles if the JSON is invalid."""
    memory = fields["memory"]
    _check_known("request", fields, _names(Request))
    request = Request(
        **{
            **fields,
            "memory": None if memory is None else _decode_amount(memory),
            "compute_percent": 0 if (share := fields["compute_percent"]) is None else share,
            "policy": Policy(fields["policy"]),
            "priority": Priority(fields["priority"]),
            "isolation": Isolation(fields.get("isolation", Isolation.SOFT)),
            "among": None,  # the pool decides that
            "which": _decode_selection(fields.get("which", {})),
            "neighbours": _decode_neighbours(fields.get("neighbours", {})),
            "park_after": _decode_parking(fields.get("park_after")),
            "owner": None,
        }
    )
    _check_type("request", request, Request)
    return request


def _decode_parking(fields: dict[str, Any] | None) -> ParkingRule | None:
    if fields is None:
        return None
    _check_known("parking rule", fields, _names(ParkingRule))
    return ParkingRule(**fields)


def _decode_selection(fields: dict[str, Any]) -> GpuSelection:
    _check_known("selection of GPUs", fields, _names(GpuSelection))
    return GpuSelection(**{name: _decode_words(words) for name, words in fields.items()})


def _decode_neighbours(fields: dict[str, Any]) -> Neighbours:
    _check_known("request's neighbours", fields, _names(Neighbours))
    apart = _decode_words(fields.get("apart_from", []))
    return Neighbours(**{**fields, "apart_from": apart})


def _decode_words(words: Any) -> tuple[str, ...]:
    if not isinstance(words, list | tuple):
        raise TypeError(f"{words!r} is no list")
    return tuple(words)


def encode_state(state: JobState) -> dict[str, Any]:
    """The JSON object."""
    fields = asdict(state)
    if state.idle_reported is None:  # a pool of an earlier version refuses a field that it lacks
        del fields["idle_reported"]
    return fields


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


def _decode_dependency(fields: dict[str, Any]) -> Dependency:
    return Dependency(str(fields["job"]), Needs(fields["needs"]))


def _decode_array(fields: dict[str, Any] | None) -> ArrayIndex | None:
    if fields is None:
        return None
    return ArrayIndex(fields["name"], fields["index"], fields["at_once"], fields.get("begun"))


def _encode_amount(amount: Amount) -> dict[str, Any]:
    percent = amount.percent
    return {"bytes": amount.bytes, "percent": None if percent is None else str(percent)}


def _decode_amount(fields: dict[str, Any]) -> Amount:
    count, percent = fields["bytes"], fields["percent"]
    if percent is None:
        if type(count) is not int or not 0 < count <= _LARGEST:
            raise ValueError(f"{count!r} is not a number of bytes")
        return Amount(bytes=count)
    if _PERCENT.fullmatch(percent) is None or not 0 < Fraction(percent) <= 100:
        raise ValueError(f"{percent!r} is not a percentage")
    return Amount(percent=Fraction(percent))
