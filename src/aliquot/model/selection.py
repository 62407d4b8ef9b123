"""Which GPUs a request may use: by model, by name, and not those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from aliquot.model.gpu import Gpu

MAX_NAMED = 64  # GPUs or models in one option
_LONGEST = 100  # characters of a GPU or model


@dataclass(frozen=True, slots=True)
class GpuSelection:
    """GPUs of one of the `models`, among the `named` ones, and none that is `excluded`.

    A field without entries allows every GPU. A model is a part of the name that the driver reports,
    in any case. A GPU is named by its UUID, the beginning of its UUID, or its index.
    """

    models: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        options = (("--model", self.models), ("--gpu", self.named), ("--not-gpu", self.excluded))
        for option, words in options:
            if len(words) > MAX_NAMED:
                raise InvalidValueError(f"{option} is given {len(words)} times, more than 64 times")
            for word in words:
                if not word or len(word) > _LONGEST or not word.isprintable():
                    raise InvalidValueError(
                        f"{option} {word!r} names nothing",
                        "Write it as `aliquot gpus` does: a model such as H100, a GPU such as 0 or"
                        " GPU-5f3a…",
                    )

    def __bool__(self) -> bool:
        return bool(self.models or self.named or self.excluded)

    def allows(self, gpu: Gpu) -> bool:
        """Whether the request may use this GPU."""
        return self.why_not(gpu) is None

    def why_not(self, gpu: Gpu) -> str | None:
        """Why the request may not use this GPU; None if it may."""
        if any(names_gpu(word, gpu) for word in self.excluded):
            return "--not-gpu excludes it"
        if self.named and not any(names_gpu(word, gpu) for word in self.named):
            return "--gpu names others"
        if self.models and not any(word.casefold() in gpu.name.casefold() for word in self.models):
            return f"it is not of the model {' or '.join(self.models)}"
        return None

    def options(self) -> str:
        """The options that say this, for a sentence."""
        options = (("--model", self.models), ("--gpu", self.named), ("--not-gpu", self.excluded))
        return " ".join(f"{option} {word}" for option, words in options for word in words)


def names_gpu(word: str, gpu: Gpu) -> bool:
    """Whether this word means the GPU: its index, its UUID, or the beginning of its UUID."""
    if word.startswith(("GPU-", "MIG-")):
        return gpu.uuid.startswith(word)
    return word == str(gpu.index)
