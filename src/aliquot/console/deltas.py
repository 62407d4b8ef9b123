"""Differences between two views of a machine or a cluster, as pages get them. Pure.

A delta names items by their places in lists, so that it is as small as what changed:

    {"view": {FIELD: VALUE},                                 fields of the view itself
     "lists": {LIST: {"gone": [PLACE], "set": [[PLACE, ITEM]]}},
     "moved": {TABLE: {"at": [PLACE], FIELD: [VALUE]}}}

`gone` are places in the old list, `set` are places in the new one: new items, and items of which
more than figures changed. Then `moved` has the figures that change all the time, as columns: a
place in `slices` is that of a slice among all slices of all grants, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

View = dict[str, Any]
Row = dict[str, Any]

_TELEMETRY = ("busy_ratio", "power_watts", "power_limit_watts", "celsius", "clock_mhz")


@dataclass(frozen=True, slots=True)
class MovingFigures:
    """Where figures are that change all the time: fields of rows that items of a list have."""

    name: str
    listed: str
    rows: Callable[[Row], Iterable[Row]]
    fields: tuple[str, ...]


TABLES = (
    MovingFigures("gpus", "gpus", lambda gpu: (gpu,), ("used_bytes",)),
    MovingFigures("telemetry", "gpus", lambda gpu: (gpu["telemetry"] or {},), _TELEMETRY),
    MovingFigures(
        "slices",
        "grants",
        lambda grant: grant["slices"],
        ("used_bytes", "got_ratio", "idle_seconds", "wait_p99_seconds"),
    ),
    MovingFigures("processes", "grants", lambda grant: grant.get("processes", ()), ("used_bytes",)),
)
KEYS: Mapping[str, Callable[[Row], Any]] = {
    "gpus": lambda gpu: gpu["uuid"],
    "grants": lambda grant: grant["id"],
    "items": lambda job: (
        job.get("id") or job["number"] or f"{job['user']} {job['name']} {job['submitted']}"
    ),
}


def difference(before: View, after: View) -> View | None:
    """What changed; None if it cannot be said as a difference.

    So it is if items changed their order, or two have one key: hidden grants that one user made in
    the same millisecond.
    """
    lists = {name: _list_difference(name, before, after) for name in KEYS if name in after}
    if None in lists.values():
        return None
    found: View = {
        "view": {
            field: value
            for field, value in after.items()
            if field not in KEYS and before.get(field) != value
        },
        "lists": {name: change for name, change in lists.items() if change},
        "moved": {},
    }
    for table in TABLES:
        if table.listed in after and (moved := _moved(table, before, after)):
            found["moved"][table.name] = moved
    return found


def _list_difference(name: str, before: View, after: View) -> View | None:
    """The items that are gone, and those that are new or changed; None: see `difference`."""
    key = KEYS[name]
    old = {key(item): item for item in before.get(name, ())}
    new = [key(item) for item in after[name]]
    known = set(new)
    if len(old) < len(before.get(name, ())) or len(known) < len(new):
        return None
    if [one for one in old if one in known] != [one for one in new if one in old]:
        return None
    gone = [place for place, one in enumerate(old) if one not in known]
    changed = [
        [place, item]
        for place, (one, item) in enumerate(zip(new, after[name], strict=True))
        if one not in old or not _is_alike(name, old[one], item)
    ]
    found: View = {"gone": gone} if gone else {}
    return {**found, "set": changed} if changed else found


def _is_alike(name: str, before: Row, after: Row) -> bool:
    """Whether only figures of the tables changed."""
    if before == after:
        return True
    return _still(name, before) == _still(name, after)


def _still(name: str, item: Row) -> Row:
    """An item without the figures that change all the time."""
    match name:
        case "gpus":
            told = item["telemetry"]
            return {**item, "used_bytes": None, "telemetry": told is None}
        case "grants":
            slices, processes = TABLES[2].fields, TABLES[3].fields
            return {
                **item,
                "slices": [_without(row, slices) for row in item["slices"]],
                "processes": [_without(row, processes) for row in item.get("processes", ())],
            }
    return item


def _without(row: Row, fields: Sequence[str]) -> Row:
    return {field: value for field, value in row.items() if field not in fields}


def _moved(table: MovingFigures, before: View, after: View) -> View | None:
    """The columns of the rows that changed, of items that both views have."""
    key, old = KEYS[table.listed], {KEYS[table.listed](item): item for item in before[table.listed]}
    at, rows, place = list[int](), list[Row](), 0
    for item in after[table.listed]:
        earlier = old.get(key(item))
        own = list(table.rows(item))
        if earlier is not None:
            were = list(table.rows(earlier))
            if len(were) == len(own):
                for number, (row, was) in enumerate(zip(own, were, strict=True)):
                    if row != was and any(row.get(one) != was.get(one) for one in table.fields):
                        at.append(place + number)
                        rows.append(row)
        place += len(own)
    if not at:
        return None
    return {"at": at, **{field: [row.get(field) for row in rows] for field in table.fields}}


def apply(view: View, delta: View) -> View:
    """The view after a delta: what pages do, for programs in Python and for tests."""
    found = {**view, **delta["view"]}
    for name in KEYS:
        if name not in found:
            continue
        items, change = list(found[name]), delta["lists"].get(name, {})
        for place in reversed(change.get("gone", ())):
            del items[place]
        known = {KEYS[name](item) for item in items}
        for place, item in change.get("set", ()):
            items[place : place + (KEYS[name](item) in known)] = [item]
        found[name] = items
    for table in TABLES:
        if table.listed in found:
            found[table.listed] = _with_moved(table, found, delta["moved"].get(table.name))
    return found


def _with_moved(table: MovingFigures, view: View, moved: View | None) -> list[Row]:
    if moved is None:
        return list(view[table.listed])
    values = {
        place: {field: moved[field][number] for field in table.fields}
        for number, place in enumerate(moved["at"])
    }
    found, place = [], 0
    for item in view[table.listed]:
        rows = []
        for row in table.rows(item):
            rows.append({**row, **values.get(place, {})})
            place += 1
        found.append(_with_rows(table, item, rows))
    return found


def _with_rows(table: MovingFigures, item: Row, rows: list[Row]) -> Row:
    match table.name:
        case "gpus":
            return rows[0]
        case "telemetry":
            return item if item["telemetry"] is None else {**item, "telemetry": rows[0]}
    return {**item, table.name: rows}
