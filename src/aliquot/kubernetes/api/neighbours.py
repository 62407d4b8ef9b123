"""Which GPUs a pod may use by UUID, and which pods may be beside it, by its annotations.

Labels belong to a namespace: a pod is with, and apart from, pods of its own namespace only. A pod
that is alone shares its GPUs with no pod of any namespace. No input or output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api import names
from aliquot.model.errors import InvalidValueError
from aliquot.model.neighbours import Neighbours
from aliquot.model.selection import MAX_NAMED
from aliquot.placement.core.wishes import Wishes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.presets import Preset

_UUID = "GPU-"
_LONGEST = 100
_ALL = (names.LABEL, names.WITH, names.APART_FROM, names.ALONE)


@dataclass(frozen=True, slots=True)
class PodWishes:
    """What a pod says about its GPUs and its neighbours; `alone`: no other pod is on its GPUs."""

    wishes: Wishes | None = None
    alone: bool = False


NO_WISHES = PodWishes()


def wishes_of(pod: Pod, preset: Preset) -> PodWishes:
    """What a pod's annotations say; InvalidValueError names the one that is invalid."""
    notes = pod.metadata.annotations
    if not any(name in notes for name in (*_ALL, preset.gpus, preset.not_gpus)):
        return NO_WISHES
    asked = _neighbours(notes)
    scope = pod.metadata.namespace
    wishes = Wishes(
        named=_uuids(notes, preset.gpus),
        excluded=_uuids(notes, preset.not_gpus),
        label=scoped(scope, asked.label),
        beside=scoped(scope, asked.beside),
        apart_from=frozenset(scoped(scope, one) for one in asked.apart_from),
    )
    return PodWishes(wishes if wishes != Wishes() else None, asked.alone)


def scoped(namespace: str, label: str | None) -> str:
    """A label as `placement` knows it; empty without one."""
    return f"{namespace}/{label}" if label else ""


def _neighbours(notes: Mapping[str, str]) -> Neighbours:
    alone = notes.get(names.ALONE, "false")
    if alone not in {"true", "false"}:
        raise InvalidValueError(
            f"the annotation {names.ALONE} is {alone!r}", 'Write "true" or "false".'
        )
    try:
        return Neighbours(
            label=_one(notes, names.LABEL),
            beside=_one(notes, names.WITH),
            apart_from=tuple(dict.fromkeys(_words(notes, names.APART_FROM))),
            alone=alone == "true",
        )
    except InvalidValueError as error:  # it speaks of the options of the command line
        hint = (error.hint or "").replace("--", f"{names.GROUP}/")
        raise InvalidValueError(error.message.replace("--", f"{names.GROUP}/"), hint) from error


def _one(notes: Mapping[str, str], name: str) -> str | None:
    text = notes.get(name)
    return None if text is None else text.strip()


def _words(notes: Mapping[str, str], name: str) -> list[str]:
    text = notes.get(name)
    return [] if text is None else [word.strip() for word in text.split(",")]


def _uuids(notes: Mapping[str, str], name: str) -> frozenset[str]:
    if not notes.get(name, "").strip():
        return frozenset()
    words = _words(notes, name)
    valid = all(word.startswith(_UUID) and word != _UUID and word.isprintable() for word in words)
    if not valid or len(words) > MAX_NAMED or max(map(len, words)) > _LONGEST:
        raise InvalidValueError(
            f"the annotation {name} is {notes[name]!r}, which names no GPU",
            f"Write up to {MAX_NAMED} UUIDs of GPUs, or their beginnings, with commas between"
            " them, for example GPU-5f3a1c22; `kubectl describe gpunode` shows them.",
        )
    return frozenset(words)
