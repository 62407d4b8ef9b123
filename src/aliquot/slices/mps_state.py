"""What the watcher of an MPS server does next: a pure decision from what it observes.

All clients of an MPS server share its fate. If one of them fails, NVIDIA's server ends the GPU work
of all. So after a failure the watcher tells every client why its work ended, waits until the last
of them is gone, and only then lets new ones in. A server without grants ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

LINGER_SECONDS = 10.0  # without a grant, before the server ends
START_SECONDS = 60.0


class MpsPhase(StrEnum):
    """What a server is doing."""

    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"  # its daemon does not answer: clients go on, and nobody joins
    DRAINING = "draining"  # it has failed, and clients of before are still there
    ENDED = "ended"


class MpsAction(StrEnum):
    """What the watcher must do now."""

    START_DAEMON = "start-daemon"
    START_SERVER = "start-server"
    TELL = "tell"  # the clients in `old`, why their work ended
    END_SERVER = "end-server"  # what a daemon that died has left
    QUIT = "quit"


@dataclass(frozen=True, slots=True, order=True)
class MpsClient:
    """A process, for ever: a later one with its pid started at another time."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class MpsObservation:
    """What the watcher sees at one moment.

    `server` is the server's pid; None: there is none. `clients` are what its daemon lists, `gone`
    says which processes have ended, of those that the state names. `wanted`: a grant of this user
    is for clients on this GPU. If the daemon lives and does not answer (`answers`), nothing is
    known of `server`, `faulted` and `clients`.
    """

    daemon_alive: bool
    server: int | None
    faulted: bool
    clients: frozenset[MpsClient]
    gone: frozenset[MpsClient]
    wanted: bool
    answers: bool = True


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server: its phase, its clients as last seen, those of before its failure, and why."""

    phase: MpsPhase = MpsPhase.STARTING
    since: float = 0.0
    server: int | None = None
    clients: frozenset[MpsClient] = frozenset()
    old: frozenset[MpsClient] = frozenset()
    why: str = ""
    failures: int = 0
    unwanted_since: float | None = None


def step(
    state: ServerState, seen: MpsObservation, now: float
) -> tuple[ServerState, tuple[MpsAction, ...]]:
    """The next state, and what to do on the way to it."""
    seen = replace(seen, clients=seen.clients - seen.gone)
    unwanted = now if state.unwanted_since is None else state.unwanted_since
    state = replace(
        state,
        old=state.old - seen.gone,
        clients=state.clients - seen.gone,
        unwanted_since=None if seen.wanted else unwanted,
    )
    match state.phase:
        case MpsPhase.STARTING:
            return _starting(state, seen, now)
        case MpsPhase.READY | MpsPhase.SILENT:
            return _ready(state, seen, now)
        case MpsPhase.DRAINING:
            return _draining(state, seen, now)
        case MpsPhase.ENDED:
            return state, ()


def _starting(
    state: ServerState, seen: MpsObservation, now: float
) -> tuple[ServerState, tuple[MpsAction, ...]]:
    if seen.daemon_alive and seen.server is not None and not seen.faulted:
        ready = replace(
            state, phase=MpsPhase.READY, since=now, server=seen.server, clients=seen.clients, why=""
        )
        return ready, ()
    if not seen.daemon_alive:
        why = "its control daemon ended while it started"
        return replace(state, phase=MpsPhase.ENDED, since=now, why=why), (MpsAction.QUIT,)
    if now - state.since > START_SECONDS:
        why = f"no server started within {START_SECONDS:g} s"
        return replace(state, phase=MpsPhase.ENDED, since=now, why=why), (MpsAction.QUIT,)
    return state, ()


def _ready(
    state: ServerState, seen: MpsObservation, now: float
) -> tuple[ServerState, tuple[MpsAction, ...]]:
    if not seen.daemon_alive:
        return _fail(state, "its control daemon ended", now, MpsAction.END_SERVER)
    if not seen.answers:
        return _silent(state, now)
    if seen.faulted:
        why = "a client failed on the GPU, and that ends the GPU work of all clients"
        return _fail(replace(state, clients=state.clients | seen.clients), why, now)
    if seen.server is None or (seen.server != state.server and state.clients):
        return _fail(state, "the server ended", now)
    state = replace(state, phase=MpsPhase.READY, server=seen.server, clients=seen.clients, why="")
    if _may_end(state, now):
        return replace(state, phase=MpsPhase.ENDED, since=now), (MpsAction.QUIT,)
    return state, ()


def _silent(state: ServerState, now: float) -> tuple[ServerState, tuple[MpsAction, ...]]:
    """Nothing is known of the server, so it is not taken for a dead one."""
    if _may_end(state, now):
        return replace(state, phase=MpsPhase.ENDED, since=now), (MpsAction.QUIT,)
    if state.phase is MpsPhase.SILENT:
        return state, ()
    why = "its control daemon does not answer"
    return replace(state, phase=MpsPhase.SILENT, since=now, why=why), ()


def _fail(
    state: ServerState, why: str, now: float, *first: MpsAction
) -> tuple[ServerState, tuple[MpsAction, ...]]:
    failed = replace(
        state,
        phase=MpsPhase.DRAINING,
        since=now,
        old=state.old | state.clients,
        clients=frozenset(),
        why=why,
        failures=state.failures + 1,
    )
    return failed, (*first, *((MpsAction.TELL,) if failed.old else ()))


def _draining(
    state: ServerState, seen: MpsObservation, now: float
) -> tuple[ServerState, tuple[MpsAction, ...]]:
    if state.old:
        return state, ()
    if _may_end(state, now):
        return replace(state, phase=MpsPhase.ENDED, since=now), (MpsAction.QUIT,)
    starting = replace(state, phase=MpsPhase.STARTING, since=now, server=None)
    return starting, (MpsAction.START_SERVER if seen.daemon_alive else MpsAction.START_DAEMON,)


def _may_end(state: ServerState, now: float) -> bool:
    """No grant is for clients, and none has been for a while; nor is any client left."""
    unwanted = state.unwanted_since
    return not state.clients and unwanted is not None and now - unwanted >= LINGER_SECONDS
