"""What the containers of a pod ask for. No input or output.

A container asks for one kind of GPUs: whole GPUs, shares of shared GPUs, or slices with an amount
of memory and perhaps of compute. Its resources give the amounts, by the names of one preset.
Annotations of the pod give the rest for all its containers: over how many GPUs the amounts are
split, models, policy and priority, and compute if no resource gives it.

The annotations `aliquot.io/memory` and `aliquot.io/compute` resize the pod's slices while they run.
They do not change the request, except for compute that no resource gives. An invalid request raises
`InvalidRequestError`, which names the value and what to write instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.decode import shortened
from aliquot.kubernetes.api.neighbours import PodWishes, wishes_of
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.model import (
    MAX_SLICES,
    Policy,
    Priority,
    format_bytes,
    parse_amount,
    parse_share,
)
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.parking_rule import parse_parking_rule
from aliquot.model.strength import UNKNOWN, format_strength, parse_strength

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aliquot.kubernetes.api.objects import Container, Pod, Quantity
    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.model import Amount
    from aliquot.model.parking_rule import ParkingRule
    from aliquot.placement.core.wishes import Wishes

_SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000) ** power for power, unit in enumerate(("k", "M", "G", "T"), 1)},
    **{unit: Fraction(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
}
_POLICIES = f"one of {', '.join(Policy)}"
_PRIORITIES = f"one of {', '.join(Priority)}"
_PARKING = "a time as 10m or 2h, 10m,always or never"
MOST_BYTES = 1 << 50  # of a GPU: no GPU has a PiB
_LONGEST_QUANTITY = 64
QUANTITIES = 1 << 12  # that are cached: most pods ask for the same amounts as others
_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?)(?P<suffix>[A-Za-z]*)", re.ASCII)


class InvalidRequestError(AliquotError):
    """A pod's request is invalid; `reason` is the reason of its event."""

    def __init__(self, reason: str, message: str, hint: str) -> None:
        super().__init__(shortened(message), hint)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all slices of a pod, by its annotations; they may change while it runs."""

    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL
    memory: Amount | None = None
    compute: int | None = None
    swap: bool | None = None  # of new containers, as `park_after`
    park_after: ParkingRule | None = None


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks for: the same part of each of `gpus` different GPUs.

    A slice has `memory` bytes of each GPU, or `memory_percent` of its memory; for a whole or shared
    GPU the memory depends on the GPU and its node. `compute` is percent of each GPU; 0 is an equal
    part of what the others leave. A GPU's model must contain one of the words `models` and none of
    `not_models`, and a GPU weaker than `min_strength` does not fit. `wishes` are about GPUs by UUID
    and about neighbours; if `alone`, no other container is on its GPUs. `units` are what the
    kubelet asks the agent for: resource and count. `init`: the container ends before the others
    start, and they get its device ids again. `swap` and `park_after` as in `model.request`; None:
    the pod does not say it. `overcommit`: it may take turns with memory, and all slices of its GPU
    have at most so many times the GPU's memory then (0: as the node says); None: it may not.
    `of_claim`: it is a resource claim that asks, by the pod's name for it.
    """

    container: str
    kind: Kind
    gpus: int
    memory: int = 0
    memory_percent: int = 0
    compute: int = 0
    models: frozenset[str] = frozenset()
    not_models: frozenset[str] = frozenset()
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL
    units: tuple[tuple[str, int], ...] = ()
    init: bool = False
    min_strength: float = 0.0
    wishes: Wishes | None = None
    alone: bool = False
    swap: bool | None = None
    park_after: ParkingRule | None = None
    of_claim: bool = False
    overcommit: float | None = None

    @property
    def asker(self) -> str:
        """Who asks, for messages."""
        return f"{'claim' if self.of_claim else 'container'} {self.container!r}"

    def accepts(self, model: str) -> bool:
        """Whether it may use GPUs of this model."""
        name = model.casefold()
        named = not self.models or any(word.casefold() in name for word in self.models)
        return named and not any(word.casefold() in name for word in self.not_models)

    def memory_of(self, gpu_bytes: int, shares: int) -> int:
        """Bytes on a GPU of that size, on a node whose shared GPUs have so many shares."""
        if self.kind == "whole":
            return gpu_bytes
        if self.kind == "shared":
            return gpu_bytes // shares
        return gpu_bytes * self.memory_percent // 100 if self.memory_percent else self.memory

    @property
    def reserved(self) -> int:
        """Percent of each GPU's compute that no other container can have."""
        if self.kind == "whole":
            return 100
        return 0 if self.priority is Priority.BACKGROUND else self.compute

    def __str__(self) -> str:
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        on = f" of {' or '.join(sorted(self.models))}" if self.models else ""
        on += f" and not {' or '.join(sorted(self.not_models))}" if self.not_models else ""
        if self.min_strength:
            on += f" with strength {format_strength(self.min_strength)} or more"
        on += f" {self.wishes}" if self.wishes is not None and str(self.wishes) else ""
        on += " alone" if self.alone else ""
        if self.kind != "sliced":
            return f"{self.kind}: {gpus}{on}"
        size = f"{self.memory_percent}%" if self.memory_percent else format_bytes(self.memory)
        share = f", {self.compute}% of compute" if self.compute else ""
        return f"sliced: {size}{share} of {'each of ' if self.gpus > 1 else ''}{gpus}{on}"


def requests_of(pod: Pod, presets: Sequence[Preset] = (ALIQUOT,)) -> tuple[ContainerRequest, ...]:
    """The requests of the containers that ask for GPUs, init containers first."""
    settings = settings_of(pod)
    found = [
        _request(pod, one, presets, settings, init=one.restart_policy != "Always")
        for one in pod.spec.init_containers
    ]
    found += [_request(pod, one, presets, settings, init=False) for one in pod.spec.containers]
    return tuple(one for one in found if one is not None)


def in_turns(requests: Iterable[ContainerRequest], most: float) -> tuple[ContainerRequest, ...]:
    """The same requests of a pod, those with swap as their queue lets them take turns.

    None does if init containers have GPUs: containers that get each other's units stay on the GPU.
    """
    requests = tuple(requests)
    if any(one.init for one in requests):
        return requests
    return tuple(
        replace(one, overcommit=most) if one.swap and not one.alone else one for one in requests
    )


def asks(pod: Pod, presets: Sequence[Preset] = (ALIQUOT,)) -> bool:
    """Whether the pod asks for any resource of the presets, even in an invalid request."""
    return any(container_asks(container, presets) for container in _containers(pod))


def container_asks(container: Container, presets: Sequence[Preset] = (ALIQUOT,)) -> bool:
    """Whether a container asks for any resource of the presets, even in an invalid request."""
    return bool(_presets_of(container, presets))


def names_resources(pod: Pod, presets: Sequence[Preset] = (ALIQUOT,)) -> bool:
    """Whether the pod names any resource of the presets, also with the amount 0.

    kube-scheduler asks the extender about all of these pods.
    """
    resources = {name for preset in presets for name in preset.resources}
    return any(not resources.isdisjoint(_amounts(one)) for one in _containers(pod))


def settings_of(pod: Pod) -> Settings:
    """The slice settings in a pod's annotations; InvalidRequestError names all invalid ones."""
    notes = _Annotations(pod.metadata.annotations)
    settings = Settings(
        policy=notes.read(names.POLICY, Policy, _POLICIES) or Policy.ELASTIC,
        priority=notes.read(names.PRIORITY, Priority, _PRIORITIES) or Priority.NORMAL,
        memory=notes.read(names.MEMORY, _memory, "an amount as 8GiB, 50%, or units of 256 MiB"),
        compute=notes.read(names.COMPUTE, parse_share, "1 to 100 percent, or equal"),
        swap=notes.read(names.SWAP, _truth, '"true" or "false"'),
        park_after=notes.read(names.PARK_AFTER, parse_parking_rule, _PARKING),
    )
    notes.check()
    return settings


def hard_without_compute(container: str, kind: Kind, ask_with: str) -> InvalidRequestError:
    """The error for a container with the policy `hard` and no share of compute."""
    if kind != "sliced":
        return InvalidRequestError(
            "HardWithoutCompute",
            f"container {container!r} has {names.POLICY}: hard and {kind} GPUs, which have no share"
            " of compute to enforce",
            "Leave the policy out; only slices have a share of compute.",
        )
    return InvalidRequestError(
        "HardWithoutCompute",
        f"container {container!r} has {names.POLICY}: hard and no share of compute to enforce",
        f"Ask for compute with {ask_with}, or leave the policy out.",
    )


@lru_cache(maxsize=QUANTITIES)
def quantity(value: Quantity) -> Fraction:
    """A Kubernetes quantity as a number: `3k` is 3000."""
    text = str(value).strip()
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_QUANTITY else None
    if match is None or match["suffix"] not in _SUFFIXES:
        raise InvalidValueError(f"{value!r} is no quantity", "Write a whole number.")
    return Fraction(match["number"]) * _SUFFIXES[match["suffix"]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A container with the counts it names of one preset."""

    pod: Pod
    name: str
    preset: Preset
    counts: dict[str, int]

    def of(self, resource: str) -> int:
        return self.counts.get(resource, 0)

    @property
    def where(self) -> str:
        return f"container {self.name!r}"

    def units(self) -> tuple[tuple[str, int], ...]:
        seen = self.preset.roles
        return tuple(sorted((name, n) for name, n in self.counts.items() if name in seen))


def _request(
    pod: Pod,
    container: Container,
    presets: Sequence[Preset],
    settings: Settings,
    *,
    init: bool,
) -> ContainerRequest | None:
    preset = _preset_of(container, presets)
    if preset is None:
        return None
    _check_foreign(pod, preset)
    asked = _Asked(pod, container.name, preset, _counts(container, preset))
    kind, gpus, memory, percent, compute = _sizes(asked)
    _check_count(asked, gpus)
    _check_memory(asked, memory)
    if kind == "sliced" and not compute:
        compute = settings.compute or 0
    if settings.policy is Policy.HARD and kind != "whole" and not compute:
        raise hard_without_compute(container.name, kind, preset.core or names.COMPUTE)
    wished = _wishes(pod, preset)
    return ContainerRequest(
        container=container.name,
        kind=kind,
        gpus=gpus,
        memory=memory,
        memory_percent=percent,
        compute=100 if kind == "whole" else compute,
        models=_models(pod, preset.models),
        not_models=_models(pod, preset.not_models),
        policy=settings.policy,
        priority=settings.priority,
        units=asked.units(),
        init=init,
        min_strength=_min_strength(pod),
        wishes=wished.wishes,
        alone=wished.alone,
        swap=_swap(asked, kind, gpus, settings),
        park_after=settings.park_after,
    )


def _swap(asked: _Asked, kind: Kind, gpus: int, settings: Settings) -> bool | None:
    """What its annotation says; InvalidRequestError if the container cannot have that."""
    if settings.park_after and not settings.swap:
        raise InvalidRequestError(
            "SwapNotPossible",
            f"the annotation {names.PARK_AFTER} is {settings.park_after}, and {names.SWAP} is not"
            " true: only with that can memory leave the GPU",
            f'Add {names.SWAP}: "true", or remove {names.PARK_AFTER}.',
        )
    if settings.swap and (kind != "sliced" or gpus > 1):
        has = f"slices of {gpus} GPUs" if kind == "sliced" else f"{kind} GPUs"
        raise InvalidRequestError(
            "SwapNotPossible",
            f"the annotation {names.SWAP} is true, and {asked.where} asks for {has}: only the"
            " memory of a slice of one GPU can leave it",
            f"Ask for an amount of memory of one GPU, or remove {names.SWAP}.",
        )
    return settings.swap


def _containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def _amounts(container: Container) -> dict[str, Quantity]:
    return {**container.resources.requests, **container.resources.limits}


def _asked(container: Container) -> dict[str, Quantity]:
    """The amounts that a container asks for; 0 asks for nothing, as for every resource."""
    return {name: value for name, value in _amounts(container).items() if not _is_zero(value)}


@lru_cache(maxsize=QUANTITIES)
def _is_zero(value: Quantity) -> bool:
    try:
        return quantity(value) == 0
    except InvalidValueError:
        return False


def _presets_of(container: Container, presets: Sequence[Preset]) -> list[Preset]:
    asked = _asked(container)
    return [one for one in presets if any(name in asked for name in one.resources)]


def _preset_of(container: Container, presets: Sequence[Preset]) -> Preset | None:
    found = _presets_of(container, presets)
    if len(found) > 1:
        raise InvalidRequestError(
            "SeveralKinds",
            f"container {container.name!r} asks for GPUs by the names of "
            + " and ".join(one.name for one in found),
            "Use the names of one of them.",
        )
    return found[0] if found else None


def _counts(container: Container, preset: Preset) -> dict[str, int]:
    asked = _asked(container)
    counts = {}
    for resource in preset.resources:
        if resource not in asked:
            continue
        try:
            number = quantity(asked[resource])
        except InvalidValueError as error:
            number = Fraction(-1)
            text = error.message
        else:
            text = f"{resource}: {asked[resource]} of container {container.name!r} is not whole"
        if number.denominator != 1 or number < 1:
            raise InvalidRequestError(
                "InvalidAmount", text, f"Ask for a whole number, or leave {resource} out."
            )
        counts[resource] = int(number)
    return counts


_Sizes = tuple["Kind", int, int, int, int]  # kind, GPUs, bytes and percent of memory, compute


def _sizes(asked: _Asked) -> _Sizes:
    preset = asked.preset
    if preset.per_gpu:
        return _per_gpu(asked)
    kinds = [
        preset.whole in asked.counts,
        preset.shared in asked.counts,
        preset.core in asked.counts or preset.memory in asked.counts,
    ]
    if sum(kinds) > 1:
        raise InvalidRequestError(
            "SeveralKinds",
            f"{asked.where} asks for {' and '.join(asked.counts)}: a container has one kind of"
            " GPUs",
            "Ask for whole GPUs, for shares, or for memory and compute; not for two of these.",
        )
    if kinds[0]:
        return "whole", asked.of(preset.whole), 0, 0, 0
    if kinds[1]:
        return "shared", asked.of(preset.shared), 0, 0, 0
    if preset.whole_by_core and asked.of(preset.core) >= names.CORE_UNITS:
        return _whole_by_core(asked)
    return _for_all_gpus(asked)


def _whole_by_core(asked: _Asked) -> _Sizes:
    core = asked.of(asked.preset.core)
    gpus, rest = divmod(core, names.CORE_UNITS)
    if rest:
        raise InvalidRequestError(
            "UnevenSplit",
            f"{asked.preset.core}: {core} of {asked.where} is no number of whole GPUs",
            f"Ask for less than {names.CORE_UNITS}, or for a multiple of {names.CORE_UNITS}.",
        )
    return "whole", gpus, 0, 0, 0


def _for_all_gpus(asked: _Asked) -> _Sizes:
    preset = asked.preset
    memory, core = asked.of(preset.memory), asked.of(preset.core)
    if not memory:
        raise InvalidRequestError(
            "CoreWithoutMemory",
            f"{asked.where} asks for {preset.core}: {core} and for no memory",
            f"Add {preset.memory}, in units of {format_bytes(preset.memory_unit)}.",
        )
    gpus = _gpus_to_split_over(asked.pod)
    for resource, count in ((preset.memory, memory), (preset.core, core)):
        if count % gpus:
            raise InvalidRequestError(
                "UnevenSplit",
                f"{resource}: {count} of {asked.where} cannot be split evenly over {gpus} GPUs",
                f"Ask for a multiple of {gpus}, or change the annotation {names.GPUS}.",
            )
    compute = core // gpus
    if compute > names.CORE_UNITS:
        raise InvalidRequestError(
            "TooMuchCore",
            f"{preset.core}: {core} of {asked.where} is {compute} of each of {gpus} GPUs, and a"
            f" GPU has {names.CORE_UNITS}",
            f"Ask for less, or for more GPUs with the annotation {names.GPUS}.",
        )
    return "sliced", gpus, memory // gpus * preset.memory_unit, 0, compute


def _per_gpu(asked: _Asked) -> _Sizes:
    preset = asked.preset
    gpus = asked.of(preset.whole) or 1
    memory, percent = asked.of(preset.memory), asked.of(preset.memory_percent)
    core = asked.of(preset.core)
    for resource, value in ((preset.core, core), (preset.memory_percent, percent)):
        if value > 100:
            raise InvalidRequestError(
                "TooMuch",
                f"{resource}: {value} of {asked.where} is more than 100 percent of a GPU",
                "Ask for 1 to 100 percent.",
            )
    if memory and percent:
        raise InvalidRequestError(
            "SeveralKinds",
            f"{asked.where} gives its memory twice: {preset.memory} and {preset.memory_percent}",
            "Leave one of them out.",
        )
    if preset.whole not in asked.counts:
        raise InvalidRequestError(
            "NoGPUs",
            f"{asked.where} asks for {' and '.join(asked.counts)} and for no {preset.whole}",
            f"Add {preset.whole}, the number of GPUs.",
        )
    if not memory and percent in {0, 100} and core in {0, 100}:
        return "whole", gpus, 0, 0, 0
    return "sliced", gpus, memory * preset.memory_unit, 0 if memory else percent or 100, core


def _gpus_to_split_over(pod: Pod) -> int:
    text = pod.metadata.annotations.get(names.GPUS)
    if text is None:
        return 1
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) >= 1):
        raise InvalidRequestError(
            "InvalidAnnotation",
            f"the annotation {names.GPUS} is {text!r}, which is no number of GPUs",
            f"Write 1 to {MAX_SLICES}.",
        )
    return int(text)


def _check_count(asked: _Asked, gpus: int) -> None:
    if gpus > MAX_SLICES:
        raise InvalidRequestError(
            "TooManyGPUs",
            f"{asked.where} asks for {gpus} GPUs, and a container can have {MAX_SLICES}",
            f"Ask for 1 to {MAX_SLICES}.",
        )


def _check_memory(asked: _Asked, memory: int) -> None:
    if memory > MOST_BYTES:
        raise InvalidRequestError(
            "InvalidAmount",
            f"{asked.where} asks for {format_bytes(memory)} of a GPU, and no GPU has so much",
            f"Ask for less, in units of {format_bytes(asked.preset.memory_unit)}.",
        )


def _check_foreign(pod: Pod, preset: Preset) -> None:
    """Refuse what an annotation of another project asks for, if Aliquot does not do it.

    A pod that has a node keeps what an earlier version gave it.
    """
    for one in () if pod.spec.node_name else preset.foreign:
        text = pod.metadata.annotations.get(one.name, "").strip()
        if text and text not in one.honoured:
            raise InvalidRequestError(
                "UnsupportedAnnotation",
                f"the annotation {one.name} is {text!r}: {one.why}",
                one.hint,
            )


def _models(pod: Pod, annotation: str) -> frozenset[str]:
    text = pod.metadata.annotations.get(annotation, "")
    if not text:
        return frozenset()
    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise InvalidRequestError(
            "InvalidAnnotation",
            f"the annotation {annotation} is {text!r}, which names no model",
            "Write words of GPU models with commas between them, for example H100,A100.",
        )
    return words


def _wishes(pod: Pod, preset: Preset) -> PodWishes:
    try:
        return wishes_of(pod, preset)
    except InvalidValueError as error:
        raise InvalidRequestError("InvalidAnnotation", error.message, error.hint or "") from error


def _min_strength(pod: Pod) -> float:
    text = pod.metadata.annotations.get(names.MIN_STRENGTH)
    if text is None:
        return UNKNOWN
    try:
        return parse_strength(text)
    except InvalidValueError as error:
        raise InvalidRequestError(
            "InvalidAnnotation",
            f"the annotation {names.MIN_STRENGTH} is {text!r}, which is no strength of a GPU",
            "Write a positive number, for example 100: an A100 has 100, a T4 about 26."
            " `kubectl describe gpunode` shows that of each GPU.",
        ) from error


def _truth(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(text)
    return text == "true"


def _memory(text: str) -> Amount:
    """An amount; a plain number is in units of 256 MiB."""
    units = text.strip()
    if units.isascii() and units.isdecimal():
        return parse_amount(str(int(units) * names.MEMORY_UNIT))
    return parse_amount(text)


_Read = TypeVar("_Read")


class _Annotations:
    """The annotations of a pod, and which of those that were read are invalid."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._invalid: list[tuple[str, str, str]] = []  # name, value, and what is valid

    def read(self, name: str, read: Callable[[str], _Read], ways: str) -> _Read | None:
        text = self._values.get(name)
        if text is None:
            return None
        try:
            return read(text)
        except (ValueError, InvalidValueError):
            self._invalid.append((name, text, ways))
            return None

    def check(self) -> None:
        if not self._invalid:
            return
        what = (f"the annotation {name} is {text!r}" for name, text, _ in self._invalid)
        each = len(self._invalid) > 1
        ways = (f"{ways} for {name}" if each else ways for name, _, ways in self._invalid)
        raise InvalidRequestError(
            "InvalidAnnotation",
            f"{' and '.join(what)}, which is invalid",
            f"Write {'; '.join(ways)}.",
        )
