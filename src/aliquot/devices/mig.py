"""Instances of GPUs (MIG) through NVML: which there are, making and destroying them.

Only root can make and destroy instances. Nothing here changes the MIG mode of a GPU.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aliquot.devices.inventory import instance_handles, text_of
from aliquot.model.instance import DividedGpu, Instance, Place, Profile
from aliquot.model.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEDIA = "+me"  # of these a GPU has one: it is left to those who ask for it themselves


class NvmlInstances:
    """The GPUs in MIG mode of a session with NVML (`inventory.nvml_session`)."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def read(self) -> list[DividedGpu]:
        """The GPUs in MIG mode, with their instances as they are now."""
        return list(self._gpus())

    def make(self, place: Place) -> None:
        """Make a GPU instance exactly there; NVMLError if that is not free."""
        nvml = self._nvml
        where = nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
        nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            self._device(place.gpu), place.profile, ctypes.byref(where)
        )

    def divide(self, place: Place) -> None:
        """Make the compute instance that has all of the GPU instance there."""
        nvml, instance = self._nvml, self._instance(place)
        slices = nvml.nvmlDeviceGetGpuInstanceProfileInfoById(
            self._device(place.gpu), place.profile
        ).sliceCount
        for kind in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            with suppress(nvml.NVMLError):
                found = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
                if found.sliceCount == slices:
                    nvml.nvmlGpuInstanceCreateComputeInstance(instance, found.id)
                    return
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)

    def undivide(self, place: Place) -> None:
        """Destroy the compute instances there; NVMLError if a program uses one."""
        instance = self._instance(place)
        for compute in self._computes(instance):
            self._nvml.nvmlComputeInstanceDestroy(compute)

    def destroy(self, place: Place) -> None:
        """Destroy the GPU instance there, which has no compute instance."""
        self._nvml.nvmlGpuInstanceDestroy(self._instance(place))

    def _gpus(self) -> Iterator[DividedGpu]:
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                if nvml.nvmlDeviceGetMigMode(device)[0]:
                    yield self._gpu(device)

    def _gpu(self, device: Any) -> DividedGpu:
        gpu = text_of(self._nvml.nvmlDeviceGetUUID(device))
        profiles = tuple(self._profiles(device))
        return DividedGpu(
            gpu,
            tuple(one for one in profiles if not one.name.endswith(_MEDIA)),
            tuple(self._instances(device, gpu, profiles)),
        )

    def _profiles(self, device: Any) -> Iterator[Profile]:
        nvml = self._nvml
        for kind in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            with suppress(nvml.NVMLError):
                found = nvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind)
                starts = self._starts(device, found.id)
                yield Profile(
                    id=found.id,
                    name=text_of(found.name),
                    slices=found.sliceCount,
                    size=starts[0].size,
                    memory_bytes=found.memorySizeMB * MIB,
                    starts=tuple(one.start for one in starts),
                )

    def _starts(self, device: Any, profile: int) -> list[Any]:
        nvml = self._nvml
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, ctypes.byref(count))
        places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            device, profile, places, ctypes.byref(count)
        )
        return list(places[: count.value])

    def _instances(
        self, device: Any, gpu: str, profiles: tuple[Profile, ...]
    ) -> Iterator[Instance]:
        nvml = self._nvml
        devices: dict[int, list[Any]] = {}
        for number, handle in instance_handles(nvml, device):
            devices.setdefault(number, []).append(handle)
        for handle in self._gpu_instances(device, profiles):
            info = nvml.nvmlGpuInstanceGetInfo(handle)
            here = devices.get(info.id, [])
            yield Instance(
                Place(gpu, info.profileId, info.placement.start, info.placement.size),
                device=text_of(nvml.nvmlDeviceGetUUID(here[0])) if len(here) == 1 else None,
                is_used=any(nvml.nvmlDeviceGetComputeRunningProcesses(one) for one in here),
                is_whole=len(here) == 1 and self._has_all(here[0]),
            )

    def _has_all(self, device: Any) -> bool:
        found = self._nvml.nvmlDeviceGetAttributes_v2(device)
        return bool(found.gpuInstanceSliceCount == found.computeInstanceSliceCount)

    def _gpu_instances(self, device: Any, profiles: tuple[Profile, ...]) -> Iterator[Any]:
        nvml = self._nvml
        for profile in profiles:
            found = (nvml.c_nvmlGpuInstance_t * 64)()
            count = ctypes.c_uint()
            nvml.nvmlDeviceGetGpuInstances(device, profile.id, found, ctypes.byref(count))
            yield from found[: count.value]

    def _instance(self, place: Place) -> Any:
        """The handle of the instance there; NVMLError if there is none."""
        nvml, device = self._nvml, self._device(place.gpu)
        for handle in self._gpu_instances(device, tuple(self._profiles(device))):
            info = nvml.nvmlGpuInstanceGetInfo(handle)
            if (info.profileId, info.placement.start) == (place.profile, place.start):
                return handle
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)

    def _computes(self, instance: Any) -> Iterator[Any]:
        nvml = self._nvml
        for kind in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            with suppress(nvml.NVMLError):
                profile = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0).id
                found = (nvml.c_nvmlComputeInstance_t * 64)()
                count = ctypes.c_uint()
                nvml.nvmlGpuInstanceGetComputeInstances(
                    instance, profile, found, ctypes.byref(count)
                )
                yield from found[: count.value]

    def _device(self, uuid: str) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(uuid)
