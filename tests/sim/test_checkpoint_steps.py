"""Any steps by any callers, killed callers and killed processes: the sums stay correct."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sim.checkpoints import (
    CHECKPOINTED,
    ILLEGAL_STATE,
    LOCKED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    RUNNING,
    SUCCESS,
    caller_on,
    nvml_on,
    used,
)
from sim.conftest import Start
from sim.program import Program

SHAPE = "t4:1"  # small: its memory is not always free again for a restore
PROCESSES = 3
PIECE = 3 << 10  # MiB
LEADS = {
    "lock": (RUNNING, LOCKED),
    "checkpoint": (LOCKED, CHECKPOINTED),
    "restore": (CHECKPOINTED, LOCKED),
    "unlock": (LOCKED, RUNNING),
}

step = st.sampled_from(sorted(LEADS))
which = st.integers(0, PROCESSES - 1)
action = st.one_of(
    st.tuples(step, which),
    st.tuples(step, which),
    st.tuples(st.sampled_from(["take", "give"]), which),
    st.tuples(st.just("kill"), which),
    st.tuples(step.map("abandon {}".format), which),
)


@dataclass
class Expected:
    """The memory and the state that a process should have."""

    program: Program
    context: int = 0  # MiB
    pieces: list[int] = field(default_factory=list)  # their addresses
    state: int = RUNNING
    lost: bool = False  # a restore found too little free memory

    @property
    def used(self) -> int:
        return self.context + PIECE * len(self.pieces)

    @property
    def on_gpu(self) -> int:
        return 0 if self.state == CHECKPOINTED else self.used


class Machine:
    """The simulated machine, and the state that it should have."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._nvml = nvml_on(start, SHAPE)
        self._caller = caller_on(start, SHAPE)
        self._processes = [self._new() for _ in range(PROCESSES)]

    def do(self, what: str, index: int) -> None:
        process = self._processes[index]
        abandoned, _, name = what.rpartition(" ")
        if abandoned:
            self._abandon(process, name)
        elif name in LEADS:
            self._step(process, name)
        elif name == "kill":
            process.program.kill()
            self._processes[index] = self._new()
        elif process.state == RUNNING:
            self._change(process, name)

    def check(self) -> None:
        assert used(self._nvml) == sum(process.on_gpu for process in self._processes)
        listed = {str(p.program.pid): p.on_gpu for p in self._processes if p.on_gpu}
        assert self._nvml("processes", 0) == listed
        for process in self._processes:
            assert self._caller("state", process.program.pid) == [SUCCESS, process.state]

    def end(self) -> None:
        """A process that dies in any state leaves no memory in use."""
        for process in self._processes:
            process.program.kill()
        assert (used(self._nvml), self._nvml("processes", 0)) == (0, {})
        self._caller.kill()
        self._nvml.kill()

    def _new(self) -> Expected:
        before = used(self._nvml)
        program = self._start("checkpoint", SHAPE)
        code = program("try_to_begin")
        return Expected(program, 0 if code else used(self._nvml) - before)

    def _step(self, process: Expected, name: str) -> None:
        expected = self._expected(process, name)
        code = self._caller(name, process.program.pid)
        assert code == expected
        process.lost = process.lost or code == OUT_OF_MEMORY
        if code == SUCCESS:
            process.state = LEADS[name][1]

    def _expected(self, process: Expected, name: str) -> int:
        if process.state != LEADS[name][0]:
            return ILLEGAL_STATE
        if process.lost:
            return OPERATING_SYSTEM
        too_large = name == "restore" and process.used > self._nvml("memory", 0)[3]
        return OUT_OF_MEMORY if too_large else SUCCESS

    def _abandon(self, process: Expected, name: str) -> None:
        """Kill the caller in the middle: the step happened completely or not at all."""
        expected = self._expected(process, name)
        self._caller.ask(name, process.program.pid)
        self._caller.kill()
        self._caller = caller_on(self._start, SHAPE)
        code, state = self._caller("state", process.program.pid)
        assert code == SUCCESS
        assert state == process.state or (expected == SUCCESS and state == LEADS[name][1])
        process.state = state
        if expected == OUT_OF_MEMORY:  # the killed restore may or may not have failed; this one has
            assert self._caller(name, process.program.pid) in (OUT_OF_MEMORY, OPERATING_SYSTEM)
            process.lost = True

    def _change(self, process: Expected, name: str) -> None:
        if name == "give" and process.pieces:
            assert process.program("call", "cuMemFree", process.pieces.pop()) == [SUCCESS]
        elif name == "take" and process.context:
            free = self._nvml("memory", 0)[3]
            code, address = process.program("call", "cuMemAlloc", PIECE << 20)
            assert code == (SUCCESS if free >= PIECE else OUT_OF_MEMORY)
            if code == SUCCESS:
                process.pieces.append(address)


def go_on(caller: Program, pid: int) -> None:
    """Bring a process from any state to RUNNING."""
    code, state = caller("state", pid)
    assert code == SUCCESS
    for name in {RUNNING: (), LOCKED: ("unlock",), CHECKPOINTED: ("restore", "unlock")}[state]:
        assert caller(name, pid) == SUCCESS


def test_another_caller_can_continue_after_a_caller_killed_anywhere(start: Start) -> None:
    nvml, last = nvml_on(start, SHAPE), caller_on(start, SHAPE)
    targets = [start("checkpoint", SHAPE) for _ in range(2)]
    for target in targets:
        target("begin")
        assert target("call", "cuMemAlloc", PIECE << 20)[0] == SUCCESS
    whole = used(nvml)
    for looks in (1, 4, 20, 60):
        callers = [caller_on(start, SHAPE) for _ in range(3)]
        for caller in callers:
            caller.ask("step_forever", [target.pid for target in targets])
        for caller in callers:
            for _ in range(looks):
                assert used(nvml) in (0, whole // 2, whole)
            caller.kill()
        for target in targets:
            go_on(last, target.pid)
            assert target("call", "cuCtxSynchronize") == [SUCCESS]
        assert used(nvml) == whole


@given(steps=st.lists(action, min_size=10, max_size=40))
@example(
    steps=[
        *[("take", 0)] * 3, ("lock", 0), ("checkpoint", 0),
        *[("take", 1)] * 3, ("kill", 1), ("restore", 0),
        ("lock", 2), ("checkpoint", 2), ("kill", 2), ("unlock", 0), ("give", 0),
    ]
)  # fmt: skip
@example(
    steps=[
        *[("take", 0)] * 3, ("lock", 0), ("checkpoint", 0),
        *[("take", 1)] * 3, ("restore", 0), ("restore", 0), ("kill", 1), ("restore", 0),
        ("unlock", 0), ("take", 2), ("kill", 0), ("take", 0), ("lock", 0),
    ]
)  # fmt: skip
@settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_sums_are_correct_after_every_step(start: Start, steps: list[tuple[str, int]]) -> None:
    machine = Machine(start)
    for what, index in steps:
        machine.do(what, index)
        machine.check()
    machine.end()
