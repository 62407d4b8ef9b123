"""What the watcher of an MPS server decides, for any order in which things happen."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.slices.mps_state import (
    LINGER_SECONDS,
    START_SECONDS,
    MpsAction,
    MpsClient,
    MpsObservation,
    MpsPhase,
    ServerState,
    step,
)

A, B = MpsClient(10, 1), MpsClient(11, 1)
QUIET = MpsObservation(
    daemon_alive=True,
    server=7,
    faulted=False,
    clients=frozenset(),
    gone=frozenset(),
    wanted=True,
)
READY = ServerState(MpsPhase.READY, server=7, clients=frozenset({A, B}))

pids = st.integers(10, 13)
clients = st.frozensets(st.builds(MpsClient, pids, st.integers(1, 2)), max_size=3)
observations = st.builds(
    MpsObservation,
    daemon_alive=st.booleans(),
    server=st.sampled_from([None, 7, 8]),
    faulted=st.booleans(),
    clients=clients,
    gone=clients,
    wanted=st.booleans(),
    answers=st.booleans(),
)


def test_after_a_fault_new_clients_wait_until_the_old_ones_are_gone() -> None:
    seen = replace(QUIET, clients=frozenset({A, B}), faulted=True)
    state, actions = step(READY, seen, 1.0)
    assert (state.phase, actions) == (MpsPhase.DRAINING, (MpsAction.TELL,))
    assert state.old == {A, B}
    state, actions = step(state, replace(seen, gone=frozenset({A})), 2.0)
    assert (state.phase, actions) == (MpsPhase.DRAINING, ())
    assert state.old == {B}
    state, actions = step(state, replace(QUIET, gone=frozenset({B})), 3.0)
    assert (state.phase, actions) == (MpsPhase.STARTING, (MpsAction.START_SERVER,))
    state, _ = step(state, replace(QUIET, server=8), 4.0)
    assert (state.phase, state.server, state.why) == (MpsPhase.READY, 8, "")


def test_a_daemon_that_dies_takes_its_server_along_and_is_started_again() -> None:
    seen = replace(QUIET, daemon_alive=False, server=None)
    state, actions = step(READY, seen, 1.0)
    assert actions == (MpsAction.END_SERVER, MpsAction.TELL)
    state, actions = step(state, replace(seen, gone=frozenset({A, B})), 2.0)
    assert (state.phase, actions) == (MpsPhase.STARTING, (MpsAction.START_DAEMON,))


def test_a_daemon_that_does_not_answer_changes_nothing_for_its_clients() -> None:
    unknown = replace(QUIET, server=None, answers=False)
    state, actions = step(READY, unknown, 1.0)
    assert (state.phase, actions) == (MpsPhase.SILENT, ())
    assert state.clients == {A, B}
    again, _ = step(state, replace(QUIET, clients=frozenset({A})), 2.0)
    assert (again.phase, again.clients, again.why) == (MpsPhase.READY, frozenset({A}), "")
    failed, _ = step(state, replace(unknown, daemon_alive=False), 2.0)
    assert (failed.phase, failed.old) == (MpsPhase.DRAINING, frozenset({A, B}))
    unwanted = replace(unknown, gone=frozenset({A, B}), wanted=False)
    state, _ = step(state, unwanted, 2.0)
    state, actions = step(state, unwanted, 2.0 + LINGER_SECONDS)
    assert (state.phase, actions) == (MpsPhase.ENDED, (MpsAction.QUIT,))


def test_a_server_without_grants_ends_after_a_while() -> None:
    state = replace(READY, clients=frozenset())
    unwanted = replace(QUIET, wanted=False)
    state, _ = step(state, unwanted, 100.0)
    state, actions = step(state, unwanted, 100.0 + LINGER_SECONDS - 1)
    assert (state.phase, actions) == (MpsPhase.READY, ())
    again, _ = step(state, QUIET, 100.0 + LINGER_SECONDS)
    assert again.unwanted_since is None
    state, actions = step(state, unwanted, 100.0 + LINGER_SECONDS)
    assert (state.phase, actions) == (MpsPhase.ENDED, (MpsAction.QUIT,))


def test_a_server_that_does_not_start_is_given_up() -> None:
    state, actions = step(ServerState(), replace(QUIET, server=None), START_SECONDS + 1)
    assert (state.phase, actions) == (MpsPhase.ENDED, (MpsAction.QUIT,))
    assert "no server started" in state.why


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(observations, max_size=30))
def test_clients_of_a_failed_server_and_new_ones_never_meet(seen: list[MpsObservation]) -> None:
    state = ServerState()
    told: set[MpsClient] = set()
    for now, one in enumerate(seen):
        before = state
        state, actions = step(state, one, float(now))
        if state.phase is MpsPhase.READY:
            assert not state.old
        if MpsAction.TELL in actions:
            assert state.old
            assert state.why
            told |= state.old
        assert state.old <= told
        assert not state.old & one.gone
        if before.phase is MpsPhase.ENDED:
            assert (state.phase, actions) == (MpsPhase.ENDED, ())
        if MpsAction.QUIT in actions:
            assert state.phase is MpsPhase.ENDED
            assert not state.clients or before.phase is MpsPhase.STARTING
        if state.phase is MpsPhase.ENDED and before.phase not in {
            MpsPhase.STARTING,
            MpsPhase.ENDED,
        }:
            assert not one.wanted
