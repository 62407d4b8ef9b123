"""The names under which pods ask for GPUs: Aliquot's own, and those of other projects.

A preset has the names, the unit of memory, whether amounts are per GPU or for all GPUs together,
and which of its names the kubelet sees: the agent offers these as device plugins. The other names
exist only in the extender and in the plan, because they would need far too many device ids. The
kubelet admits a pod that asks for a resource which its node does not offer, and so does
kube-scheduler if the extender's configuration has `ignoredByScheduler` for it.

    preset   a whole GPU    a share    memory, unit             compute     amounts
    aliquot  gpu            sgpu       vcuda-memory, 256 MiB    vcuda-core  for all GPUs
    tencent  vcuda-core 100            vcuda-memory, 256 MiB    vcuda-core  for all GPUs
    tuya     nvidia.com/gpu sgpu       vcuda-memory, 256 MiB    vcuda-core  for all GPUs
    nvidia   gpu                       gpumem, 1 MiB            gpucores    per GPU
                                       gpumem-percentage
    aliyun                             gpu-mem, 1 GiB                       for all GPUs

Amounts for all GPUs are split evenly over the number of GPUs in the annotation `aliquot.io/gpus`,
or are on one GPU without it. The preset nvidia follows HAMi: `gpu` is the number of GPUs, which are
whole if the container asks for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aliquot.kubernetes.api.names import (
    GPU_UUIDS,
    GROUP,
    MEMORY_UNIT,
    MODELS,
    NOT_GPU_UUIDS,
    NOT_MODELS,
)
from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable

Role = Literal["whole", "shared", "core", "memory", "slot"]
"""What one device id of a resource stands for: a whole GPU; one of the shares of a shared GPU; one
of the 100 units of a GPU's compute; one unit of its memory; or a slot on a GPU of any kind, whose
amounts are in the plan (each GPU has `SLOTS` slots)."""

SLOTS = 10


@dataclass(frozen=True, slots=True)
class ForeignAnnotation:
    """An annotation of another project that pods may have, and which values it may have here.

    Aliquot does what the `honoured` values ask for without being asked. A pod with another value is
    refused: `why` says what Aliquot cannot do, and `hint` what to write instead.
    """

    name: str
    honoured: tuple[str, ...]
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class Preset:
    """The names of resources; an empty one does not exist.

    `models`, `not_models`, `gpus` and `not_gpus` are annotations, and `foreign` those with a fixed
    meaning.
    """

    name: str
    whole: str = ""
    shared: str = ""
    core: str = ""
    memory: str = ""
    memory_percent: str = ""
    memory_unit: int = MEMORY_UNIT
    per_gpu: bool = False
    whole_by_core: bool = False
    models: str = MODELS
    not_models: str = NOT_MODELS
    gpus: str = GPU_UUIDS
    not_gpus: str = NOT_GPU_UUIDS
    foreign: tuple[ForeignAnnotation, ...] = ()

    @property
    def resources(self) -> tuple[str, ...]:
        """All names: those that the extender manages."""
        every = (self.whole, self.shared, self.core, self.memory, self.memory_percent)
        return tuple(filter(None, every))

    @property
    def roles(self) -> dict[str, Role]:
        """The names that the kubelet sees, and what one device of each stands for."""
        if self.per_gpu:
            return {self.whole: "slot"}
        named: tuple[tuple[str, Role], ...] = (
            (self.whole, "whole"),
            (self.shared, "shared"),
            (self.core, "core"),
            (self.memory, "memory"),
        )
        return {name: role for name, role in named if name}


_FILLING = (
    "a pod cannot choose how nodes and GPUs are filled: they are filled one after the other",
    "Leave it out; topologySpreadConstraints and podAntiAffinity spread pods over nodes.",
)
_HAMI = (
    ForeignAnnotation("hami.io/node-scheduler-policy", ("binpack",), *_FILLING),
    ForeignAnnotation("hami.io/gpu-scheduler-policy", ("binpack", "topology-aware"), *_FILLING),
    ForeignAnnotation(
        "nvidia.com/numa-bind",
        ("false",),
        "the NUMA nodes of GPUs are not known to the scheduler",
        "Leave it out: several GPUs of a pod get the better links.",
    ),
    ForeignAnnotation(
        "nvidia.com/vgpu-mode",
        ("hami-core",),
        "slices are made by software, and not as MIG instances or by MPS",
        "Leave it out, or write hami-core.",
    ),
)

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
    per_gpu=True,
    models="nvidia.com/use-gputype",
    not_models="nvidia.com/nouse-gputype",
    gpus="nvidia.com/use-gpuuuid",
    not_gpus="nvidia.com/nouse-gpuuuid",
    foreign=_HAMI,
)
ALIYUN = Preset(name="aliyun", memory="aliyun.com/gpu-mem", memory_unit=1 << 30)

PRESETS = {one.name: one for one in (ALIQUOT, TENCENT, TUYA, NVIDIA, ALIYUN)}


def choose_presets(names: Iterable[str]) -> tuple[Preset, ...]:
    """The presets of these names; no two of them may use the same resource."""
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
