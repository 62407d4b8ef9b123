"""What `import aliquot` gives a program: the same as the commands, with the same errors.

- `slice`: a block whose child processes run in a slice, as with `aliquot run`.
- `submit`, `job`, `jobs`: jobs of the pool, as with `aliquot submit` and `aliquot jobs`.
- `gpus`, `grants`: as with `aliquot gpus` and `aliquot ps`.

Every function takes `simulate`, as the commands do; without it, ALIQUOT_SIMULATE counts.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, overload

from aliquot import devices, slices
from aliquot.model import (
    Isolation,
    Policy,
    Priority,
    Request,
    parse_amount,
    parse_duration,
    parse_host_memory,
    parse_share,
)
from aliquot.model.errors import ArbiterError, InvalidValueError, NestedGrantError
from aliquot.model.job import (
    Dependency,
    Job,
    JobPhase,
    Sizes,
    check_indices,
    parse_dependency,
    parse_indices,
    parse_sizes,
)
from aliquot.model.neighbours import Neighbours
from aliquot.model.parking_rule import ParkingRule, parse_parking_rule
from aliquot.model.selection import GpuSelection
from aliquot.model.strength import parse_strength
from aliquot.model.units import EQUAL
from aliquot.pool.client import NoPoolError, connect
from aliquot.pool.grant_seeker import Wait, open_grant
from aliquot.pool.submission import submit_job
from aliquot.slices import control
from aliquot.slices.arbiter_status import SharedGpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Literal, TypeAlias, Unpack

    from aliquot.devices import Shape
    from aliquot.model import Grant
    from aliquot.model.job import Indices

    After: TypeAlias = "PoolJob | str | int"
    Names = str | int | Iterable[str | int]  # of models, GPUs or labels
    PolicyName = Policy | Literal["elastic", "hard"]
    IsolationName = Isolation | Literal["soft", "mps", "hardware"]
    PriorityName = Priority | Literal["latency", "normal", "background"]

SIMULATE = "ALIQUOT_SIMULATE"

_Word = TypeVar("_Word", Policy, Priority, Isolation)

_POLL_SECONDS = 0.2
_POOL_AWAY_SECONDS = 30.0  # as long as a pool may need to be restarted or upgraded


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU: its memory, what programs use of it, and what grants have of it.

    `strength` is 100 for an A100, and 0 if it is unknown.
    """

    index: int
    uuid: str
    model: str
    memory_bytes: int
    used_bytes: int
    granted_bytes: int
    strength: float = 0.0


@dataclass(frozen=True, slots=True)
class GrantedSlice:
    """A slice for child processes. `environment` is what they must have to run in it."""

    name: str
    gpus: tuple[GpuInfo, ...]
    environment: dict[str, str] = field(repr=False)


class _Export:
    """The slice that this process's own environment leads to: at most one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.name: str | None = None

    @contextmanager
    def of(self, part: GrantedSlice) -> Iterator[None]:
        """Put the slice's variables into `os.environ` for the block."""
        self._take(part.name)
        new, old = part.environment, dict(os.environ)
        changed = [key for key in {*new, *old} if new.get(key) != old.get(key)]
        try:
            _set_variables(changed, new)
            yield
        finally:
            _set_variables(changed, old)
            self.name = None

    def _take(self, name: str) -> None:
        with self._lock:
            self.refuse_second()
            self.name = name

    def refuse_second(self) -> None:
        """Raise NestedGrantError inside another block that exports its slice."""
        if self.name is not None:
            raise NestedGrantError(
                f"this program's environment leads to the slice {self.name} already",
                "For several slices at once make each with export=False, and start processes with"
                " env=part.environment.",
            )


_exported = _Export()


@contextmanager
def slice(  # noqa: A001, PLR0913 - the name of the thing; one for each option of `aliquot run`
    *,
    memory: str | int | None = None,
    compute: str | int | None = None,
    gpus: int = 1,
    policy: PolicyName = Policy.ELASTIC,
    priority: PriorityName = Priority.NORMAL,
    name: str | None = None,
    together: str | None = None,
    min_strength: str | float | None = None,
    model: Names = (),
    gpu: Names = (),
    not_gpu: Names = (),
    label: str | None = None,
    with_: str | None = None,
    apart_from: Names = (),
    alone: bool = False,
    swap: bool | None = None,
    park_after: str | float | None = None,
    swap_wait: str | float | None = None,
    spill: str | int | None = None,
    isolation: IsolationName = Isolation.SOFT,
    wait: bool | str | float = False,
    queue: str | None = None,
    simulate: str | None = None,
    export: bool = True,
) -> Iterator[GrantedSlice]:
    """Make a slice for the block: processes that start inside it run in the slice.

    The settings are those of `aliquot run`. If no GPU is free, `wait=True` waits in that `queue` of
    the pool; `wait="10m"` or seconds do so for that long, and then raise WaitTimeoutError.

    This process itself is not in the slice, nor are processes that it forks without exec. When the
    block ends, the grant accepts no more processes, and ends with the last one that is in it. It
    also ends when this process does.

    Inside the block `os.environ` leads to the slice. With `export=False` it does not, and processes
    need `env=part.environment`: for several slices at once, in threads or nested.
    """
    _exported.refuse_second()
    request = read_request(
        memory=memory,
        compute=compute,
        gpus=gpus,
        policy=policy,
        priority=priority,
        together=together,
        min_strength=min_strength,
        model=model,
        gpu=gpu,
        not_gpu=not_gpu,
        label=label,
        with_=with_,
        apart_from=apart_from,
        alone=alone,
        swap=swap,
        park_after=park_after,
        swap_wait=swap_wait,
        spill=spill,
        isolation=isolation,
    )
    opened = open_grant(
        read_shape(simulate),
        request,
        name,
        _program_name(),
        os.environ,
        read_wait(wait),
        queue=queue,
    )
    pid = os.getpid()
    try:
        part = GrantedSlice(
            opened.made.name,
            tuple(_gpu_info(one) for one in opened.made.gpus),
            opened.environment,
        )
        with _exported.of(part) if export else nullcontext():
            yield part
    finally:
        if os.getpid() == pid:  # not in a forked child
            slices.revive(opened.state)
            control.end(opened.state.directory, opened.made.name)


def gpus(*, simulate: str | None = None) -> tuple[GpuInfo, ...]:
    """The GPUs of this machine."""
    state = slices.locate(read_shape(simulate))
    try:
        slices.revive(state)
        return tuple(_gpu_info(one) for one in control.status(state.directory).gpus)
    except ArbiterError:  # none runs: nothing is granted
        slices.prepare(state)
        found = devices.read_inventory(state.driver()).gpus
    return tuple(_gpu_info(SharedGpu(gpu, 0, ())) for gpu in found if not gpu.mig)


def grants(*, simulate: str | None = None) -> tuple[Grant, ...]:
    """The grants of this machine. Of other users' grants you see the slices only."""
    state = slices.locate(read_shape(simulate))
    try:
        slices.revive(state)
        return control.status(state.directory).grants
    except control.SilentArbiterError:
        raise
    except control.NoArbiterError:
        return ()


@dataclass(frozen=True, slots=True)
class PoolJob:
    """A job of the pool. It stays the same job if the pool restarts or the name is used again."""

    number: int
    name: str
    _pool: Shape | None = field(default=None, repr=False)

    @property
    def status(self) -> JobPhase:
        """The phase that the job is in now: Pending, Running, Succeeded and so on."""
        return JobPhase(connect(self._pool).job(str(self.number))["state"]["phase"])

    @property
    def exit_code(self) -> int | None:
        """The exit code of the finished job, as `aliquot wait` has it; None before its end."""
        code = connect(self._pool).job(str(self.number))["exit_code"]
        return None if code is None else int(code)

    @property
    def reason(self) -> str:
        """Why it waits, or how it came to its phase."""
        found = connect(self._pool).job(str(self.number))
        return str(found["waiting"] or found["state"]["reason"])

    def wait(self, timeout: float | None = None) -> JobPhase:
        """Wait until the job is finished, and return how: Succeeded, Failed or Cancelled.

        TimeoutError after `timeout` seconds. A pool that restarts meanwhile is waited for.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        away_since = None
        while True:
            try:
                if (phase := self.status).final:
                    return phase
                away_since = None
            except NoPoolError:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > _POOL_AWAY_SECONDS:
                    raise
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {self.name} is not finished after {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def logs(self, rank: int = 0) -> str:
        """The output of a worker so far: the last 64 MiB."""
        client, content, start = connect(self._pool), bytearray(), 0
        while (found := client.log(str(self.number), rank, start)).content:
            content += found.content
            start = found.start + len(found.content)
        return content.decode(errors="replace")

    def suspend(self) -> None:
        """Give the job's GPUs to others until `resume`. Does not wait."""
        self._ask("suspend")

    def resume(self) -> None:
        """Let a suspended job run again when GPUs are free. Does not wait."""
        self._ask("resume")

    def cancel(self) -> None:
        """Stop the job for good. Does not wait."""
        self._ask("cancel")

    def _ask(self, verb: str) -> None:
        connect(self._pool).request(str(self.number), verb)


class JobSettings(TypedDict, total=False):
    """The settings of `submit`, except `array`."""

    workers: str | int
    memory: str | int | None
    compute: str | int | None
    gpus: int
    policy: PolicyName
    priority: PriorityName
    queue: str
    urgency: int
    name: str | None
    together: str | None
    min_strength: str | float | None
    model: Names
    gpu: Names
    not_gpu: Names
    label: str | None
    with_: str | None
    apart_from: Names
    alone: bool
    swap: bool | None
    park_after: str | float | None
    swap_wait: str | float | None
    spill: str | int | None
    isolation: IsolationName
    retries: int
    notice: float
    grace: float
    time: str | float | None
    after: After | Iterable[After]
    live: bool
    directory: str | os.PathLike[str] | None
    environment: Mapping[str, str] | None
    simulate: str | None


@overload
def submit(
    command: Sequence[str], *, array: None = None, **settings: Unpack[JobSettings]
) -> PoolJob: ...


@overload
def submit(
    command: Sequence[str], *, array: str | Iterable[int], **settings: Unpack[JobSettings]
) -> tuple[PoolJob, ...]: ...


def submit(  # noqa: PLR0913 - one for each option of `aliquot submit`
    command: Sequence[str],
    *,
    workers: str | int = 1,
    memory: str | int | None = None,
    compute: str | int | None = None,
    gpus: int = 1,
    policy: PolicyName = Policy.ELASTIC,
    priority: PriorityName = Priority.NORMAL,
    queue: str = "default",
    urgency: int = 0,
    name: str | None = None,
    together: str | None = None,
    min_strength: str | float | None = None,
    model: Names = (),
    gpu: Names = (),
    not_gpu: Names = (),
    label: str | None = None,
    with_: str | None = None,
    apart_from: Names = (),
    alone: bool = False,
    swap: bool | None = None,
    park_after: str | float | None = None,
    swap_wait: str | float | None = None,
    spill: str | int | None = None,
    isolation: IsolationName = Isolation.SOFT,
    retries: int = 0,
    notice: float = 30.0,
    grace: float = 10.0,
    time: str | float | None = None,
    after: After | Iterable[After] = (),
    array: str | Iterable[int] | None = None,
    live: bool = False,
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    simulate: str | None = None,
) -> PoolJob | tuple[PoolJob, ...]:
    """Submit a command to the pool. The settings are those of `aliquot submit`.

    Workers run in `directory` with `environment`; without these, in those of this process.

    - `time`: how long it may run, in seconds or as "2h".
    - `after`: jobs, numbers or names ("train", "train:any") that it starts after.
    - `array`: indices, as "1-10%2" or range(1, 11). The result is then a job for each index.
    """
    if isinstance(command, str) or not command:
        raise InvalidValueError(
            f"{command!r} is not a command", 'Write a list, for example ["python", "train.py"].'
        )
    request = read_request(
        memory=memory,
        compute=compute,
        gpus=gpus,
        policy=policy,
        priority=priority,
        together=together,
        min_strength=min_strength,
        model=model,
        gpu=gpu,
        not_gpu=not_gpu,
        label=label,
        with_=with_,
        apart_from=apart_from,
        alone=alone,
        swap=swap,
        park_after=park_after,
        swap_wait=swap_wait,
        spill=spill,
        isolation=isolation,
    )
    job = Job(
        number=0,
        name=name or "",
        command=tuple(map(str, command)),
        request=request,
        sizes=Sizes((workers,)) if isinstance(workers, int) else parse_sizes(workers),
        queue=queue,
        urgency=urgency,
        live=live,
        retries=retries,
        notice_seconds=notice,
        grace_seconds=grace,
        time_seconds=parse_duration(time) if isinstance(time, str) else time,
        after=_read_after(after),
    )
    shape = read_shape(simulate)
    stored = submit_job(
        connect(shape),
        job,
        None if array is None else _read_indices(array),
        Path(directory or Path.cwd()).absolute(),
        os.environ if environment is None else environment,
    )
    made = tuple(PoolJob(one["number"], one["name"], shape) for one in stored)
    return made[0] if array is None else made


def job(name: str | int, *, simulate: str | None = None) -> PoolJob:
    """The job of that name or number."""
    shape = read_shape(simulate)
    found = connect(shape).job(str(name))
    return PoolJob(found["number"], found["name"], shape)


def jobs(*, with_finished: bool = False, simulate: str | None = None) -> tuple[PoolJob, ...]:
    """The unfinished jobs or all jobs, in the order they were submitted."""
    shape = read_shape(simulate)
    found = connect(shape).jobs(with_finished=with_finished)
    return tuple(PoolJob(one["number"], one["name"], shape) for one in found)


def read_request(  # noqa: PLR0913 - one for each setting
    *,
    memory: str | int | None = None,
    compute: str | int | None = None,
    gpus: str | int = 1,
    policy: str = Policy.ELASTIC,
    priority: str = Priority.NORMAL,
    together: str | None = None,
    min_strength: str | float | None = None,
    model: Names = (),
    gpu: Names = (),
    not_gpu: Names = (),
    label: str | None = None,
    with_: str | None = None,
    apart_from: Names = (),
    alone: bool = False,
    swap: bool | None = None,
    park_after: str | float | None = None,
    swap_wait: str | float | None = None,
    spill: str | int | None = None,
    isolation: IsolationName = Isolation.SOFT,
) -> Request:
    """The request that these settings mean, written as options of `aliquot run` are."""
    if not str(gpus).isdecimal():
        raise InvalidValueError(f"{gpus!r} is not a number of GPUs")
    return Request(
        gpus=int(gpus),
        memory=None if memory is None else parse_amount(str(memory)),
        compute_percent=parse_share(EQUAL if compute is None else str(compute)),
        policy=read_word(Policy, policy),
        priority=read_word(Priority, priority),
        together=together,
        min_strength=0.0 if min_strength is None else parse_strength(str(min_strength)),
        which=GpuSelection(_names(model), _names(gpu), _names(not_gpu)),
        neighbours=Neighbours(label, with_, _names(apart_from), alone),
        swap=swap,
        park_after=None if park_after is None else _parking_rule(park_after),
        swap_wait=_swap_wait(swap_wait),
        spill=0 if spill is None else parse_host_memory(str(spill), "spill"),
        isolation=read_word(Isolation, isolation),
    )


def _swap_wait(given: str | float | None) -> float:
    """`30s`, a number of seconds, or None: 0."""
    return parse_duration(given) if isinstance(given, str) else float(given or 0)


def _parking_rule(given: str | float) -> ParkingRule:
    """`10m`, `10m,always`, or a number of seconds."""
    return parse_parking_rule(given) if isinstance(given, str) else ParkingRule(given)


def _names(given: Names) -> tuple[str, ...]:
    """One name, or several: models, labels, or GPUs by index or UUID."""
    return (str(given),) if isinstance(given, (str, int)) else tuple(map(str, given))


def read_word(kind: type[_Word], text: str) -> _Word:
    """The policy or priority of that name."""
    try:
        return kind(text)
    except ValueError as error:
        noun = kind.__name__.lower()
        raise InvalidValueError(
            f"{text!r} is not a {noun}", f"Write one of {', '.join(kind)}."
        ) from error


def read_wait(wait: bool | str | float) -> Wait | None:  # noqa: FBT001 - a setting
    """How long to wait for GPUs: True and infinity are without limit, False is not at all.

    With 0 it takes a place in the queue, and gives it up if the pool does not start it at once.
    """
    if isinstance(wait, bool):
        return Wait() if wait else None
    seconds = parse_duration(wait) if isinstance(wait, str) else wait
    if not seconds >= 0:  # NaN is not either
        raise InvalidValueError(
            f"{wait!r} is not a time to wait", 'Write seconds, "10m", or True for no limit.'
        )
    return Wait(None if math.isinf(seconds) else seconds)


def read_shape(simulate: str | None) -> Shape | None:
    """The simulated machine of that name, or of ALIQUOT_SIMULATE; None: this machine."""
    name = simulate or os.environ.get(SIMULATE)
    return devices.parse_shape(name) if name else None


def _read_after(after: After | Iterable[After]) -> tuple[Dependency, ...]:
    """The jobs to start after: one, or several."""
    several = (after,) if isinstance(after, PoolJob | str | int) else after
    return tuple(
        parse_dependency(str(one.number if isinstance(one, PoolJob) else one)) for one in several
    )


def _read_indices(array: str | Iterable[int]) -> Indices:
    if isinstance(array, str):
        return parse_indices(array)
    return check_indices(tuple(array), None), None


def _program_name() -> str:
    return Path(sys.argv[0] if sys.argv else "").name or "python"


def _gpu_info(one: SharedGpu) -> GpuInfo:
    gpu = one.gpu
    return GpuInfo(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        memory_bytes=gpu.memory_bytes,
        used_bytes=gpu.used_bytes,
        granted_bytes=one.granted_bytes,
        strength=gpu.strength,
    )


def _set_variables(names: Sequence[str], values: Mapping[str, str]) -> None:
    for name in names:
        if (value := values.get(name)) is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
