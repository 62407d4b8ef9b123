"""What the containers of a pod ask for. Nothing here does input or output.

A container asks for one kind of part: whole cards, shares of shared cards, or slices with an amount
of memory and perhaps of compute. Its resources say how much, by one of the presets; annotations of
the pod say the rest, for all its containers: how many cards the amounts are split over, which
models, policy and priority, and compute where no resource says it.

`aliquot.io/memory` and `aliquot.io/compute` are what the pod's slices are to have while they run:
the agent follows them. They are no part of what is asked for, but for compute that no resource
names. What makes no sense is refused by `BadRequestError`, which names the value and the way out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from aliquot.kubernetes import names
from aliquot.kubernetes.presets import ALIQUOT
from aliquot.model import (
    MAX_SLICES,
    Policy,
    Priority,
    format_bytes,
    parse_amount,
    parse_share,
)
from aliquot.model.errors import AliquotError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.kubernetes.api.objects import Container, Pod, Quantity
    from aliquot.kubernetes.plan import Kind
    from aliquot.kubernetes.presets import Preset
    from aliquot.model import Amount

_SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000) ** power for power, unit in enumerate(("k", "M", "G", "T"), 1)},
    **{unit: Fraction(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
}
QUANTITIES = 1 << 12  # that are remembered: most pods ask for what others did
_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?)(?P<suffix>[A-Za-z]*)", re.ASCII)


class BadRequestError(AliquotError):
    """A pod asks for what makes no sense; `reason` is the word for its event."""

    def __init__(self, reason: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the annotations of a pod say of all its slices; they may change while it runs."""

    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL
    memory: Amount | None = None
    compute: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks for: on each of `gpus` different cards the same part.

    A slice has `memory` bytes of each card, or `memory_percent` of its memory; of a whole or shared
    card the card and its node say how much that is. `compute` is percent of each card; 0 is an
    equal part of what the others leave. `models` are words that a card's model must have one of.
    `units` is what the kubelet will ask the agent for: resource and count. `init`: it ends before
    the others begin, and they get its device ids again.
    """

    container: str
    kind: Kind
    gpus: int
    memory: int = 0
    memory_percent: int = 0
    compute: int = 0
    models: frozenset[str] = frozenset()
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL
    units: tuple[tuple[str, int], ...] = ()
    init: bool = False

    def memory_of(self, card: int, shares: int) -> int:
        """Bytes of a card of that size, on a node whose shared cards have so many shares."""
        if self.kind == "whole":
            return card
        if self.kind == "shared":
            return card // shares
        return card * self.memory_percent // 100 if self.memory_percent else self.memory

    @property
    def reserved(self) -> int:
        """Percent of each card's compute that no other can have."""
        if self.kind == "whole":
            return 100
        return 0 if self.priority is Priority.BACKGROUND else self.compute

    def __str__(self) -> str:
        cards = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        on = f" of {' or '.join(sorted(self.models))}" if self.models else ""
        if self.kind != "sliced":
            return f"{self.kind}: {cards}{on}"
        size = f"{self.memory_percent}%" if self.memory_percent else format_bytes(self.memory)
        share = f", {self.compute}% of compute" if self.compute else ""
        return f"sliced: {size}{share} of {'each of ' if self.gpus > 1 else ''}{cards}{on}"


def requests_of(pod: Pod, presets: Sequence[Preset] = (ALIQUOT,)) -> tuple[ContainerRequest, ...]:
    """What the pod's containers ask for, init containers first; without those that ask for none."""
    settings = settings_of(pod)
    found = [
        _request(pod, one, presets, settings, init=one.restart_policy != "Always")
        for one in pod.spec.init_containers
    ]
    found += [_request(pod, one, presets, settings, init=False) for one in pod.spec.containers]
    return tuple(one for one in found if one is not None)


def asks(pod: Pod, presets: Sequence[Preset] = (ALIQUOT,)) -> bool:
    """Whether the pod names any of the presets' resources, sensibly or not."""
    every = (*pod.spec.init_containers, *pod.spec.containers)
    return any(container_asks(container, presets) for container in every)


def container_asks(container: Container, presets: Sequence[Preset] = (ALIQUOT,)) -> bool:
    """Whether a container names any of the presets' resources, sensibly or not."""
    return bool(_presets_of(container, presets))


def settings_of(pod: Pod) -> Settings:
    """What the pod's annotations say of its slices; BadRequestError names all that are wrong."""
    notes = _Notes(pod.metadata.annotations)
    settings = Settings(
        policy=notes.read(names.POLICY, Policy, f"one of {', '.join(Policy)}") or Policy.ELASTIC,
        priority=notes.read(names.PRIORITY, Priority, f"one of {', '.join(Priority)}")
        or Priority.NORMAL,
        memory=notes.read(names.MEMORY, _memory, "an amount as 8GiB, 50%, or units of 256 MiB"),
        compute=notes.read(names.COMPUTE, parse_share, "1 to 100 percent, or equal"),
    )
    notes.check()
    return settings


def hard_without_compute(container: str, kind: Kind, ask_with: str) -> BadRequestError:
    """Why a container without a share of compute cannot be held to it, and what it can do."""
    if kind != "sliced":
        return BadRequestError(
            "HardWithoutCompute",
            f"container {container!r} has {names.POLICY}: hard and {kind} GPUs, of which it has no"
            " share of compute that it could be held to",
            "Leave the policy out; only slices can be held to a share.",
        )
    return BadRequestError(
        "HardWithoutCompute",
        f"container {container!r} has {names.POLICY}: hard and no share of compute that it could"
        " be held to",
        f"Ask for compute with {ask_with}, or leave the policy out.",
    )


@lru_cache(maxsize=QUANTITIES)
def quantity(value: Quantity) -> Fraction:
    """A Kubernetes quantity as a number: `3k` is 3000."""
    match = _QUANTITY.fullmatch(str(value).strip())
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
    asked = _Asked(pod, container.name, preset, _counts(container, preset))
    kind, gpus, memory, percent, compute = _sizes(asked)
    _check_cards(asked, gpus)
    if kind == "sliced" and not compute:
        compute = settings.compute or 0
    if settings.policy is Policy.HARD and kind != "whole" and not compute:
        raise hard_without_compute(container.name, kind, preset.core or names.COMPUTE)
    return ContainerRequest(
        container=container.name,
        kind=kind,
        gpus=gpus,
        memory=memory,
        memory_percent=percent,
        compute=100 if kind == "whole" else compute,
        models=_models(pod, preset),
        policy=settings.policy,
        priority=settings.priority,
        units=asked.units(),
        init=init,
    )


def _presets_of(container: Container, presets: Sequence[Preset]) -> list[Preset]:
    named = {**container.resources.requests, **container.resources.limits}
    return [one for one in presets if any(name in named for name in one.resources)]


def _preset_of(container: Container, presets: Sequence[Preset]) -> Preset | None:
    found = _presets_of(container, presets)
    if len(found) > 1:
        raise BadRequestError(
            "SeveralKinds",
            f"container {container.name!r} asks for GPUs by the names of "
            + " and ".join(one.name for one in found),
            "Use the names of one of them.",
        )
    return found[0] if found else None


def _counts(container: Container, preset: Preset) -> dict[str, int]:
    named = {**container.resources.requests, **container.resources.limits}
    counts = {}
    for resource in preset.resources:
        if resource not in named:
            continue
        try:
            number = quantity(named[resource])
        except InvalidValueError as error:
            number = Fraction(-1)
            text = error.message
        else:
            text = f"{resource}: {named[resource]} of container {container.name!r} asks for nothing"
        if number < 1 or number.denominator != 1:
            raise BadRequestError(
                "BadAmount", text, f"Ask for at least 1, or leave {resource} out."
            )
        counts[resource] = int(number)
    return counts


_Sizes = tuple["Kind", int, int, int, int]  # kind, cards, bytes and percent of memory, compute


def _sizes(asked: _Asked) -> _Sizes:
    preset = asked.preset
    if preset.per_card:
        return _of_each_card(asked)
    kinds = [
        preset.whole in asked.counts,
        preset.shared in asked.counts,
        preset.core in asked.counts or preset.memory in asked.counts,
    ]
    if sum(kinds) > 1:
        raise BadRequestError(
            "SeveralKinds",
            f"{asked.where} asks for {' and '.join(asked.counts)}: a container has one kind of"
            " part",
            "Ask for whole cards, for shares, or for memory and compute; not for two of these.",
        )
    if kinds[0]:
        return "whole", asked.of(preset.whole), 0, 0, 0
    if kinds[1]:
        return "shared", asked.of(preset.shared), 0, 0, 0
    if preset.whole_by_core and asked.of(preset.core) >= names.CORE_UNITS:
        return _whole_by_core(asked)
    return _of_all_together(asked)


def _whole_by_core(asked: _Asked) -> _Sizes:
    core = asked.of(asked.preset.core)
    cards, rest = divmod(core, names.CORE_UNITS)
    if rest:
        raise BadRequestError(
            "UnevenSplit",
            f"{asked.preset.core}: {core} of {asked.where} is no number of whole cards",
            f"Ask for less than {names.CORE_UNITS}, or for a multiple of {names.CORE_UNITS}.",
        )
    return "whole", cards, 0, 0, 0


def _of_all_together(asked: _Asked) -> _Sizes:
    preset = asked.preset
    memory, core = asked.of(preset.memory), asked.of(preset.core)
    if not memory:
        raise BadRequestError(
            "CoreWithoutMemory",
            f"{asked.where} asks for {preset.core}: {core} and for no memory",
            f"Add {preset.memory}, in units of {format_bytes(preset.memory_unit)}.",
        )
    cards = _cards_to_split_over(asked.pod)
    for resource, count in ((preset.memory, memory), (preset.core, core)):
        if count % cards:
            raise BadRequestError(
                "UnevenSplit",
                f"{resource}: {count} of {asked.where} cannot be split evenly over {cards} GPUs",
                f"Ask for a multiple of {cards}, or change the annotation {names.GPUS}.",
            )
    compute = core // cards
    if compute > names.CORE_UNITS:
        raise BadRequestError(
            "TooMuchCore",
            f"{preset.core}: {core} of {asked.where} is {compute} of each of {cards} GPUs, and a"
            f" GPU has {names.CORE_UNITS}",
            f"Ask for less, or for more GPUs with the annotation {names.GPUS}.",
        )
    return "sliced", cards, memory // cards * preset.memory_unit, 0, compute


def _of_each_card(asked: _Asked) -> _Sizes:
    preset = asked.preset
    cards = asked.of(preset.whole) or 1
    memory, percent = asked.of(preset.memory), asked.of(preset.memory_percent)
    core = asked.of(preset.core)
    for resource, value in ((preset.core, core), (preset.memory_percent, percent)):
        if value > 100:
            raise BadRequestError(
                "TooMuch",
                f"{resource}: {value} of {asked.where} is more than all of a card",
                "Ask for 1 to 100 percent.",
            )
    if memory and percent:
        raise BadRequestError(
            "SeveralKinds",
            f"{asked.where} says its memory twice: {preset.memory} and {preset.memory_percent}",
            "Leave one of them out.",
        )
    if preset.whole not in asked.counts:
        raise BadRequestError(
            "NoGPUs",
            f"{asked.where} asks for {' and '.join(asked.counts)} and for no {preset.whole}",
            f"Add {preset.whole}, the number of cards.",
        )
    if not memory and percent in {0, 100} and core in {0, 100}:
        return "whole", cards, 0, 0, 0
    return "sliced", cards, memory * preset.memory_unit, 0 if memory else percent or 100, core


def _cards_to_split_over(pod: Pod) -> int:
    text = pod.metadata.annotations.get(names.GPUS)
    if text is None:
        return 1
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) >= 1):
        raise BadRequestError(
            "BadAnnotation",
            f"the annotation {names.GPUS} is {text!r}, which is no number of GPUs",
            f"Write 1 to {MAX_SLICES}.",
        )
    return int(text)


def _check_cards(asked: _Asked, gpus: int) -> None:
    if gpus > MAX_SLICES:
        raise BadRequestError(
            "TooManyGPUs",
            f"{asked.where} asks for {gpus} GPUs, and a container can have {MAX_SLICES}",
            f"Ask for 1 to {MAX_SLICES}.",
        )


def _models(pod: Pod, preset: Preset) -> frozenset[str]:
    text = pod.metadata.annotations.get(preset.models, "")
    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    if text and not words:
        raise BadRequestError(
            "BadAnnotation",
            f"the annotation {preset.models} is {text!r}, which names no model",
            "Write words of GPU models with commas between them, for example H100,A100.",
        )
    return words


def _memory(text: str) -> Amount:
    """An amount; a plain number is units."""
    units = text.strip()
    if units.isascii() and units.isdecimal():
        return parse_amount(str(int(units) * names.MEMORY_UNIT))
    return parse_amount(text)


_Read = TypeVar("_Read")


class _Notes:
    """The annotations of a pod as they are read, and those that make no sense."""

    def __init__(self, notes: dict[str, str]) -> None:
        self._notes = notes
        self._wrong: list[tuple[str, str, str]] = []  # name, value, and what can be written

    def read(self, name: str, read: Callable[[str], _Read], ways: str) -> _Read | None:
        text = self._notes.get(name)
        if text is None:
            return None
        try:
            return read(text)
        except (ValueError, InvalidValueError):
            self._wrong.append((name, text, ways))
            return None

    def check(self) -> None:
        if not self._wrong:
            return
        what = (f"the annotation {name} is {text!r}" for name, text, _ in self._wrong)
        each = len(self._wrong) > 1
        ways = (f"{ways} for {name}" if each else ways for name, _, ways in self._wrong)
        raise BadRequestError(
            "BadAnnotation",
            f"{' and '.join(what)}, which makes no sense",
            f"Write {'; '.join(ways)}.",
        )
