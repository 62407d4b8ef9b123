"""The names under which pods ask for GPUs: ours, and those that people know from other projects.

A preset states the names, the unit of memory, whether amounts are of each card or of all together,
and which of its names the kubelet sees (the agent offers these as device plugins, and no others).
A name that the kubelet does not see lives in the extender and in the plan alone: there would be far
too many device ids. The kubelet lets a pod pass that asks for what its node does not offer, and
kube-scheduler does where the extender's configuration says `ignoredByScheduler`.

    preset   a whole card   a share    memory, unit             compute     amounts
    aliquot  gpu            sgpu       vcuda-memory, 256 MiB    vcuda-core  of all together
    tencent  vcuda-core 100            vcuda-memory, 256 MiB    vcuda-core  of all together
    tuya     nvidia.com/gpu sgpu       vcuda-memory, 256 MiB    vcuda-core  of all together
    nvidia   gpu                       gpumem, 1 MiB            gpucores    of each card
                                       gpumem-percentage
    aliyun                             gpu-mem, 1 GiB                       of all together

Of all together: split evenly over as many cards as the annotation `aliquot.io/gpus` says, or on one
card. nvidia is HAMi's way: `gpu` is the number of cards; with nothing else they are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aliquot.kubernetes.names import GROUP, MEMORY_UNIT, MODELS
from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable

Role = Literal["whole", "shared", "core", "memory", "slot"]
"""What one device id of a resource stands for: a whole card; one of the k shares of a shared card;
one of the 100 units of a card's compute; one unit of its memory; a place on a card of any kind,
whose plan says how much of it (`SLOTS` of each card)."""

SLOTS = 10


@dataclass(frozen=True, slots=True)
class Preset:
    """Names of resources; an empty one is not offered. `models` is an annotation."""

    name: str
    whole: str = ""
    shared: str = ""
    core: str = ""
    memory: str = ""
    memory_percent: str = ""
    memory_unit: int = MEMORY_UNIT
    per_card: bool = False
    whole_by_core: bool = False
    models: str = MODELS

    @property
    def resources(self) -> tuple[str, ...]:
        """All its names: what the extender manages."""
        every = (self.whole, self.shared, self.core, self.memory, self.memory_percent)
        return tuple(filter(None, every))

    @property
    def roles(self) -> dict[str, Role]:
        """The names that the kubelet sees, and what one unit of each stands for."""
        if self.per_card:
            return {self.whole: "slot"}
        named: tuple[tuple[str, Role], ...] = (
            (self.whole, "whole"),
            (self.shared, "shared"),
            (self.core, "core"),
            (self.memory, "memory"),
        )
        return {name: role for name, role in named if name}


ALIQUOT = Preset(
    name="aliquot",
    whole=f"{GROUP}/gpu",
    shared=f"{GROUP}/sgpu",
    core=f"{GROUP}/vcuda-core",
    memory=f"{GROUP}/vcuda-memory",
)
TENCENT = Preset(
    name="tencent",
    core="tencent.com/vcuda-core",
    memory="tencent.com/vcuda-memory",
    whole_by_core=True,
)
TUYA = Preset(
    name="tuya",
    whole="nvidia.com/gpu",
    shared="tuya.com/sgpu",
    core="tuya.com/vcuda-core",
    memory="tuya.com/vcuda-memory",
)
NVIDIA = Preset(
    name="nvidia",
    whole="nvidia.com/gpu",
    core="nvidia.com/gpucores",
    memory="nvidia.com/gpumem",
    memory_percent="nvidia.com/gpumem-percentage",
    memory_unit=1 << 20,
    per_card=True,
    models="nvidia.com/use-gputype",
)
ALIYUN = Preset(name="aliyun", memory="aliyun.com/gpu-mem", memory_unit=1 << 30)

PRESETS = {one.name: one for one in (ALIQUOT, TENCENT, TUYA, NVIDIA, ALIYUN)}


def choose_presets(names: Iterable[str]) -> tuple[Preset, ...]:
    """The presets of these names; two of them must not use a name for different things."""
    chosen: list[Preset] = []
    for name in dict.fromkeys(names):
        if name not in PRESETS:
            raise InvalidValueError(
                f"there is no preset {name!r}", f"There are: {', '.join(PRESETS)}."
            )
        chosen.append(PRESETS[name])
    seen: dict[str, str] = {}
    for one in chosen:
        for resource in one.resources:
            if resource in seen:
                raise InvalidValueError(
                    f"the presets {seen[resource]} and {one.name} both use {resource}",
                    "Choose one of them.",
                )
            seen[resource] = one.name
    if not chosen:
        raise InvalidValueError("no preset was chosen", f"There are: {', '.join(PRESETS)}.")
    return tuple(chosen)
