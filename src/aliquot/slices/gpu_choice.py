"""Which GPUs satisfy a request, decided by `placement` from the arbiter's status.

Memory is free if no grant has it and no program outside all grants uses it. Compute time is free if
no slice has requested it; `background` slices reserve none. Of the GPUs with enough free capacity,
those that are shared already come first, the fullest before the others, so that whole GPUs stay
whole. A GPU that programs outside all grants use comes last, and of equal GPUs the one whose slices
use less of its time, then the one with the lower index. A whole GPU is one of which no grant has a
part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model import GrantState, Isolation, Priority, busy_steps, format_bytes
from aliquot.model.errors import MpsError, NoCapacityError
from aliquot.model.strength import UNKNOWN, format_strength
from aliquot.placement.choose.machine import (
    GpuCapacity,
    choose_gpus,
    is_strong_enough,
    label_to_join,
    preference,
    why_unsuited,
    why_unwelcome,
)
from aliquot.placement.core.overcommit import RoomBound
from aliquot.slices.contexts import context_bytes, describe_too_small
from aliquot.slices.turn_room import (
    HOST_HINT,
    describe_overcommit,
    describe_room,
    turn_room,
    working_set,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Gpu, Grant, MemoryTurns, Request, Slice
    from aliquot.slices.arbiter_status import SharedGpu

WAIT = "or wait until GPUs are free with: aliquot run --wait"


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """Whether a GPU has what a request asks for.

    `why` is what speaks for or against the GPU if it fits, and else what it lacks.
    """

    shared: SharedGpu
    fits: bool
    why: str


def judge_gpus(
    request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]
) -> list[GpuVerdict]:
    """What a request for one GPU would find on each, in the order in which they are preferred."""

    def order(one: SharedGpu) -> tuple[object, ...]:
        lacks = _lack(request, one, grants) is not None
        preferred = preference(request, _capacity(request, one, grants))
        return lacks, preferred, one.gpu.index

    verdicts = []
    for one in sorted(gpus, key=order):
        lack = _lack(request, one, grants)
        why = _advantage(request, one, grants) if lack is None else lack
        verdicts.append(GpuVerdict(one, lack is None, why))
    return verdicts


def find_gpus(request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]) -> list[Gpu]:
    """The GPUs for a request, as many different ones as it asks for, or NoCapacityError."""
    if request.among is not None:
        gpus = [one for one in gpus if one.gpu.uuid in request.among]
    if request.gpus > len(gpus):
        raise NoCapacityError(
            f"{_count(request.gpus)} requested, but there {_is(len(gpus))}",
            "Request fewer with --gpus.",
        )
    usable = _able(request, gpus)
    roomy = [one for one in usable if _request_fits(request, one, grants)]
    fitting = [one for one in roomy if _unwelcome(request, one, grants) is None]
    if len(fitting) < request.gpus <= len(roomy):
        raise NoCapacityError(
            _bad_neighbours(request, usable, grants, len(fitting)),
            f"Change --with, --apart-from or --alone, {WAIT}",
        )
    if len(fitting) < request.gpus:
        raise NoCapacityError(
            _no_capacity(request, gpus, grants, len(fitting)),
            _request_less(request, usable, grants),
        )
    chosen = choose_gpus(request, [_capacity(request, one, grants) for one in fitting])
    assert chosen is not None  # noqa: S101 - all of them fit, by the lines above
    return chosen


def _able(request: Request, gpus: Sequence[SharedGpu]) -> list[SharedGpu]:
    """The GPUs that fit the request if nobody uses them; NoCapacityError if they are too few."""
    selected = [one for one in gpus if request.which.allows(one.gpu)]
    if len(selected) < request.gpus:
        raise NoCapacityError(
            _too_few_selected(request, gpus, len(selected)),
            "Name other GPUs with --gpu, --not-gpu or --model, or request fewer with --gpus. To see"
            " them: aliquot gpus",
        )
    suited = [one for one in selected if why_unsuited(request, one.gpu) is None]
    if len(suited) < request.gpus:
        raise NoCapacityError(_too_few_suited(request, selected), "See docs/isolation.md.")
    strong = [one for one in suited if is_strong_enough(request, one.gpu)]
    if len(strong) < request.gpus:
        raise NoCapacityError(
            _too_weak(request, suited, len(strong)),
            "Request less with --min-strength. To see the strengths: aliquot gpus",
        )
    large = [one for one in strong if _is_large(request, one)]
    if len(large) < request.gpus:
        raise NoCapacityError(
            _too_small(request, strong, len(large)), "Request less with --memory."
        )
    usable = [one for one in large if _holds_context(request, one)]
    if len(usable) < request.gpus:
        raise NoCapacityError(_below_context(request, large), "Request more with --memory.")
    allowing = [one for one in usable if _allows(request, one)]
    if len(allowing) < request.gpus:
        raise MpsError(
            "no GPU that fits allows an MPS server here",
            "Use --isolation soft, or have the administrator allow it: aliquot arbiter --mps",
        )
    return allowing


def _allows(request: Request, one: SharedGpu) -> bool:
    return one.allows_mps or request.isolation is not Isolation.MPS


def _capacity(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> GpuCapacity:
    size = _needed(request, one, grants)
    excess = max(0, size - free_bytes(one)) if request.swap else 0
    crowded = working_set(one, grants) + size - one.gpu.memory_bytes if excess else 0
    return GpuCapacity(
        excess_bytes=excess,
        crowded_bytes=max(0, crowded),
        gpu=one.gpu,
        bytes_free=_free_for(request, one, grants),
        percent_free=free_percent(one, grants),
        unused_bytes=max(0, one.gpu.memory_bytes - one.gpu.used_bytes),
        holders=_slices_on(one, grants),
        strangers=bool(one.strangers),
        busy=_busy(one, grants),
    )


def _busy(one: SharedGpu, grants: Sequence[Grant]) -> int:
    """How much of the GPU's time its slices used in about the last second, in eighths."""
    return busy_steps(
        sum(
            use.got_ratio or 0.0
            for grant in grants
            if grant.slices_on(one.gpu.uuid)
            for part, use in zip(grant.slices, grant.compute, strict=True)
            if part.gpu_uuid == one.gpu.uuid
        )
    )


def neighbours_matter(request: Request, grants: Sequence[Grant]) -> bool:
    """Whether the request or a grant says which slices may be beside it."""
    return request.neighbours.asks or any(grant.neighbours.asks for grant in grants)


def _unwelcome(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> str | None:
    """Why the request may not be beside the slices of a GPU, as a clause; None if it may."""
    if not neighbours_matter(request, grants):
        return None
    present = (grant.occupant for grant in grants if grant.state is not GrantState.PARKED)
    beside = label_to_join(request, present)
    here = [grant.occupant for grant in grants if grant.slices_on(one.gpu.uuid)]
    return why_unwelcome(request, here, beside)


def usable_gpus(
    request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]
) -> frozenset[str] | None:
    """The UUIDs of the GPUs that the request may use by its choice of GPUs and neighbours.

    None if that is all of them; empty if they are too few for it. What is free does not count, and
    a slice that is alone on its GPU is one that leaves nothing free.
    """
    sharing = replace(request, neighbours=replace(request.neighbours, alone=False))
    others = [replace(one, neighbours=replace(one.neighbours, alone=False)) for one in grants]
    found = frozenset(
        one.gpu.uuid
        for one in gpus
        if (request.among is None or one.gpu.uuid in request.among)
        and request.which.allows(one.gpu)
        and why_unsuited(request, one.gpu) is None
        and _allows(request, one)
        and _unwelcome(sharing, one, others) is None
    )
    if len(found) < request.gpus:
        return frozenset()
    return None if len(found) == len(gpus) else found


def why_choice_waits(
    request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]
) -> str | None:
    """Why the request cannot have enough GPUs, if that is its choice of GPUs or neighbours.

    None if it would find no GPUs without that choice either. Other users' slices are not named.
    """
    visible = [one for one in gpus if request.among is None or one.gpu.uuid in request.among]
    selected = [one for one in visible if request.which.allows(one.gpu)]
    options = [request.which.options()] if request.which else []
    options += [] if request.among is None else ["CUDA_VISIBLE_DEVICES"]
    if options and len(selected) < request.gpus:
        return f"{_allowed(request, len(selected))} allowed by {' and '.join(options)}"
    free = [
        one
        for one in gpus
        if is_strong_enough(request, one.gpu)
        and _is_large(request, one)
        and _request_fits(request, one, grants)
    ]
    chosen = [one for one in free if one in selected]
    if len(free) < request.gpus:
        return None
    if len(chosen) < request.gpus:
        what = "are whole" if request.is_whole else f"have {_parts(request)}"
        return f"of the GPUs allowed by {' and '.join(options)}, {len(chosen) or 'none'} {what}"
    unwelcome = ((one, _unwelcome(request, one, grants)) for one in chosen)
    found = (f"{one.gpu} {why.removeprefix('it ')}" for one, why in unwelcome if why)
    return next((why.replace("this request", "it") for why in found), None)


def free_bytes(one: SharedGpu) -> int:
    """The memory of a GPU that a new slice can have."""
    return max(0, one.gpu.memory_bytes - one.granted_bytes - one.unmanaged_bytes)


def free_percent(one: SharedGpu, grants: Sequence[Grant]) -> int:
    """The percentage of a GPU's compute time that a new slice can request."""
    return max(0, 100 - sum(grant.reserved_percent_on(one.gpu.uuid) for grant in grants))


def fits(
    part: Slice, one: SharedGpu, grants: Sequence[Grant], *, turns: MemoryTurns | None = None
) -> bool:
    """Whether a slice fits the free capacity of its GPU; a whole GPU must have no other slice."""
    whole = part.memory_bytes >= one.gpu.memory_bytes
    free = free_bytes(one) if turns is None else turn_room(one, grants, turns.most).bytes
    memory = one.granted_bytes == 0 if whole else part.memory_bytes <= free
    return memory and part.reserved_percent <= free_percent(one, grants)


def describe_free(one: SharedGpu, grants: Sequence[Grant], *, with_compute: bool) -> str:
    """What is free on a GPU, and which grants have the rest."""
    compute = f" and {free_percent(one, grants)}%" if with_compute else ""
    users = describe_users(one, grants, with_compute=with_compute)
    return f"{one.gpu}: {format_bytes(free_bytes(one))}{compute} free{users}"


def describe_users(one: SharedGpu, grants: Sequence[Grant], *, with_compute: bool) -> str:
    """The grants and other programs on a GPU, in brackets; empty if there are none."""
    here = [grant for grant in grants if grant.bytes_on(one.gpu.uuid)]
    named = [_slice_text(grant, one.gpu, with_compute=with_compute) for grant in here]
    parts = [f"grants: {', '.join(named)}"] if named else []
    if one.strangers:
        parts.append(f"outside Aliquot: {format_bytes(one.unmanaged_bytes)}")
    return f" ({'; '.join(parts)})" if parts else ""


def _lack(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> str | None:
    """What a GPU lacks for a request; None if it fits."""
    if lasting := _lasting_lack(request, one):
        return lasting
    if not _has_memory(request, one, grants):
        users = describe_users(one, grants, with_compute=False)
        if request.is_whole:
            return f"it is not whole{users}"
        return f"{_free_text(request, one, grants)}{users}"
    if not _has_compute(request, one, grants):
        users = describe_users(one, grants, with_compute=True)
        return f"{free_percent(one, grants)}% of its compute time free{users}"
    return _unwelcome(request, one, grants)


def _lasting_lack(request: Request, one: SharedGpu) -> str | None:
    """What a GPU lacks even if nobody uses it."""
    if refusal := request.which.why_not(one.gpu) or why_unsuited(request, one.gpu):
        return refusal
    if not _allows(request, one):
        return "it allows no MPS server"
    if not is_strong_enough(request, one.gpu):
        return f"it is too weak: {_strength(one.gpu)}"
    if not _is_large(request, one):
        return f"it has {format_bytes(one.gpu.memory_bytes)} in all"
    if not _holds_context(request, one):
        takes = format_bytes(context_bytes(one))
        return f"the slice cannot hold a CUDA context, which takes {takes}"
    return None


def _advantage(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> str:
    """What speaks for a GPU that fits, or against it."""
    if one.strangers:
        return f"comes last: programs outside Aliquot use {format_bytes(one.unmanaged_bytes)}"
    if one.gpu.exclusive:
        return "comes last: it is in exclusive mode"
    if request.swap and (turns := describe_overcommit(one, grants, _needed(request, one, grants))):
        return turns
    if one.gpu.memory_bytes - one.gpu.used_bytes < request.bytes_on(one.gpu):
        return "comes last: the driver says that less memory is unused"
    if _slices_on(one, grants):
        return "shared already: other GPUs stay whole"
    return "no grant has a part of it"


def _is_large(request: Request, one: SharedGpu) -> bool:
    return request.bytes_on(one.gpu) <= one.gpu.memory_bytes


def _holds_context(request: Request, one: SharedGpu) -> bool:
    return request.bytes_on(one.gpu) >= context_bytes(one)


def _request_fits(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    return _has_memory(request, one, grants) and _has_compute(request, one, grants)


def _has_memory(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    if request.is_whole:  # a whole GPU is one of which no grant has a part
        return one.granted_bytes == 0
    return _needed(request, one, grants) <= _free_for(request, one, grants)


def _needed(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> int:
    return request.bytes_on(one.gpu) + _mover_bytes(request, one, grants)


def _free_for(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> int:
    if request.swap:
        return turn_room(one, grants, request.overcommit or None).bytes
    return free_bytes(one)


def _free_text(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> str:
    """How much memory the request could have, and why not more."""
    if not request.swap:
        return f"{format_bytes(free_bytes(one))} free"
    most = request.overcommit or None
    return describe_room(one, turn_room(one, grants, most), most)


def _mover_bytes(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> int:
    """What the process that copies memory will take of a GPU without swappable grants."""
    swappable = (grant for grant in grants if grant.is_swappable)
    here = any(part.gpu_uuid == one.gpu.uuid for grant in swappable for part in grant.slices)
    return context_bytes(one) if request.swap and not here else 0


def _has_compute(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    return request.slice_of(one.gpu).reserved_percent <= free_percent(one, grants)


def _slices_on(one: SharedGpu, grants: Sequence[Grant]) -> int:
    return sum(len(grant.slices_on(one.gpu.uuid)) for grant in grants)


def _too_few_suited(request: Request, gpus: Sequence[SharedGpu]) -> str:
    lines = (
        f"  {one.gpu} ({one.gpu.model}, {one.gpu.uuid}): {why}"
        for one in gpus
        if (why := why_unsuited(request, one.gpu)) is not None
    )
    return "\n".join([f"{_count(request.gpus)} requested, and too few can be had:", *lines])


def _too_few_selected(request: Request, gpus: Sequence[SharedGpu], enough: int) -> str:
    lines = (
        f"  {one.gpu} ({one.gpu.model}, {one.gpu.uuid}): {why}"
        for one in gpus
        if (why := request.which.why_not(one.gpu)) is not None
    )
    wanted = _allowed(request, enough)
    return "\n".join([f"{wanted} allowed by {request.which.options()}:", *lines])


def _allowed(request: Request, enough: int) -> str:
    return f"{_count(request.gpus)} requested, {enough} is" if enough else "no GPU is"


def _too_weak(request: Request, gpus: Sequence[SharedGpu], enough: int) -> str:
    asked = format_strength(request.min_strength)
    having = "no GPU has" if enough == 0 else f"{_count(request.gpus)} requested, {enough} has"
    strongest = max((one.gpu for one in gpus), key=lambda gpu: (gpu.strength, -gpu.index))
    return (
        f"{having} strength {asked} or more: the strongest is {strongest}"
        f" ({strongest.model}, {_strength(strongest)})"
    )


def _strength(gpu: Gpu) -> str:
    known = gpu.strength != UNKNOWN
    return f"strength {format_strength(gpu.strength)}" if known else "strength unknown"


def _too_small(request: Request, gpus: Sequence[SharedGpu], enough: int) -> str:
    largest = max((one.gpu for one in gpus), key=lambda gpu: (gpu.memory_bytes, -gpu.index))
    having = "no GPU has" if enough == 0 else f"{_count(request.gpus)} requested, {enough} has"
    return (
        f"{having} {request.amount}: the largest is {largest}"
        f" ({largest.model}, {format_bytes(largest.memory_bytes)})"
    )


def _below_context(request: Request, gpus: Sequence[SharedGpu]) -> str:
    """Of the GPU on which the slice lacks least."""
    nearest = min(gpus, key=lambda one: context_bytes(one) - request.bytes_on(one.gpu))
    asked = format_bytes(request.bytes_on(nearest.gpu))
    size = f"{request.amount} ({asked})" if _is_percent(request) else asked
    return describe_too_small(size, nearest)


def _no_capacity(
    request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant], enough: int
) -> str:
    if request.is_whole:
        wanted = "no GPU is whole" if request.gpus == 1 else _short(request, enough, "whole")
    else:
        parts = _parts(request)
        wanted = (
            f"no GPU has {parts}" if request.gpus == 1 else _short(request, enough, f"with {parts}")
        )
    with_compute = bool(request.compute_percent)
    lines = (f"  {_unfit(request, one, grants, with_compute=with_compute)}" for one in gpus)
    return "\n".join([f"{wanted}:", *lines])


def _bad_neighbours(
    request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant], enough: int
) -> str:
    several = f"{_count(request.gpus)} requested, {enough} takes"
    wanted = "no GPU takes" if enough == 0 else several
    with_compute = bool(request.compute_percent)
    lines = [
        f"  {_unfit(request, one, grants, with_compute=with_compute)}"
        for one in gpus
        if _lack(request, one, grants) is not None
    ]
    return "\n".join([f"{wanted} it beside the slices there:", *lines])


def _unfit(request: Request, one: SharedGpu, grants: Sequence[Grant], *, with_compute: bool) -> str:
    """Why a GPU is not among those with enough free capacity."""
    if not_selected := request.which.why_not(one.gpu):
        return f"{one.gpu}: {not_selected}"
    if _request_fits(request, one, grants) and (why := _unwelcome(request, one, grants)):
        return f"{one.gpu} {why.removeprefix('it ')}"
    if request.swap and one.overcommit > 1 and not _has_memory(request, one, grants):
        users = describe_users(one, grants, with_compute=with_compute)
        return f"{one.gpu}: {_free_text(request, one, grants)}{users}"
    return describe_free(one, grants, with_compute=with_compute)


def _request_less(request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]) -> str:
    """The hint, by what is missing."""
    short = [one for one in gpus if not _has_memory(request, one, grants)]
    options = ["--memory"] if short else []
    if not all(_has_compute(request, one, grants) for one in gpus):
        options.append("--compute (or leave it out for an equal part of what the others leave)")
    more = f"{HOST_HINT}, " if _host_is_short(request, short, grants) else ""
    if any(_would_take_turns(request, one, grants) for one in short):
        more += "let its memory leave the GPU with --swap: then it fits in turns with others, "
    return f"Request less with {' or '.join(options)}, {more}{WAIT}"


def _host_is_short(request: Request, gpus: Sequence[SharedGpu], grants: Sequence[Grant]) -> bool:
    most = request.overcommit or None
    return bool(request.swap) and any(
        turn_room(one, grants, most).bound is RoomBound.HOST for one in gpus
    )


def _would_take_turns(request: Request, one: SharedGpu, grants: Sequence[Grant]) -> bool:
    """Whether a request would fit with --swap that does not ask for it."""
    whole = request.is_whole or request.gpus > 1
    soft = request.isolation is Isolation.SOFT and not request.spill
    if request.swap or whole or not soft or request.priority is Priority.LATENCY:
        return False
    return _has_memory(replace(request, swap=True), one, grants)


def _parts(request: Request) -> str:
    return f"{_memory(request)}{_and_compute(request)} free"


def _memory(request: Request) -> str:
    return f"{request.amount} of its memory" if _is_percent(request) else str(request.amount)


def _is_percent(request: Request) -> bool:
    return request.amount is not None and request.amount.percent is not None


def _and_compute(request: Request) -> str:
    percent = request.compute_percent
    return f" and {percent}% of its compute time" if percent else ""


def _short(request: Request, enough: int, what: str) -> str:
    return f"{_count(request.gpus)} {what} requested, but there {_is(enough)}"


def _slice_text(grant: Grant, gpu: Gpu, *, with_compute: bool) -> str:
    percent = grant.reserved_percent_on(gpu.uuid) if with_compute else 0
    compute = f" {percent}%" if percent else ""
    return f"{grant.label} {format_bytes(grant.bytes_on(gpu.uuid))}{compute}"


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _is(number: int) -> str:
    return f"{'is' if number == 1 else 'are'} {number or 'none'}"
