"""What a resource claim asks for, as a request for GPUs. Pure.

The authors of claims and of DeviceClasses wrote it: it is checked here, and what is not
understood is refused (`InvalidClaimError`), because a claim must never get what it did not ask for.
All devices of a claim are one grant, so its requests must ask for the same, whatever their number.

Selectors and attributes decide which GPUs may be used: all of some nodes, or some by their UUIDs.
If all GPUs of a claim must have an attribute in common, there is an option for each of its values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.api.dra_devices import (
    COMPUTE,
    DEVICE_KINDS,
    MEMORY,
    amount_of,
    attributes_of,
    device_memory,
    link_groups,
)
from aliquot.kubernetes.api.dra_parameters import InvalidClaimError, parameters_of
from aliquot.kubernetes.api.dra_selectors import (
    Device,
    UnknownExpressionError,
    attributes_in,
    fulfils,
)
from aliquot.kubernetes.api.names import CORE_UNITS, MEMORY_UNIT
from aliquot.kubernetes.api.requests import MOST_BYTES, ContainerRequest
from aliquot.model import MAX_SLICES, Policy, Priority
from aliquot.placement.core.wishes import Wishes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.dra import (
        AllocationConfig,
        DeviceClass,
        DeviceConstraint,
        DeviceRequest,
        ExactRequest,
        ResourceClaim,
    )
    from aliquot.kubernetes.api.dra_devices import Attributes
    from aliquot.kubernetes.api.gpunode import GpuNodeStatus, NodeGpu
    from aliquot.kubernetes.api.plan import Kind

EXACT = "ExactCount"
ALWAYS_DISTINCT = {f"{DRIVER}/uuid", f"{DRIVER}/index"}  # a claim here has different GPUs
CAPACITIES = {name: short for short in (MEMORY, COMPUTE) for name in (short, f"{DRIVER}/{short}")}
REMEMBERED = 1 << 14


@dataclass(frozen=True, slots=True)
class Option:
    """A request, and the nodes that have GPUs for it; None: all nodes."""

    request: ContainerRequest
    nodes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """What a claim asks for: one of `options`. Its pod calls it `name`.

    `requests` has the name of the claim's request for each GPU, `config` the parameters of its
    classes and then its own, as its allocation has them.
    """

    name: str
    requests: tuple[str, ...]
    options: tuple[Option, ...]
    config: tuple[AllocationConfig, ...]


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU as a device of some kind: its node, its size, and what it can have in common."""

    node: str
    uuid: str
    size: int
    attributes: Attributes


class Devices:
    """All GPUs that claims can get at one moment, by the names and statuses of their nodes.

    What selectors select is remembered, and what a spec asks for: many claims have the same ones.
    """

    def __init__(self, nodes: Mapping[str, GpuNodeStatus]) -> None:
        self.counts = {name: len(one.gpus) for name, one in nodes.items()}
        self._nodes = nodes
        self._gpus: list[tuple[str, NodeGpu, Attributes, int]] | None = None
        self._selected: dict[tuple[str, ...], dict[Kind, list[_Gpu]]] = {}
        self._demands: dict[tuple[str, bytes], ClaimDemand | InvalidClaimError | None] = {}

    def demand(
        self, name: str, claim: ResourceClaim, classes: Mapping[str, DeviceClass]
    ) -> ClaimDemand | None:
        """As `demand_of`, with the classes of that moment."""
        key = name, msgspec.json.encode(claim.spec)
        if key not in self._demands:
            try:
                self._demands[key] = demand_of(name, claim, classes, self)
            except InvalidClaimError as error:
                self._demands[key] = error
        found = self._demands[key]
        if isinstance(found, InvalidClaimError):
            raise found
        return found

    def select(self, expressions: tuple[str, ...]) -> Mapping[Kind, list[_Gpu]]:
        """The GPUs with devices that fulfil all these expressions, by the kind of the devices."""
        found = self._selected.get(expressions)
        if found is None:
            names = attributes_in(expressions)
            found = self._selected[expressions] = {}
            for node, gpu, attributes, shares in self._all():
                for kind in DEVICE_KINDS:
                    size = device_memory(kind, gpu.memory, shares)
                    if _fulfils(expressions, _device(kind, size, attributes, names)):
                        one = _Gpu(node, gpu.uuid, size, attributes)
                        found.setdefault(kind, []).append(one)
        return found

    def _all(self) -> list[tuple[str, NodeGpu, Attributes, int]]:
        if self._gpus is None:
            self._gpus = [
                (name, gpu, attributes, status.shares)
                for name, status in self._nodes.items()
                for gpu, attributes in _attributes(status)
            ]
        return self._gpus


def demand_of(
    name: str,
    claim: ResourceClaim,
    classes: Mapping[str, DeviceClass],
    gpus: Devices,
) -> ClaimDemand | None:
    """What a claim asks for that its pod calls `name`; None if it asks for no devices of ours.

    InvalidClaimError if it cannot be decided here.
    """
    devices = claim.spec.devices
    ours = [one for one in devices.requests if _is_ours(one, classes)]
    if not ours:
        return None
    if len(ours) < len(devices.requests):
        raise InvalidClaimError(
            f"it asks for devices of {DRIVER} and of other drivers",
            "Write a claim for each driver.",
            reason="UnsupportedClaim",
        )
    exact = [_checked(one) for one in ours]
    first = exact[0]
    if any(_alike(one) != _alike(first) for one in exact):
        raise InvalidClaimError(
            "its requests ask for different devices",
            "Write a claim for each, or one request with a count.",
            reason="UnsupportedClaim",
        )
    names = tuple(one.name for one, what in zip(ours, exact, strict=True) for _ in _count(what))
    if len(names) > MAX_SLICES:
        raise InvalidClaimError(f"it asks for {len(names)} GPUs, of {MAX_SLICES} at most")
    _check_constraints(devices.constraints, {one.name for one in ours})
    of_class = classes.get(first.device_class_name)
    if of_class is None:
        raise InvalidClaimError(
            f"its class {first.device_class_name} does not exist",
            "Create it, or name another one: kubectl get deviceclasses.",
        )
    kind, selected = _selected(first, of_class, gpus)
    same = [one.match_attribute for one in devices.constraints if one.match_attribute]
    groups = list(_grouped(selected, [one.removeprefix(f"{DRIVER}/") for one in same]))
    if not groups:
        raise InvalidClaimError(
            "no GPU has what its selectors and constraints ask for",
            "It is tried again when nodes change.",
            reason="NoMatchingGPU",
        )
    config = _config(claim, ours, of_class)
    request = _request(name, kind, len(names), first, ours, config)
    options = tuple(_option(request, one, gpus.counts) for one in groups)
    return ClaimDemand(name, names, options, config)


# --- what is understood ---------------------------------------------------------------------------


def _is_ours(request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> bool:
    """Whether a request can be for devices of ours, as far as anybody says it."""
    exactly = request.exactly
    if exactly is None:
        return any(DRIVER.encode() in bytes(one) for one in request.first_available)
    found = classes.get(exactly.device_class_name)
    selectors = (*(found.spec.selectors if found else ()), *exactly.selectors)
    return any(DRIVER in one.cel.expression for one in selectors if one.cel is not None)


def _checked(request: DeviceRequest) -> ExactRequest:
    exactly = request.exactly
    if exactly is None:
        raise _unsupported(request, "is a list of alternatives (firstAvailable)", "exactly")
    if exactly.allocation_mode != EXACT:
        mode = exactly.allocation_mode
        raise _unsupported(request, f"has allocationMode {mode}", f"allocationMode: {EXACT}")
    if exactly.admin_access:
        raise _unsupported(request, "has adminAccess, which grants do not have", "no adminAccess")
    if exactly.tolerations:
        raise _unsupported(
            request, "tolerates device taints, which keep other schedulers away", "no tolerations"
        )
    if exactly.count < 1:
        raise _unsupported(request, f"has a count of {exactly.count}", "a count of 1 or more")
    return exactly


def _unsupported(request: DeviceRequest, has: str, instead: str) -> InvalidClaimError:
    return InvalidClaimError(
        f"request {request.name!r} {has}: Aliquot's scheduler does not allocate that",
        f"Write {instead}.",
        reason="UnsupportedClaim",
    )


def _alike(request: ExactRequest) -> object:
    capacity = request.capacity.requests if request.capacity else {}
    return request.device_class_name, request.selectors, sorted(capacity.items())


def _count(request: ExactRequest) -> range:
    return range(min(request.count, MAX_SLICES + 1))


def _check_constraints(constraints: Sequence[DeviceConstraint], requests: set[str]) -> None:
    for one in constraints:
        if one.distinct_attribute in ALWAYS_DISTINCT and not one.match_attribute:
            continue
        covers = not one.requests or requests <= set(one.requests)
        domain, _, _ = (one.match_attribute or "").partition("/")
        if not covers or domain != DRIVER or one.distinct_attribute:
            what = one.match_attribute or one.distinct_attribute
            raise InvalidClaimError(
                f"it has a constraint with {what!r} that Aliquot's scheduler does not understand",
                f"Use matchAttribute with an attribute of {DRIVER} for all requests, or"
                f" distinctAttribute: {DRIVER}/uuid.",
                reason="UnsupportedClaim",
            )


# --- GPUs -----------------------------------------------------------------------------------------


def _selected(request: ExactRequest, of: DeviceClass, gpus: Devices) -> tuple[Kind, list[_Gpu]]:
    """The kind of the devices that the selectors select, and the GPUs that have such a device."""
    selectors = (*of.spec.selectors, *request.selectors)
    expressions = tuple(one.cel.expression for one in selectors if one.cel is not None)
    if len(expressions) < len(selectors):
        raise InvalidClaimError("it has a selector that is not in CEL", reason="UnsupportedClaim")
    asked = request.capacity.requests if request.capacity else {}
    unknown = sorted(name for name in asked if name not in CAPACITIES)
    if unknown:
        raise InvalidClaimError(
            f"it asks for {unknown[0]}, which no device has",
            f"Devices have {MEMORY} and {COMPUTE}.",
            reason="UnsupportedClaim",
        )
    try:
        found = gpus.select(expressions)
    except UnknownExpressionError as error:
        raise InvalidClaimError(error.message, error.hint, reason="UnsupportedClaim") from error
    if len(found) > 1:
        raise InvalidClaimError(
            f"its class {request.device_class_name} has {' and '.join(found)} devices, and a claim"
            " has GPUs of one kind",
            f'Add a selector on device.attributes["{DRIVER}"].kind.',
            reason="UnsupportedClaim",
        )
    kind, some = next(iter(found.items()), ("sliced", []))
    least = 0 if kind == "sliced" else amount_of(MEMORY, asked) or 0
    return kind, [one for one in some if one.size >= least]


def _attributes(status: GpuNodeStatus) -> Iterator[tuple[NodeGpu, Attributes]]:
    """Each GPU of a node with the attributes that its agent publishes."""
    links = {one.index: [(link.gpu, link.kind) for link in one.links] for one in status.gpus}
    groups = link_groups(links)
    for one in status.gpus:
        yield (
            one,
            attributes_of(
                one.uuid,
                one.index,
                model=one.model,
                strength=one.strength,
                neighbours=groups.get(one.index),
                numa=one.numa,
                driver_version=status.driver_version,
            ),
        )


def _device(kind: Kind, size: int, attributes: Attributes, names: frozenset[str]) -> Device:
    """A device with the attributes of these names: most GPUs differ in no others."""
    capacity = [(MEMORY, size), *([(COMPUTE, CORE_UNITS)] if kind == "sliced" else [])]
    some = ((name, value) for name, value in attributes.items() if name in names)
    return Device((("kind", kind), *some), tuple(capacity))


@lru_cache(maxsize=REMEMBERED)
def _fulfils(expressions: tuple[str, ...], device: Device) -> bool:
    return all(fulfils(device, one) for one in expressions)


def _grouped(gpus: Sequence[_Gpu], same: Sequence[str]) -> Iterator[list[_Gpu]]:
    """GPUs that have the same values of these attributes."""
    groups: dict[tuple[object, ...], list[_Gpu]] = {}
    for one in gpus:
        if all(name in one.attributes for name in same):
            key: tuple[object, ...] = tuple(one.attributes[name] for name in same)
            groups.setdefault(key, []).append(one)
    for key in sorted(groups, key=str):
        yield groups[key]


def _option(request: ContainerRequest, gpus: Sequence[_Gpu], counts: Mapping[str, int]) -> Option:
    """A request for these GPUs. Where they are all GPUs of their nodes, the nodes say enough."""
    found = Counter(one.node for one in gpus)
    if any(count < counts[node] for node, count in found.items()):
        request = replace(request, wishes=Wishes(named=frozenset(one.uuid for one in gpus)))
    return Option(request, None if len(found) == len(counts) else frozenset(found))


# --- the request ----------------------------------------------------------------------------------


def _request(  # noqa: PLR0913, PLR0917 - all that makes a request
    name: str,
    kind: Kind,
    gpus: int,
    exact: ExactRequest,
    requests: Sequence[DeviceRequest],
    config: Sequence[AllocationConfig],
) -> ContainerRequest:
    given = {parameters_of(one.name, config) for one in requests}
    if len(given) > 1:
        raise InvalidClaimError(
            "its requests have different parameters, and a claim has one grant",
            "Write a claim for each.",
        )
    (parameters,) = given
    asked = exact.capacity.requests if exact.capacity else {}
    memory, compute = amount_of(MEMORY, asked), amount_of(COMPUTE, asked)
    if compute is not None and (kind != "sliced" or not 0 <= compute <= CORE_UNITS):
        raise InvalidClaimError(
            f"it asks for compute {compute} of {kind} GPUs",
            f"Slices have a share of compute, of 0 to {CORE_UNITS} percent.",
        )
    if memory is not None and memory > MOST_BYTES:
        raise InvalidClaimError(f"it asks for {memory} bytes of memory, which no GPU has")
    policy = parameters.policy or Policy.ELASTIC
    if policy is Policy.HARD and not compute:
        raise InvalidClaimError(
            f"it has the policy hard and no share of compute to enforce (its GPUs are {kind})",
            "Ask for an amount of compute, or leave the policy out.",
        )
    size = 0
    if kind == "sliced" and memory is not None:
        size = max(1, -(-memory // MEMORY_UNIT)) * MEMORY_UNIT
    return ContainerRequest(
        container=name,
        kind=kind,
        gpus=gpus,
        memory=size,
        memory_percent=100 if kind == "sliced" and memory is None else 0,
        compute=CORE_UNITS if kind == "whole" else compute or 0,
        policy=policy,
        priority=parameters.priority or Priority.NORMAL,
        of_claim=True,
    )


def _config(
    claim: ResourceClaim, requests: Sequence[DeviceRequest], of: DeviceClass
) -> tuple[AllocationConfig, ...]:
    """The parameters of the class, for all its requests, and then those of the claim."""
    names = tuple(one.name for one in requests)
    replaced = msgspec.structs.replace
    return (
        *(replaced(one, source="FromClass", requests=names) for one in of.spec.config),
        *(replaced(one, source="FromClaim") for one in claim.spec.devices.config),
    )
