"""MIG on the simulated machine: modes, places, instances, and programs in them."""

from __future__ import annotations

import pytest

from sim.conftest import Start
from sim.program import Program

INVALID, UNSUPPORTED, NO_PERMISSION, NOT_FOUND, IN_USE, FULL = 2, 3, 4, 6, 19, 23
WHOLE, HALF, FOUR, QUARTER, WIDE, SMALL, MEDIA = 0, 9, 5, 14, 15, 19, 20
GPU_DESTROY, COMPUTE_DESTROY = "nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"
GIB = 1 << 30


@pytest.fixture
def mig(start: Start) -> Program:
    """A program that uses NVML on two GPUs, of which the first is in MIG mode."""
    program = start("nvml", shape="h100:2", ALIQUOT_SIMULATE_MIG="0")
    assert program("call", "nvmlInit") is None
    return program


def driver(start: Start, **variables: str) -> Program:
    program = start("driver", shape="h100:2", **variables)
    assert program("call", "cuInit", 0) == [0]
    return program


def test_the_mode_is_of_one_gpu_and_changes_while_nothing_is_on_it(mig: Program) -> None:
    assert mig("of", 0, "nvmlDeviceGetMigMode") == [1, 1]
    assert mig("of", 1, "nvmlDeviceGetMigMode") == [0, 0]
    assert mig("of", 0, "nvmlDeviceGetMaxMigDeviceCount") == 7
    assert mig("of", 1, "nvmlDeviceGetMaxMigDeviceCount") == 0
    mig("make", "a", 0, SMALL)
    assert mig("of", 0, "nvmlDeviceSetMigMode", 0) == IN_USE
    mig("destroy", GPU_DESTROY, "a")
    assert mig("of", 0, "nvmlDeviceSetMigMode", 0) == 0
    assert mig("of", 0, "nvmlDeviceGetMigMode") == [0, 0]
    assert mig("make", "a", 0, SMALL) == f"error {UNSUPPORTED}"


@pytest.mark.parametrize("model", ["l4", "t4"])
def test_other_models_have_no_mig(start: Start, model: str) -> None:
    program = start("nvml", shape=f"{model}:1", ALIQUOT_SIMULATE_MIG="all")
    program("call", "nvmlInit")
    assert program("of", 0, "nvmlDeviceGetMigMode") == f"error {UNSUPPORTED}"
    assert program("of", 0, "nvmlDeviceGetGpuInstanceProfileInfo", 0) == f"error {UNSUPPORTED}"


@pytest.mark.parametrize(
    ("model", "names", "sms", "mib"),
    [
        ("h100", ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"], 16, 9984),
        ("h200", ["1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"], 16, 16384),
        ("a100", ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"], 14, 9728),
    ],
)
def test_profiles_of_each_model(
    start: Start, model: str, names: list[str], sms: int, mib: int
) -> None:
    program = start("nvml", shape=f"{model}:1")
    program("call", "nvmlInit")
    found = [program("of", 0, "nvmlDeviceGetGpuInstanceProfileInfo", kind) for kind in range(5)]
    assert [one["name"] for one in found] == [f"MIG {name}" for name in names]
    assert [one["id"] for one in found] == [SMALL, QUARTER, HALF, FOUR, WHOLE]
    assert [one["sliceCount"] for one in found] == [1, 2, 3, 4, 7]
    assert (found[0]["multiprocessorCount"], found[0]["memorySizeMB"]) == (sms, mib)


def test_instances_have_places_that_do_not_overlap(mig: Program) -> None:
    assert mig("make", "half", 0, HALF, 4) == [2, 4, 4]
    assert mig("make", "x", 0, FOUR, 4) == f"error {INVALID}"  # it may begin at 0 alone
    assert mig("make", "x", 0, QUARTER, 4) == f"error {FULL}"
    assert mig("make", "small", 0, SMALL, 1) == [8, 1, 1]
    assert mig("make", "x", 0, WIDE, 0) == f"error {FULL}"
    assert mig("make", "x", 0, HALF) == f"error {FULL}"
    assert mig("make", "quarter", 0, QUARTER) == [4, 2, 2]  # anywhere: the last free place
    assert mig("of", 0, "nvmlDeviceGetGpuInstanceRemainingCapacity", SMALL) == 1
    assert mig("of", 0, "nvmlDeviceGetGpuInstanceRemainingCapacity", QUARTER) == 0
    assert mig("make", "x", 1, SMALL) == f"error {UNSUPPORTED}"
    assert mig("make", "media", 0, MEDIA) == [7, 0, 1]
    assert mig("destroy", GPU_DESTROY, "small") == 0
    assert mig("make", "x", 0, MEDIA, 1) == f"error {FULL}"  # one of them on a GPU


def test_a_compute_instance_is_a_device_with_a_uuid_of_its_own(mig: Program) -> None:
    mig("make", "half", 0, HALF, 0)
    assert mig("instances", 0) == []
    uuid = mig("divide", "half", "whole", 3)
    assert uuid.startswith("MIG-")
    assert len(uuid) == 40
    assert mig("instances", 0) == [uuid]
    assert mig("of", uuid, "nvmlDeviceGetName") == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert mig("of", uuid, "nvmlDeviceIsMigDeviceHandle") == 1
    assert mig("of", 0, "nvmlDeviceIsMigDeviceHandle") == 0
    assert mig("memory", uuid) == [40448, 0, 3, 40444]
    attributes = mig("of", uuid, "nvmlDeviceGetAttributes_v2")
    assert (attributes["multiprocessorCount"], attributes["memorySizeMB"]) == (60, 40448)
    assert mig("of", uuid, "nvmlDeviceGetPciInfo") == f"error {UNSUPPORTED}"
    assert mig("destroy", GPU_DESTROY, "half") == f"error {IN_USE}"
    assert mig("destroy", COMPUTE_DESTROY, "whole") == 0
    assert mig("instances", 0) == []
    assert mig("call", "nvmlDeviceGetHandleByUUID", uuid) == f"error {NOT_FOUND}"
    assert mig("destroy", GPU_DESTROY, "half") == 0
    assert mig("destroy", GPU_DESTROY, "half") == f"error {INVALID}"


def test_compute_instances_share_the_slices_of_their_gpu_instance(mig: Program) -> None:
    mig("make", "half", 0, HALF, 0)
    small, large = mig("divide", "half", "small", 1), mig("divide", "half", "large", 2)
    assert mig("divide", "half", "x", 1) == f"error {FULL}"
    assert mig("divide", "half", "x", 4) == f"error {UNSUPPORTED}"
    assert mig("of", large, "nvmlDeviceGetName").endswith("MIG 2c.3g.40gb")
    assert mig("of", large, "nvmlDeviceGetAttributes_v2")["multiprocessorCount"] == 40
    assert [mig("of", one, "nvmlDeviceGetComputeInstanceId") for one in (small, large)] == [0, 1]


def test_a_program_sees_the_instance_that_it_names(start: Start, mig: Program) -> None:
    mig("make", "half", 0, HALF, 0)
    uuid = mig("divide", "half", "whole", 3)
    program = driver(start, CUDA_VISIBLE_DEVICES=uuid)
    assert program("call", "cuDeviceGetCount") == [0, 1]
    assert program("call", "cuDeviceTotalMem", 0) == [0, 40448 << 20]
    program("begin")
    assert program("call", "cuMemAlloc", 30 * GIB)[0] == 0
    assert program("call", "cuMemAlloc", 10 * GIB)[0] == 2
    assert list(mig("processes", uuid)) == [str(program.pid)]
    assert mig("processes", 0) == mig("processes", uuid)  # the GPU's are those of its instances
    assert mig("processes", 1) == {}
    assert mig("destroy", COMPUTE_DESTROY, "whole") == f"error {IN_USE}"
    program.kill()
    assert mig("destroy", COMPUTE_DESTROY, "whole") == 0


def test_without_a_choice_a_program_sees_gpus_and_one_device_of_each_instance(
    start: Start, mig: Program
) -> None:
    assert driver(start)("call", "cuDeviceGetCount") == [0, 1]  # the GPU that is not in MIG mode
    mig("make", "half", 0, HALF, 0)
    mig("divide", "half", "one", 1)
    other = mig("divide", "half", "two", 1)
    mig("make", "small", 0, SMALL, 5)
    mig("divide", "small", "all", 1)
    assert driver(start)("call", "cuDeviceGetCount") == [0, 3]
    named = driver(start, CUDA_VISIBLE_DEVICES=",".join(mig("instances", 0)))
    assert named("call", "cuDeviceGetCount") == [0, 2]
    assert driver(start, CUDA_VISIBLE_DEVICES=other)("call", "cuDeviceGetCount") == [0, 1]


def test_programs_of_different_instances_share_neither_memory_nor_time(
    start: Start, mig: Program
) -> None:
    uuids = []
    for name, place in (("a", 0), ("b", 4)):
        mig("make", name, 0, HALF, place)
        uuids.append(mig("divide", name, f"{name} whole", 3))
    programs = [driver(start, CUDA_VISIBLE_DEVICES=uuid) for uuid in uuids]
    for program in programs:
        program("begin")
        assert program("call", "cuMemAlloc", 38 * GIB)[0] == 0
    for uuid, program in zip(uuids, programs, strict=True):
        assert list(mig("processes", uuid)) == [str(program.pid)]
    assert len(mig("processes", 0)) == 2


def test_a_gpu_in_mig_mode_has_no_figures_for_the_whole(mig: Program) -> None:
    for name in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetNumGpuCores"):
        assert mig("of", 0, name) == f"error {UNSUPPORTED}"
        assert not str(mig("of", 1, name)).startswith("error")


def test_an_instance_made_again_at_its_place_is_new(start: Start, mig: Program) -> None:
    mig("make", "a", 0, HALF, 0)
    uuid = mig("divide", "a", "whole", 3)
    program = driver(start, CUDA_VISIBLE_DEVICES=uuid)
    program("begin")
    assert len(mig("processes", uuid)) == 1
    program.kill()
    mig("destroy", COMPUTE_DESTROY, "whole")
    mig("destroy", GPU_DESTROY, "a")
    mig("make", "a", 0, HALF, 0)
    assert mig("divide", "a", "whole", 3) == uuid
    assert mig("processes", uuid) == {}
    assert mig("memory", uuid)[2] == 3
