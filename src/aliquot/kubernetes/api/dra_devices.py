"""A node's GPUs as devices of dynamic resource allocation: names, capacities, attributes. Pure.

Each GPU is one whole device, one shared device for each share, and one sliceable device that many
claims can have a part of. The agent publishes them (`node.dra.devices`), and who allocates them
finds by them what a claim asks for and what it has.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.api.dra_parameters import InvalidClaimError
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.requests import quantity
from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.objects import Quantity
    from aliquot.kubernetes.api.plan import Kind

MEMORY, COMPUTE = "memory", "compute"  # capacities
DEVICE_KINDS: tuple[Kind, ...] = ("whole", "shared", "sliced")
LONGEST_TEXT = 64  # of an attribute
_BY_SWITCH = ("NV", "PIX", "PXB")  # kinds of links between GPUs that no CPU is on the way of
_EXPONENT = re.compile(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}", re.ASCII)  # 1e3 of a claim's author


class Version(str):
    """A driver's version: an attribute that selectors do not compare as a text."""

    __slots__ = ()


Attributes = dict[str, "str | int | Version"]  # by name, in the driver's domain


def device_name(uuid: str, kind: Kind, number: int = 0) -> str:
    """The device of a GPU; `number` tells shared ones apart."""
    return f"{uuid.lower()}-{kind}" + (f"-{number}" if kind == "shared" else "")


def device_names(uuid: str, shares: int) -> list[str]:
    """All devices of a GPU."""
    shared = (device_name(uuid, "shared", number) for number in range(shares))
    return [device_name(uuid, "whole"), *shared, device_name(uuid, "sliced")]


def parse_device(name: str, uuids: Iterable[str]) -> tuple[str, Kind] | None:
    """The GPU and the kind of a device; None if it is none of these GPUs'."""
    for uuid in uuids:
        prefix = f"{uuid.lower()}-"
        if name.startswith(prefix):
            kind, _, number = name.removeprefix(prefix).partition("-")
            if kind == "shared" and number.isdecimal():
                return uuid, "shared"
            if kind == "whole" and not number:
                return uuid, "whole"
            if kind == "sliced" and not number:
                return uuid, "sliced"
    return None


def memory_units(gpu_bytes: int) -> int:
    """What all slices of a GPU can have together: its memory, rounded down to whole units."""
    return gpu_bytes // MEMORY_UNIT * MEMORY_UNIT


def device_memory(kind: Kind, gpu_bytes: int, shares: int) -> int:
    """What a device of this kind has of its GPU's memory."""
    match kind:
        case "shared":
            return gpu_bytes // shares
        case "sliced":
            return memory_units(gpu_bytes)
    return gpu_bytes


def amount_of(capacity: str, amounts: Mapping[str, Quantity]) -> int | None:
    """How much of a capacity somebody wrote, with our domain or without; None if nothing.

    InvalidClaimError if that is no whole number.
    """
    given = amounts.get(capacity, amounts.get(f"{DRIVER}/{capacity}"))
    if given is None:
        return None
    try:
        exponent = _EXPONENT.fullmatch(str(given))
        number = Fraction(exponent[0]) if exponent else quantity(given)
    except InvalidValueError as error:
        raise InvalidClaimError(f"{capacity}: {error.message}") from error
    if number.denominator != 1:
        raise InvalidClaimError(f"{capacity} is {given}, which is not whole")
    return int(number)


def attributes_of(  # noqa: PLR0913 - what a device has
    uuid: str,
    index: int,
    *,
    model: str = "",
    strength: float = 0.0,
    neighbours: int | None = None,
    numa: int | None = None,
    driver_version: str = "",
) -> Attributes:
    """What claims can select a GPU by, and ask to be the same or different; not its kind."""
    found: Attributes = {"uuid": uuid, "index": index}
    if model:
        found["model"] = model[:LONGEST_TEXT]
    if strength:
        found["strength"] = round(strength)
    if neighbours is not None:
        found["neighbours"] = neighbours
    if numa is not None:
        found["numa"] = numa
    if version := semantic_version(driver_version):
        found["driverVersion"] = Version(version)
    return found


def semantic_version(version: str) -> str:
    """A driver's version as Kubernetes compares it: 580.159.4 of 580.159.04; empty if invalid."""
    numbers = version.split(".")
    if not 1 <= len(numbers) <= 3 or not all(one.isascii() and one.isdecimal() for one in numbers):
        return ""
    return ".".join(str(int(one)) for one in [*numbers, "0", "0"][:3])


def link_groups(links: Mapping[int, Sequence[tuple[int, str]]]) -> Mapping[int, int]:
    """By index: the lowest index of the GPUs that are linked to this one past all CPUs.

    `links` has the index of each other GPU and the kind of the link to it. A GPU without such a
    link is in no group, and no claim gets it as a neighbour.
    """
    groups: dict[int, int] = {}
    linked = {
        index: [other for other, kind in some if kind.startswith(_BY_SWITCH) and other in links]
        for index, some in links.items()
    }
    for index, neighbours in sorted(linked.items()):
        if index in groups or not neighbours:
            continue
        waiting = [index]
        while waiting:
            now = waiting.pop()
            if now not in groups:
                groups[now] = index
                waiting += linked.get(now, [])
    return groups
