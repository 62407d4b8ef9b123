"""The nodes and pods of `aliquot simulate` and `explain`: from two file formats, or generated."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.model.errors import InstallationError, InvalidValueError
from aliquot.model.units import format_bytes

try:
    from aliquot.placement.choose.strategies import STRATEGIES
    from aliquot.placement.core.snapshot import empty
    from aliquot.simulate import generate, openb, trace
    from aliquot.simulate.rows import read_head
except ImportError as error:
    if error.name != "numpy":
        raise
    raise InstallationError(
        "numpy is not installed", "Install it with: pip install numpy"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aliquot.placement.core.snapshot import NodeHardware
    from aliquot.placement.queues.quota import Queue
    from aliquot.simulate.openb import OpenbPod

ARRIVE = 1.3
FORMATS = 'docs/placement.md, "Traces", describes both formats.'
IN_COMMON = {"name", "cpu_milli", "memory_mib", "model"}


@dataclass(frozen=True)
class TraceSource:
    """Where nodes, requests and queues come from: files, or a generated day on `day` nodes."""

    nodes: Path | None = None
    pods: Path | None = None
    day: int | None = None
    queues: Path | None = None
    arrive: float | None = None

    def __post_init__(self) -> None:
        if self.day is not None and (self.nodes or self.pods):
            raise InvalidValueError(
                "--day makes its own nodes and requests",
                "Leave it out, or leave out --nodes and --pods.",
            )
        if self.day is not None and self.arrive is not None:
            raise InvalidValueError(
                "--arrive is for openb's lists: a generated day has times of its own",
                "Leave out --arrive.",
            )

    def files(self) -> tuple[Path, Path]:
        """Both files, or InvalidValueError."""
        if self.nodes is None or self.pods is None:
            raise InvalidValueError(
                "there is nothing to simulate",
                "Give --nodes NODES.csv and --pods PODS.csv, or --day 16 for a generated day on 16"
                " nodes.",
            )
        return self.nodes, self.pods

    @cached_property
    def is_openb(self) -> bool:
        """Whether the files are lists of the openb trace."""
        if self.day is not None:
            return False
        nodes, pods = self.files()
        formats = has_nodes_of_openb(nodes), has_pods_of_openb(pods)
        if set(formats) == {True, False}:
            theirs, ours = (nodes, pods) if formats[0] else (pods, nodes)
            raise InvalidValueError(
                f"{theirs} is a list of openb, and {ours} is in our format",
                f"Give both in one format. {FORMATS}",
            )
        is_openb = True in formats
        if is_openb and self.queues is not None:
            raise InvalidValueError(
                f"the pods of {self.pods} have no queues: they come one by one, and stay",
                "Leave out --queues, or give --pods in our format.",
            )
        if not is_openb and self.arrive is not None:
            raise InvalidValueError(
                f"--arrive is for openb's lists: the gangs of {pods} have times of their own",
                "Leave out --arrive.",
            )
        return is_openb


def has_nodes_of_openb(path: Path) -> bool | None:
    """Whether a file of nodes is openb's (False: ours); None if its columns do not tell."""
    return _is_openb(path, openb.NODES.known, trace.NODES.known)


def has_pods_of_openb(path: Path) -> bool | None:
    """Whether a file of pods or gangs is openb's (False: ours); None if its columns do not tell."""
    return _is_openb(path, openb.PODS.known, trace.GANGS.known)


def _is_openb(path: Path, theirs: Sequence[str], ours: Sequence[str]) -> bool | None:
    head = read_head(path) - IN_COMMON
    of_theirs, of_ours = len(head & set(theirs)), len(head & set(ours))
    return None if of_theirs == of_ours else of_theirs > of_ours


def of_openb(source: TraceSource) -> tuple[list[NodeHardware], list[OpenbPod]]:
    """The nodes and pods of openb's lists."""
    nodes, pods = source.files()
    return openb.read_nodes(nodes), openb.read_pods(pods)


def timed(
    source: TraceSource, seed: int
) -> tuple[list[NodeHardware], list[trace.Arrival], dict[str, Queue]]:
    """The nodes, gangs and queues of a trace with times, or of a generated day."""
    if source.day is not None:
        specs, arrivals = generate.cluster(source.day), generate.day(source.day, seed)
    else:
        nodes, gangs = source.files()
        specs, arrivals = trace.read_nodes(nodes), trace.read_gangs(gangs)
    queues = {} if source.queues is None else trace.read_queues(source.queues)
    for gang in (one.gang for one in arrivals if queues):
        if gang.queue not in queues:
            wrong = f"has no queue {gang.queue!r}" if gang.queue else "has queues"
            which = "which gang {!r} is in" if gang.queue else "and gang {!r} names none"
            raise InvalidValueError(
                f"{source.queues} {wrong}, {which.format(gang.name)}",
                f"There are: {', '.join(queues)}. Add a line, or change the gang's column queue.",
            )
    return specs, arrivals, queues


def warn_of_quotas(
    source: TraceSource, specs: Sequence[NodeHardware], queues: dict[str, Queue]
) -> None:
    """Warn on standard error if the quotas add up to more than the nodes have."""
    hardware = empty(specs).hardware
    own = sum(one.quota.milli or 0 for one in queues.values())
    own_bytes = sum(one.quota.bytes or 0 for one in queues.values())
    more = []
    if own > hardware.total_milli:
        there = hardware.total_milli / 1000
        more.append(f"{own / 1000:.10g} GPUs, and the nodes have {there:.10g}")
    if own_bytes > hardware.total_bytes > 0:
        there_is = format_bytes(hardware.total_bytes)
        more.append(f"{format_bytes(own_bytes)} of GPU memory, and the nodes have {there_is}")
    for words in more:
        sys.stderr.write(
            f"aliquot: the quotas of {source.queues} are {words}: not every queue can have its"
            " own at once\n"
        )


def check_strategies(names: Sequence[str]) -> None:
    """Refuse a name that is not a strategy."""
    for name in names:
        if name not in STRATEGIES:
            raise InvalidValueError(
                f"there is no strategy {name!r}", f"There are: {', '.join(STRATEGIES)}."
            )


def check_plot(path: Path | None) -> None:
    """Refuse a plot file that could not be written at the end."""
    if path is None:
        return
    if path.suffix.lower() != ".svg":
        raise InvalidValueError(
            f"--plot {path}: plots are SVG files", f"Write {path.with_suffix('.svg')}."
        )
    if not path.parent.is_dir():
        raise InvalidValueError(
            f"--plot {path}: there is no folder {path.parent}", "Make it, or name another."
        )
