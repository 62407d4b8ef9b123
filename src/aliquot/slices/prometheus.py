"""An arbiter's status as Prometheus text (format 0.0.4): a pure function.

Units are seconds, bytes and ratios; counters end in `_total`. The labels of a slice are its grant
and its GPU. What can change (policy, priority, state of the grant) is only in `aliquot_slice_info`,
so that a change starts no new series.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from aliquot.model import Gates, GrantState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.model import ComputeUse, MemoryTurns, Parking, Slice, SliceUse
    from aliquot.slices.arbiter_status import HostMemory, SharedGpu, Status

T = TypeVar("T")

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class _Part:
    """One slice with its figures."""

    labels: dict[str, str]
    granted: Slice
    state: GrantState
    away_bytes: int | None
    parking: Parking | None
    spill_bytes: int
    on_host_bytes: int
    turns: MemoryTurns | None
    use: SliceUse
    compute: ComputeUse


@dataclass(frozen=True, slots=True)
class _Family(Generic[T]):
    """A metric; `value` returns None for an object without one."""

    name: str
    kind: str
    help: str
    value: Callable[[T], float | None]


_ARBITER: tuple[_Family[Status], ...] = (
    _Family(
        "aliquot_arbiter_credit_cpu_seconds_total",
        "counter",
        "Processor time of the thread that gives credit.",
        lambda status: status.credit_cpu_seconds,
    ),
)
_HOST: tuple[_Family[HostMemory], ...] = (
    _Family(
        "aliquot_host_memory_limit_bytes",
        "gauge",
        "Memory of the host that may be taken for GPU memory.",
        lambda host: host.limit_bytes,
    ),
    _Family(
        "aliquot_host_memory_ready_bytes",
        "gauge",
        "Memory of the host that is taken for GPU memory, in use or not.",
        lambda host: host.ready_bytes,
    ),
    _Family(
        "aliquot_host_memory_used_bytes",
        "gauge",
        "Memory of the host that GPU memory is in.",
        lambda host: host.used_bytes,
    ),
)
_GPU: tuple[_Family[SharedGpu], ...] = (
    _Family(
        "aliquot_gpu_memory_bytes",
        "gauge",
        "Memory of the GPU that programs can use.",
        lambda one: one.gpu.memory_bytes,
    ),
    _Family(
        "aliquot_gpu_memory_used_bytes",
        "gauge",
        "Memory of the GPU that is in use, as the driver reports it.",
        lambda one: one.gpu.used_bytes,
    ),
    _Family(
        "aliquot_gpu_memory_granted_bytes",
        "gauge",
        "Memory of the GPU in grants that are not parked, used or not, and what parked ones left.",
        lambda one: one.granted_bytes,
    ),
    _Family(
        "aliquot_gpu_memory_moving_ratio",
        "gauge",
        "Part of the last minute in which memory moved because slices take turns with it.",
        lambda one: one.moving,
    ),
    _Family(
        "aliquot_gpu_contended",
        "gauge",
        "1: slices take turns on the GPU.",
        lambda one: int(one.contended),
    ),
    _Family(
        "aliquot_gpu_stranger_processes",
        "gauge",
        "Processes that use the GPU outside all grants.",
        lambda one: len(one.strangers),
    ),
    _Family(
        "aliquot_gpu_stranger_memory_bytes",
        "gauge",
        "Memory in use outside all grants, as far as the driver reports it.",
        lambda one: sum(stranger.bytes or 0 for stranger in one.strangers),
    ),
)
_SLICE: tuple[_Family[_Part], ...] = (
    _Family(
        "aliquot_slice_memory_limit_bytes",
        "gauge",
        "Memory limit of the slice.",
        lambda part: part.granted.memory_bytes,
    ),
    _Family(
        "aliquot_slice_memory_used_bytes",
        "gauge",
        "Memory that counts against the limit: of programs, and of the driver for them.",
        lambda part: part.use.used_bytes,
    ),
    _Family(
        "aliquot_slice_memory_away_bytes",
        "gauge",
        "Memory of the slice's programs that is on the host; no sample: it cannot leave the GPU.",
        lambda part: part.away_bytes,
    ),
    _Family(
        "aliquot_slice_host_memory_limit_bytes",
        "gauge",
        "Memory of the host that the slice's programs may have; no sample: none (--spill).",
        lambda part: part.spill_bytes or None,
    ),
    _Family(
        "aliquot_slice_host_memory_used_bytes",
        "gauge",
        "Memory of the host that the slice's programs have because the slice is full.",
        lambda part: part.on_host_bytes if part.spill_bytes else None,
    ),
    _Family(
        "aliquot_slice_parked_total",
        "counter",
        "Times that the slice was parked because it was idle; no sample: it never is.",
        lambda part: None if part.parking is None else part.parking.times,
    ),
    _Family(
        "aliquot_slice_parked_seconds_total",
        "counter",
        "Time for which the slice was parked because it was idle; no sample: it never is.",
        lambda part: None if part.parking is None else part.parking.seconds,
    ),
    _Family(
        "aliquot_slice_parked_waits",
        "gauge",
        "1: the slice is parked, and a program waits for its memory; no sample: it never is.",
        lambda part: None if part.parking is None else int(part.parking.waits),
    ),
    _Family(
        "aliquot_slice_off_total",
        "counter",
        "Times that the slice was off its GPU for others' turn; no sample: it takes no turns.",
        lambda part: None if part.turns is None else part.turns.times,
    ),
    _Family(
        "aliquot_slice_off_seconds_total",
        "counter",
        "Time for which the slice was off its GPU for others' turn; no sample: it takes no turns.",
        lambda part: None if part.turns is None else part.turns.seconds,
    ),
    _Family(
        "aliquot_slice_off_longest_seconds",
        "gauge",
        "Longest time off its GPU for others' turn; no sample: it takes no turns.",
        lambda part: None if part.turns is None else part.turns.longest_seconds,
    ),
    _Family(
        "aliquot_slice_compute_share_ratio",
        "gauge",
        "Requested share of the GPU's time; no sample: an equal part of what the others leave.",
        lambda part: part.granted.compute_percent / 100 or None,
    ),
    _Family(
        "aliquot_slice_compute_weight_ratio",
        "gauge",
        "Share of the GPU's time that follows from the requests of all slices;"
        " of a background slice, the share of idle time.",
        lambda part: part.compute.weight_percent / 100,
    ),
    _Family(
        "aliquot_slice_gated",
        "gauge",
        "1: gates work, so the compute share holds; 0: gates fail; no sample: not tested.",
        lambda part: {Gates.WORK: 1, Gates.FAIL: 0, Gates.INVALID: 0}.get(part.compute.gates),
    ),
    _Family(
        "aliquot_slice_gpu_seconds_total",
        "counter",
        "Time for which the slice held the GPU.",
        lambda part: part.compute.used_seconds,
    ),
    _Family(
        "aliquot_slice_idle_seconds",
        "gauge",
        "For how long the slice has had no GPU work; no sample: some of its work is not seen, or"
        " the grant is not active.",
        lambda part: part.compute.idle_seconds if part.state is GrantState.ACTIVE else None,
    ),
    _Family(
        "aliquot_slice_handovers_total",
        "counter",
        "Windows of the slice.",
        lambda part: part.compute.handovers,
    ),
    _Family(
        "aliquot_slice_fallbacks_total",
        "counter",
        "Times that the slice did not drain in time, so that others ran at the same time.",
        lambda part: part.compute.fallbacks,
    ),
    _Family(
        "aliquot_slice_backlog_quanta",
        "gauge",
        "Unfinished quanta of work of the slice.",
        lambda part: part.compute.backlog_quanta,
    ),
)
_WAIT = "aliquot_slice_credit_wait_seconds"


def exposition(status: Status | None) -> str:
    """The metrics of a machine; `status` None: no arbiter runs there."""
    lines = [*_head("aliquot_arbiter_up", "gauge", "1: an arbiter runs.")]
    lines.append(_sample("aliquot_arbiter_up", {}, int(status is not None)))
    if status is not None:
        parts = list(_parts(status))
        lines += _families(_ARBITER, [({}, status)])
        lines += _families(_HOST, [({}, host)] if (host := status.host_memory) else [])
        lines += _gpu_info(status.gpus)
        lines += _families(_GPU, [(_gpu_labels(one), one) for one in status.gpus])
        lines += _slice_info(parts)
        lines += _families(_SLICE, [(part.labels, part) for part in parts])
        lines += _waits(parts)
    return "".join(f"{line}\n" for line in lines)


def _parts(status: Status) -> Iterator[_Part]:
    indexes = {one.gpu.uuid: str(one.gpu.index) for one in status.gpus}
    for grant in status.grants:
        if grant.is_hidden:  # several would have the same labels
            continue
        for part, use, compute in zip(grant.slices, grant.use, grant.compute, strict=True):
            labels = {
                "grant": grant.name,
                "gpu": part.gpu_uuid,
                "index": indexes.get(part.gpu_uuid, ""),
            }
            away = grant.away_bytes if grant.is_swappable else None
            host = (grant.spill_bytes, grant.on_host_bytes)
            yield _Part(
                labels, part, grant.state, away, grant.parking, *host, grant.turns, use, compute
            )


def _families(
    families: Sequence[_Family[T]], things: Sequence[tuple[dict[str, str], T]]
) -> Iterator[str]:
    for family in families:
        valued = [(labels, family.value(thing)) for labels, thing in things]
        samples = [
            _sample(family.name, labels, value) for labels, value in valued if value is not None
        ]
        if samples:
            yield from _head(family.name, family.kind, family.help)
            yield from samples


def _gpu_info(gpus: Sequence[SharedGpu]) -> Iterator[str]:
    yield from _head("aliquot_gpu_info", "gauge", "1 for each GPU, with its model.")
    for one in gpus:
        yield _sample("aliquot_gpu_info", {**_gpu_labels(one), "model": one.gpu.model}, 1)


def _slice_info(parts: Sequence[_Part]) -> Iterator[str]:
    if not parts:
        return
    yield from _head("aliquot_slice_info", "gauge", "1 for each slice, with its settings.")
    for part in parts:
        settings = {
            "policy": str(part.granted.policy),
            "priority": str(part.granted.priority),
            "grant_state": str(part.state),
        }
        yield _sample("aliquot_slice_info", {**part.labels, **settings}, 1)


def _waits(parts: Sequence[_Part]) -> Iterator[str]:
    if not parts:
        return
    yield from _head(_WAIT, "summary", "How long the slice waited for credit.")
    for part in parts:
        compute = part.compute
        for quantile, value in (
            ("0.5", compute.wait_p50_seconds),
            ("0.99", compute.wait_p99_seconds),
        ):
            yield _sample(_WAIT, {**part.labels, "quantile": quantile}, value)
        yield _sample(f"{_WAIT}_sum", part.labels, compute.waited_seconds)
        yield _sample(f"{_WAIT}_count", part.labels, compute.waits)


def _gpu_labels(one: SharedGpu) -> dict[str, str]:
    return {"gpu": one.gpu.uuid, "index": str(one.gpu.index)}


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text.translate(_HELP_ESCAPES)}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, labels: dict[str, str], value: float | None) -> str:
    """A line; quantiles of an empty summary are NaN."""
    pairs = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    shown = "NaN" if value is None else value
    return f"{name}{{{pairs}}} {shown}" if pairs else f"{name} {shown}"
