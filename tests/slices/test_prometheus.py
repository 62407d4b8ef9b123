"""The Prometheus text, read by Prometheus' own parser."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from aliquot.model import (
    ComputeUse,
    Gates,
    GpuProcess,
    GrantState,
    MemoryTurns,
    Parking,
    Policy,
    Priority,
    Slice,
    SliceUse,
)
from aliquot.slices.arbiter_status import Mover, Status
from aliquot.slices.prometheus import exposition
from support import GIB, make_grant, make_shared, uuid_of

COMPUTE = ComputeUse(
    gates=Gates.WORK,
    weight_percent=30,
    used_seconds=12.5,
    idle_seconds=90.5,
    handovers=100,
    fallbacks=2,
    backlog_quanta=3,
    waits=50,
    waited_seconds=0.75,
    wait_p50_seconds=0.001,
    wait_p99_seconds=0.02,
)
UUID = uuid_of(0)
OF_SLICE = {"grant": "a", "gpu": UUID, "index": "0"}


def status() -> Status:
    grant = replace(
        make_grant("a"),
        slices=(Slice(UUID, 8 * GIB, 30, Policy.HARD, Priority.LATENCY),),
        use=(SliceUse(UUID, GIB, 5),),
        compute=(COMPUTE,),
    )
    gpu = replace(make_shared(0, granted=8 * GIB, outside=GIB), contended=True)
    return Status(1, (gpu,), (grant,), {}, credit_cpu_seconds=0.5)


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_all_metrics_have_units() -> None:
    found = samples(exposition(status()))
    of_gpu = {"gpu": UUID, "index": "0"}
    assert found == {
        "aliquot_arbiter_up": [({}, 1)],
        "aliquot_arbiter_credit_cpu_seconds_total": [({}, 0.5)],
        "aliquot_gpu_info": [({**of_gpu, "model": "H100 80GB HBM3"}, 1)],
        "aliquot_gpu_memory_bytes": [(of_gpu, 80 * GIB)],
        "aliquot_gpu_memory_used_bytes": [(of_gpu, GIB)],
        "aliquot_gpu_memory_granted_bytes": [(of_gpu, 8 * GIB)],
        "aliquot_gpu_memory_moving_ratio": [(of_gpu, 0)],
        "aliquot_gpu_contended": [(of_gpu, 1)],
        "aliquot_gpu_stranger_processes": [(of_gpu, 1)],
        "aliquot_gpu_stranger_memory_bytes": [(of_gpu, GIB)],
        "aliquot_slice_info": [
            ({**OF_SLICE, "policy": "hard", "priority": "latency", "grant_state": "active"}, 1)
        ],
        "aliquot_slice_memory_limit_bytes": [(OF_SLICE, 8 * GIB)],
        "aliquot_slice_memory_used_bytes": [(OF_SLICE, GIB + 5)],
        "aliquot_slice_compute_share_ratio": [(OF_SLICE, 0.3)],
        "aliquot_slice_compute_weight_ratio": [(OF_SLICE, 0.3)],
        "aliquot_slice_gated": [(OF_SLICE, 1)],
        "aliquot_slice_gpu_seconds_total": [(OF_SLICE, 12.5)],
        "aliquot_slice_idle_seconds": [(OF_SLICE, 90.5)],
        "aliquot_slice_handovers_total": [(OF_SLICE, 100)],
        "aliquot_slice_fallbacks_total": [(OF_SLICE, 2)],
        "aliquot_slice_backlog_quanta": [(OF_SLICE, 3)],
        "aliquot_slice_credit_wait_seconds": [
            ({**OF_SLICE, "quantile": "0.5"}, 0.001),
            ({**OF_SLICE, "quantile": "0.99"}, 0.02),
        ],
        "aliquot_slice_credit_wait_seconds_sum": [(OF_SLICE, 0.75)],
        "aliquot_slice_credit_wait_seconds_count": [(OF_SLICE, 50)],
    }


def test_metric_names_follow_the_conventions() -> None:
    for family in text_string_to_metric_families(exposition(status())):
        assert re.fullmatch(r"aliquot_[a-z_]+", family.name)
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")


def test_each_family_appears_once() -> None:
    seen = status()
    text = exposition(replace(seen, grants=(seen.grants[0], replace(seen.grants[0], name="b"))))
    heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert len(samples(text)["aliquot_slice_handovers_total"]) == 2


def test_unknown_share_and_gates_have_no_sample() -> None:
    grant = make_grant("a", gpu0=GIB)
    found = samples(exposition(replace(status(), grants=(grant,))))
    assert "aliquot_slice_compute_share_ratio" not in found
    assert "aliquot_slice_gated" not in found
    failing = replace(grant, compute=(ComputeUse(gates=Gates.FAIL, why=801),))
    found = samples(exposition(replace(status(), grants=(failing,))))
    assert found["aliquot_slice_gated"] == [(OF_SLICE, 0)]


def test_a_slice_that_is_not_active_or_not_seen_is_not_idle() -> None:
    (grant,) = status().grants
    unseen = replace(grant, compute=(replace(COMPUTE, idle_seconds=None),))
    for one in (replace(grant, state=GrantState.PARKED), unseen):
        text = exposition(replace(status(), grants=(one,)))
        assert "aliquot_slice_idle_seconds" not in text


def test_a_slice_that_takes_turns_with_memory_says_how_long_it_was_off() -> None:
    (grant,) = status().grants
    turns = MemoryTurns(15.0, is_off=True, times=3, seconds=30.0, longest_seconds=12.5)
    found = samples(exposition(replace(status(), grants=(replace(grant, turns=turns),))))
    assert found["aliquot_slice_off_total"] == [(OF_SLICE, 3)]
    assert found["aliquot_slice_off_seconds_total"] == [(OF_SLICE, 30.0)]
    assert found["aliquot_slice_off_longest_seconds"] == [(OF_SLICE, 12.5)]


def test_a_slice_that_never_waited_has_no_quantiles() -> None:
    found = samples(exposition(replace(status(), grants=(make_grant("a", gpu0=GIB),))))
    quantiles = [value for _, value in found["aliquot_slice_credit_wait_seconds"]]
    assert list(map(math.isnan, quantiles)) == [True, True]
    assert found["aliquot_slice_credit_wait_seconds_count"] == [(OF_SLICE, 0)]


def test_a_machine_without_an_arbiter_is_down() -> None:
    assert samples(exposition(None)) == {"aliquot_arbiter_up": [({}, 0)]}


@given(st.text(), st.integers(0, 1 << 60), st.floats(0, 1e12))
def test_any_label_and_value_can_be_parsed(name: str, size: int, seconds: float) -> None:
    seen = status()
    gpu = replace(seen.gpus[0].gpu, name=name, used_bytes=size)
    strangers = (GpuProcess(1, name, None),)
    text = exposition(
        replace(
            seen,
            gpus=(replace(seen.gpus[0], gpu=gpu, strangers=strangers),),
            credit_cpu_seconds=seconds,
        )
    )
    found = samples(text)
    assert found["aliquot_gpu_info"][0][0]["model"] == gpu.model
    assert found["aliquot_gpu_memory_used_bytes"][0][1] == size
    assert found["aliquot_arbiter_credit_cpu_seconds_total"][0][1] == seconds
    assert found["aliquot_gpu_stranger_memory_bytes"][0][1] == 0


def test_what_moved_memory_takes_of_the_host() -> None:
    asked = status()
    gpu = replace(asked.gpus[0], mover=Mover(host_bytes=4 * GIB, held_bytes=GIB))
    answer = {"host_memory_bytes": 5 * GIB}
    found = samples(exposition(replace(asked, gpus=(gpu,), answer=answer)))
    assert found["aliquot_host_memory_limit_bytes"] == [({}, 5 * GIB)]
    assert found["aliquot_host_memory_ready_bytes"] == [({}, 4 * GIB)]
    assert found["aliquot_host_memory_used_bytes"] == [({}, GIB)]


def test_a_slice_that_is_parked_when_idle_says_how_often_and_how_long() -> None:
    here = status()
    parking = Parking(600.0, times=3, seconds=90.5, waits=True)
    parked = replace(here, grants=(replace(here.grants[0], parking=parking),))
    found = samples(exposition(parked))
    assert found["aliquot_slice_parked_total"] == [(OF_SLICE, 3)]
    assert found["aliquot_slice_parked_seconds_total"] == [(OF_SLICE, 90.5)]
    assert found["aliquot_slice_parked_waits"] == [(OF_SLICE, 1)]
