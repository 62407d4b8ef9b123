"""What people change from the console: the size of a grant, and what is submitted.

Bodies are as `openapi` describes them; the words in them are those of the options of commands.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot import api, slices
from aliquot.model import GrantChange, Policy, Priority, parse_amount, parse_share
from aliquot.model.errors import InvalidValueError, NoSuchGpuError, StateError
from aliquot.model.job import parse_sizes
from aliquot.pool.encoding import encode_request
from aliquot.pool.preview import preview_json, preview_run
from aliquot.slices.gpu_choice import free_bytes, free_percent
from aliquot.slices.grant_resize import resize

if TYPE_CHECKING:
    from aliquot.console.snapshots import Machine
    from aliquot.model import Request, Slice
    from aliquot.slices import LocalMachine, StateDirectory

_REQUEST = ("memory", "compute", "gpus", "policy", "priority", "swap")
_OPTIONS = {
    "name": "--name",
    "workers": "--workers",
    "gpus": "--gpus",
    "memory": "--memory",
    "compute": "--compute",
    "policy": "--policy",
    "priority": "--priority",
    "queue": "--queue",
    "time": "--time",
    "retries": "--retries",
}


def resize_grant(machine: LocalMachine, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Resize a grant, or with `dry_run` say what would change; AliquotError says why not."""
    found, grant = slices.find_grant([machine], slices.check_address(name))
    change = _grant_change(body)
    done = resize(found, grant, change, dry_run=body.get("dry_run", False))
    gpus = {one.gpu.uuid: one for one in found.status.gpus}
    effects = []
    for part, after in zip(grant.slices, done, strict=True):
        shared = gpus.get(part.gpu_uuid)
        if shared is None:
            raise StateError(f"the GPU {part.gpu_uuid} is no longer there")
        grows = after.memory_bytes - part.memory_bytes
        percent = _percent_after(part, change)
        free = free_percent(shared, found.status.grants)
        effects.append(
            {
                "gpu": part.gpu_uuid,
                "gpu_index": shared.gpu.index,
                "before": _settings(part.memory_bytes, part.compute_percent, part, None),
                "after": _settings(after.memory_bytes, percent, part, change),
                "free_bytes": max(0, free_bytes(shared) - grows),
                "free_percent": max(0, min(100, free - percent + part.compute_percent)),
            }
        )
    return {"slices": effects, "command_line": _resize_command(name, body)}


def _grant_change(body: dict[str, Any]) -> GrantChange:
    memory, compute = body.get("memory"), body.get("compute")
    policy, priority = body.get("policy"), body.get("priority")
    return GrantChange(
        memory=None if memory is None else parse_amount(memory),
        compute_percent=None if compute is None else parse_share(compute),
        policy=None if policy is None else Policy(policy),
        priority=None if priority is None else Priority(priority),
    )


def _percent_after(part: Slice, change: GrantChange) -> int:
    return part.compute_percent if change.compute_percent is None else change.compute_percent


def _settings(
    memory_bytes: int, percent: int, part: Slice, change: GrantChange | None
) -> dict[str, Any]:
    policy = part.policy if change is None else change.policy or part.policy
    priority = part.priority if change is None else change.priority or part.priority
    return {
        "memory_bytes": memory_bytes,
        "compute_percent": percent or None,
        "policy": str(policy),
        "priority": str(priority),
    }


def _resize_command(name: str, body: dict[str, Any]) -> str:
    given = {key: body[key] for key in ("memory", "compute", "policy", "priority") if key in body}
    options = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    return shlex.join(["aliquot", "resize", name, *options])


def explain(state: StateDirectory, body: dict[str, Any]) -> dict[str, Any]:
    """Where one worker of this job would go now, or what it would wait for."""
    request = _request(body)
    queue = body.get("queue")
    found = preview_run(state, state.driver(), request, queue=queue, wait=queue is not None)
    if found.preview.refusal is not None and found.waiting is None:
        found = preview_run(state, state.driver(), request, queue=queue, wait=True)
    content = preview_json(found, request, state.shape)
    keys = ("fits", "error", "hint", "waiting", "slices", "gpus")
    return {**{key: content[key] for key in keys}, "command_line": command_line(body)}


def what_if(machine: Machine, body: dict[str, Any]) -> dict[str, Any]:
    """What the pool would decide if something were different."""
    question: dict[str, Any] = {}
    indexes = body.get("without_gpus", [])
    if indexes:
        uuids = {one.gpu.index: one.gpu.uuid for one in machine.find().status.gpus}
        if missing := [one for one in indexes if one not in uuids]:
            raise NoSuchGpuError(f"there is no GPU {missing[0]}", "See them with: aliquot gpus")
        question["gone_gpus"] = [uuids[one] for one in indexes]
    if "add" in body:
        asked = body["add"]
        question["add"] = encode_request(_request(asked))
        question["workers"] = parse_sizes(asked.get("workers", "1")).allowed
        question |= {"queue": asked["queue"]} if "queue" in asked else {}
    question["gone_jobs"] = body.get("without_jobs", [])
    for name, key in (
        ("user_limits", "limits"),
        ("queue_limits", "queue_limits"),
        ("queue_quotas", "quotas"),
    ):
        if name in body:
            question[key] = {one["name"]: one["gpus"] for one in body[name]}
    return machine.pool.what_if(question)


def submit(state: StateDirectory, body: dict[str, Any]) -> dict[str, Any]:
    """Submit a job with the environment of the console; its number and name."""
    directory = Path(body.get("directory") or Path.home())
    if not directory.is_absolute() or not os.path.isdir(directory):  # noqa: PTH112 - never raises
        raise InvalidValueError(
            f"{str(directory)[:200]!r} is not a folder", "Write the whole path, from / on."
        )
    command = _words(body)
    if not command:
        raise InvalidValueError("there is no command", "Write what each worker runs.")
    given = {key: body[key] for key in ("name", "queue", "retries", "time") if key in body}
    job = api.submit(
        command,
        **{key: body[key] for key in _REQUEST if key in body},
        **given,
        workers=body.get("workers", "1"),
        directory=directory,
        environment=os.environ,
        simulate=None if state.shape is None else str(state.shape),
    )
    return {"number": job.number, "name": job.name, "command_line": command_line(body)}


def command_line(body: dict[str, Any]) -> str:
    """The command that does the same."""
    words = ["aliquot", "submit"]
    for key, option in _OPTIONS.items():
        if key in body:
            words += [option, str(body[key])]
    words += ["--swap"] if body.get("swap") else []
    return shlex.join([*words, "--", *(_words(body) or ["COMMAND"])])


def _request(body: dict[str, Any]) -> Request:
    return api.read_request(**{key: body[key] for key in _REQUEST if key in body})


def _words(body: dict[str, Any]) -> list[str]:
    """The command, split as a shell does."""
    try:
        return shlex.split(body.get("command", ""))
    except ValueError as error:
        raise InvalidValueError(
            f"the command cannot be split into words: {error}", "Close every quotation mark."
        ) from error
