"""Random sequences of make, set-state, move, resize and end, against a small model of capacity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arbiter.rig import GPU, GPU_BYTES, OTHER_GPU, RESERVED_BYTES
from support import GIB

if TYPE_CHECKING:
    from arbiter.rig import Arbiter

USABLE = GPU_BYTES - RESERVED_BYTES
GPUS = (GPU, OTHER_GPU)
PRIORITIES = ("normal", "background")


@dataclass
class Part:
    """One slice."""

    memory: int
    percent: int
    priority: str

    @property
    def reserved(self) -> int:
        return 0 if self.priority == "background" else self.percent


@dataclass
class ModelGrant:
    """One grant: its slices by GPU."""

    parts: dict[str, Part]
    state: str = "active"
    swap: bool = False
    on_host: bool = False
    moves: int = 0


@dataclass
class Model:
    """The expected grants; each step returns the code that the arbiter should send."""

    grants: dict[str, ModelGrant] = field(default_factory=dict)

    def granted(self, gpu: str, except_: str = "") -> int:
        return sum(part.memory for part in self._parts(gpu, except_))

    def fits(self, parts: dict[str, Part], except_: str = "") -> bool:
        return all(
            self.granted(gpu, except_) + part.memory <= USABLE
            and (
                not part.reserved
                or sum(one.reserved for one in self._parts(gpu, except_)) + part.reserved <= 100
            )
            for gpu, part in parts.items()
        )

    def _parts(self, gpu: str, except_: str) -> list[Part]:
        counted = [
            one for name, one in self.grants.items() if one.state != "parked" and name != except_
        ]
        return [one.parts[gpu] for one in counted if gpu in one.parts]

    def make(self, name: str, parts: dict[str, Part], *, swap: bool) -> str:
        if swap and len(parts) > 1:
            return "malformed"
        if name in self.grants:
            return "name-in-use"
        if not self.fits(parts):
            return "no-capacity"
        self.grants[name] = ModelGrant(parts, swap=swap)
        return "done"

    def set_state(self, name: str, how: str) -> str:
        grant = self.grants.get(name)
        if grant is None:
            return "no-such-grant"
        if grant.state == "parked" and how != "parked" and not self.fits(grant.parts, name):
            return "no-capacity"
        grant.state = how
        return "done"

    def move(self, name: str, place: str) -> str:
        grant = self.grants.get(name)
        if grant is None:
            return "no-such-grant"
        if not grant.swap:
            return "not-swappable"
        on_host = place == "host"
        if grant.state == "parked" and grant.on_host and not on_host:
            return "parked"
        grant.moves += grant.on_host != on_host
        grant.on_host = on_host
        return "done"

    def resize(self, name: str, part: Part) -> str:
        """Change all settings of its first slice."""
        grant = self.grants.get(name)
        if grant is None:
            return "no-such-grant"
        gpu = next(iter(grant.parts))
        before = grant.parts[gpu]
        if grant.state == "parked":
            if part.memory > before.memory and part.memory > USABLE:
                return "no-capacity"
        elif not self._can_grow(name, gpu, before, part):
            return "no-capacity"
        grant.parts[gpu] = part
        return "done"

    def _can_grow(self, name: str, gpu: str, before: Part, part: Part) -> bool:
        """Whether it fits; memory that shrinks always does."""
        memory = Part(part.memory if part.memory > before.memory else 0, 0, part.priority)
        compute = Part(0, part.percent, part.priority)
        fits = memory.memory == 0 or self.granted(gpu, name) + memory.memory <= USABLE
        return fits and self.fits({gpu: compute}, name)

    def end(self, name: str) -> str:
        self.grants.pop(name, None)
        return "done"


def words(gpu: str, part: Part) -> str:
    return f"slice={gpu},memory={part.memory},compute={part.percent},priority={part.priority}"


NAMES = st.sampled_from("abcd")
PARTS = st.builds(
    Part,
    st.sampled_from([GIB, 20 * GIB, 40 * GIB, 60 * GIB, USABLE, USABLE + GIB]),
    st.sampled_from([0, 10, 50, 60, 100]),
    st.sampled_from(PRIORITIES),
)
STEPS = st.one_of(
    st.tuples(
        st.just("make"),
        NAMES,
        st.dictionaries(st.sampled_from(GPUS), PARTS, min_size=1),
        st.booleans(),
    ),
    st.tuples(st.just("move"), NAMES, st.sampled_from(["host", "gpu"])),
    st.tuples(st.just("set-state"), NAMES, st.sampled_from(["active", "switching", "parked"])),
    st.tuples(st.just("set-state"), NAMES, st.sampled_from(["active", "switching", "parked"])),
    st.tuples(st.just("resize"), NAMES, PARTS),
    st.tuples(st.just("end"), NAMES),
    st.tuples(st.just("kill")),
)


def run_step(arbiter: Arbiter, model: Model, step: tuple[Any, ...]) -> None:
    """Run one step on both sides and compare the replies."""
    match step:
        case ("kill",):
            arbiter.kill()
            arbiter.start()
            return
        case ("make", name, parts, swap):
            asked = " ".join(words(gpu, part) for gpu, part in parts.items())
            line = f"make name={name} kept=1 {'swap=1 ' if swap else ''}{asked}"
            expected = model.make(name, dict(parts), swap=swap)
        case ("move", name, place):
            line, expected = f"move name={name} to={place}", model.move(name, place)
        case ("set-state", name, how):
            line, expected = f"set-state name={name} to={how}", model.set_state(name, how)
        case ("resize", name, part):
            grant = model.grants.get(name)
            gpu = next(iter(grant.parts)) if grant else GPU
            line, expected = f"resize name={name} {words(gpu, part)}", model.resize(name, part)
        case (_, name):
            line, expected = f"end name={name}", model.end(name)
    answer = arbiter.ask(line)
    assert answer.get("code", "done") == expected, (line, answer)


def check(arbiter: Arbiter, model: Model) -> None:
    status = arbiter.status()
    assert [one["granted_bytes"] for one in status["gpus"]] == [model.granted(gpu) for gpu in GPUS]
    shown = {
        one["name"]: ModelGrant(
            {
                part["gpu"]: Part(part["memory_bytes"], part["compute_percent"], part["priority"])
                for part in one["slices"]
            },
            one["state"],
            one["swap"],
            one["residence"] == "host",
            one["moves"],
        )
        for one in status["grants"]
    }
    assert shown == model.grants
    assert all(model.granted(gpu) <= USABLE for gpu in GPUS)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, min_size=5, max_size=30))
def test_capacity_is_granted_once_and_each_step_is_atomic(
    arbiter: Arbiter, steps: list[tuple[Any, ...]]
) -> None:
    model = Model()
    for name in "abcd":
        arbiter.ask(f"end name={name}")
    for step in steps:
        run_step(arbiter, model, step)
        check(arbiter, model)
