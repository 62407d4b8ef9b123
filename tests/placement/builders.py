"""Builders for tests of placement: small clusters and what is asked of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Kind
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.core.wishes import Wishes

GIB = 1 << 30
MINIMA = st.sampled_from([0.0, 0.0, 26.1, 100.0])


def node(name: str = "a", gpus: int = 4, **more: object) -> NodeHardware:
    settings: dict[str, object] = {"cpu_milli": 64_000, "ram_bytes": 256 * GIB, **more}
    return NodeHardware(name=name, gpus=gpus, **settings)  # type: ignore[arg-type]


def cluster(*gpus: int, **more: object) -> Allocations:
    return Allocations(empty([node(f"n{i}", count, **more) for i, count in enumerate(gpus)]))


def gang(name: str, *members: Demand, **more: object) -> Gang:
    return Gang(name, members, **more)  # type: ignore[arg-type]


def only_cpu(milli: int) -> Demand:
    return Demand(gpus=0, kind=Kind.FREE, milli=0, cpu_milli=milli)


def node_specs() -> st.SearchStrategy[list[NodeHardware]]:
    one = st.builds(
        NodeHardware,
        name=st.just("n"),
        gpus=st.integers(0, 3),
        model=st.sampled_from(["T4", "H100"]),
        cpu_milli=st.sampled_from([4000, 8000]),
        ram_bytes=st.sampled_from([8 * GIB, 16 * GIB]),
        gpu_bytes=st.sampled_from([16 * GIB, 80 * GIB]),
        rack=st.sampled_from(["r1", "r2"]),
        strength=st.sampled_from([0.0, 26.1, 286.3]),
        rank=st.sampled_from([None, 0.0, 1.0]),
        unhealthy=st.sampled_from([frozenset(), frozenset(), frozenset({0})]),
        uuids=st.sampled_from([("GPU-a1", "GPU-a2", "GPU-b"), ("GPU-b", "GPU-c", "GPU-d")]),
    )
    named = one.map(lambda spec: replace(spec, uuids=spec.uuids[: spec.gpus]))
    return st.lists(named, min_size=1, max_size=3)


def wishes() -> st.SearchStrategy[Wishes | None]:
    gpus = st.sampled_from([frozenset(), frozenset(), frozenset({"GPU-a"}), frozenset({"GPU-b"})])
    labels = st.sampled_from(["", "", "x", "y"])
    some = st.builds(
        Wishes,
        named=gpus,
        excluded=gpus,
        label=labels,
        beside=labels,
        apart_from=st.sampled_from([frozenset(), frozenset(), frozenset("x"), frozenset("xy")]),
    )
    return st.one_of(st.none(), some)


def demands() -> st.SearchStrategy[Demand]:
    part = st.builds(
        Demand,
        gpus=st.integers(1, 2),
        kind=st.sampled_from([Kind.SHARED, Kind.SLICED]),
        milli=st.sampled_from([0, 250, 300, 500, 700, 1000]),
        gpu_bytes=st.sampled_from([0, 4 * GIB, 10 * GIB, 40 * GIB]),
        cpu_milli=st.sampled_from([0, 1000, 3000]),
        ram_bytes=st.sampled_from([0, 4 * GIB, 10 * GIB]),
        models=st.sampled_from([frozenset(), frozenset({"T4"})]),
        thrifty=st.booleans(),
        min_strength=MINIMA,
        wishes=wishes(),
    )
    entire = st.builds(
        Demand,
        gpus=st.integers(1, 3),
        cpu_milli=st.sampled_from([0, 2000]),
        min_strength=MINIMA,
        wishes=wishes(),
    )
    none = st.just(Demand(gpus=0, kind=Kind.FREE, milli=0, cpu_milli=2000))
    return st.one_of(part, entire, none)
