"""Which calls wait while the program's memory is not on the GPU (native/cuda/swap/residence.h)."""

from __future__ import annotations

import re

from native.test_forwarded import HOOKS, forwarded, prototypes, standin

# Hooked calls that never wait for memory, by the reason.
NEVER_WAIT = {
    "they are about the process or a GPU": (
        r"cuInit|cuGetProcAddress.*|cuDeviceTotalMem.*|cuMemGetInfo.*"
    ),
    "they are about contexts that are there": (r"cuCtxAttach|cuCtxFromGreenCtx"),
    "only the first one creates a context, and waits in its hook": r"cuDevicePrimaryCtxRetain",
    "they ask how far the GPU is, or wait for it": (
        r"cu(Ctx|Stream|Event)Synchronize.*|cu(Stream|Event)Query.*|cuEventElapsedTime.*"
    ),
    "they only give back what code took": r"cu(Module|Library)Unload",
    "they are about streams, and what orders them": (
        r"cuStreamDestroy.*|cuStreamWaitEvent.*|cuWaitExternalSemaphoresAsync.*"
        r"|cuIpc(Get|Open)EventHandle"
    ),
    "they run code on the host": r"cuLaunchHostFunc.*|cuStreamAddCallback.*",
    "they are about memory of the host": r"cuMemFreeHost|cuMemHostUnregister",
    "no memory leaves before a capture has ended": r"cuStreamEndCapture.*",
    "it forgets a graph": r"cuGraphExecDestroy",
    "they wait in their own code": r"cuLaunch(Cooperative)?Kernel(Ex)?(_ptsz)?",
}
# Calls with a device pointer among their arguments that use no memory, by the reason.
POINTERS_ALONE = {
    "pinned memory of the host": r"cuMemHostGetDevicePointer.*",
    "what a node or a reference was made with": r"cuGraphMemFreeNodeGetParams|cuTexRefGetAddress.*",
}
# Calls that have no memory among their arguments and wait, because the driver may allocate in them.
ALLOCATE = re.compile(
    r"cuCtxSetLimit|cuGreenCtx(Create|Destroy|StreamCreate)|cuStreamCreate.*"
    r"|cu(Module|Library)(Load|Get(Module|Function|Global|Managed|UnifiedFunction|TexRef|SurfRef)).*"
    r"|cu(Func|Kernel)(Load|GetFunction|GetAttribute|Set(Attribute|CacheConfig|SharedMemConfig)).*"
    r"|cuOccupancy.*|cuGraph(Add|Exec)?KernelNode(SetParams)?(_v2)?"
    r"|cuMem(AllocHost|HostAlloc|HostRegister).*"
)
# Of these, those that only count what is there already.
COUNT = {"cuModuleGetFunctionCount"}


def matches(name: str, reasons: dict[str, str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in reasons.values())


def resident() -> set[str]:
    return {name for name, *around in standin().words(HOOKS) if "resident" in around}


def test_a_hooked_call_waits_for_memory_or_has_a_reason_not_to() -> None:
    others = {words[0] for words in standin().words(HOOKS)} - resident()
    assert sorted(name for name in others if not matches(name, NEVER_WAIT)) == []


def test_a_call_that_waits_for_memory_has_no_reason_not_to() -> None:
    assert sorted(name for name in resident() if matches(name, NEVER_WAIT)) == []


def test_every_call_with_a_device_pointer_waits_for_memory() -> None:
    with_pointer = {name for name, text in prototypes().items() if "CUdeviceptr" in text}
    missing = with_pointer - resident()
    assert sorted(name for name in missing if not matches(name, POINTERS_ALONE)) == []


def test_every_call_in_which_the_driver_may_allocate_waits_for_memory() -> None:
    """A program whose memory is away must not take other memory."""
    named = {name for name in prototypes() if ALLOCATE.fullmatch(name)} - COUNT
    assert len(named) > 40
    assert sorted(named - resident()) == []


def test_every_call_that_copies_fills_or_launches_waits_for_memory() -> None:
    pattern = re.compile(
        r"cu(Memcpy|Memset|MemPrefetch|MemDiscard|MemBatch|GraphLaunch|GraphUpload)"
    )
    named = {name for name in prototypes() if pattern.match(name)}
    assert sorted(named - resident()) == []


def test_no_call_that_changes_memory_is_forwarded_as_it_is() -> None:
    """A new function of this kind must be looked at: does it use memory?"""
    pattern = re.compile(r"cuMem(Alloc|Free|Map|Unmap|Create|Release|Import|Export)(?!Host)")
    listed = {name for names in forwarded().values() for name in names}
    assert sorted(name for name in listed if pattern.match(name)) == []
