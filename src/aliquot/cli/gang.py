"""`aliquot describe gang/NAME`: one gang on Kubernetes: its phase, its members, its events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aliquot.cli.on_cluster import needs_extra
from aliquot.cli.tables import NOTHING, print_json, print_text
from aliquot.model.errors import AliquotError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aliquot.kubernetes.api.gang import GangMember, GangObject, GangStatus
    from aliquot.kubernetes.api.objects import Event

PREFIX = "gang/"


def describe_gang(name: str, namespace: str | None, kubeconfig: Path | None, *, json: bool) -> None:
    """Print the phase of a gang and why, the places of its members, and its events."""
    import asyncio  # noqa: PLC0415 - imported when needed

    with needs_extra():
        import msgspec  # noqa: PLC0415 - needs the extra

        gang, events = asyncio.run(_read(name.removeprefix(PREFIX), namespace, kubeconfig))
    if json:
        print_json({"gang": msgspec.to_builtins(gang), "events": msgspec.to_builtins(events)})
    else:
        print_text(_description(gang, events, time.time()))


async def _read(
    name: str, namespace: str | None, kubeconfig: Path | None
) -> tuple[GangObject, list[Event]]:
    from aliquot.kubernetes.api.client import ApiError, connect  # noqa: PLC0415
    from aliquot.kubernetes.api.gang import GANGS  # noqa: PLC0415
    from aliquot.kubernetes.api.objects import EVENTS  # noqa: PLC0415

    if not name:
        raise InvalidValueError(f"{PREFIX} names no gang", "Write gang/NAME: kubectl get gangs")
    async with connect(kubeconfig) as client:
        where = namespace or client.namespace
        try:
            gang = await client.get(GANGS, name, where)
        except ApiError as error:
            if not error.not_found:
                raise
            raise AliquotError(
                f"there is no gang {name!r} in namespace {where!r}",
                "See which there are: kubectl get gangs --all-namespaces",
            ) from error
        fields = f"involvedObject.kind=Gang,involvedObject.name={name}"
        found = await client.list(EVENTS, where, fields=fields)
    return gang, sorted(found.items, key=lambda one: one.last_timestamp or "")


def _description(gang: GangObject, events: Iterable[Event], now: float) -> str:
    meta, spec, status = gang.metadata, gang.spec, gang.status
    lines = {
        "Gang": f"{meta.namespace}/{meta.name}",
        "Phase": (status.phase or NOTHING) + _since(status.since, now),
        "Why": status.reason or NOTHING,
        "Start": _start(status.planned_start, now),
        "Size": f"{_pods(spec.size)}, for {_long(spec.seconds)}",
        "Queue": f"{spec.queue}, priority {spec.priority}",
        "Topology": status.topology or NOTHING,
    }
    if status.victims:
        lines["Preempts"] = f"{_pods(len(status.victims))} of other workloads"
    if status.eviction_reason:
        lines["Eviction"] = _eviction(status, now)
    width = max(map(len, lines)) + 2
    text = "".join(f"{key + ':':<{width}}{value}\n" for key, value in lines.items())
    members = "".join(map(_member, status.members)) or f"  {NOTHING}\n"
    history = "".join(
        f"  {one.last_timestamp or '':<20}  {one.reason:<10}  {one.message}\n" for one in events
    )
    return f"{text}Members:\n{members}Events:\n{history}"


def _pods(size: int) -> str:
    if not size:
        return "unknown size"
    return f"{size} pod{'s' if size > 1 else ''}"


def _member(one: GangMember) -> str:
    from aliquot.kubernetes.api.plan import decode_plan  # noqa: PLC0415

    plan = decode_plan(one.plan) if one.plan else None
    gpus = [gpu for part in plan.containers.values() for gpu in part.gpus] if plan else []
    where = f"{one.node}  {', '.join(dict.fromkeys(gpus))}" if one.node else "no place yet"
    return f"  {one.pod}  {where}\n"


def _since(stamp: str | None, now: float) -> str:
    from aliquot.kubernetes.api.times import clock, seconds_at  # noqa: PLC0415

    at = seconds_at(stamp)
    return "" if at is None else f"; all pods exist since {clock(at, now)}, {_long(now - at)} ago"


def _start(stamp: str | None, now: float) -> str:
    """When the gang is expected to start."""
    from aliquot.kubernetes.api.times import clock, seconds_at  # noqa: PLC0415

    at = seconds_at(stamp)
    if at is None:
        return NOTHING
    return f"about {clock(at, now)}, " + (f"in {_long(at - now)}" if at > now else "any moment")


def _eviction(status: GangStatus, now: float) -> str:
    """Why its pods are evicted; and when, if their controller notifies them."""
    from aliquot.kubernetes.api.times import clock, seconds_at  # noqa: PLC0415

    at = seconds_at(status.eviction_time)
    if at is None:
        return status.eviction_reason
    left = f", in {_long(at - now)}" if at > now else ""
    when = f"{clock(at, now)}{left}"
    return f"{status.eviction_reason}; its workers were notified, and stop about {when}"


def _long(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(0, seconds):.0f} s"
