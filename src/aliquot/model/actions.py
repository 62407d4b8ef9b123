"""What a controller must do to a job's workers now, so that they become what its state says. Pure.

The answer depends only on the stored state and on what is observed. An action that was lost is
due again until it is observed to be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.model.job_state import Stage

if TYPE_CHECKING:
    from aliquot.model.job_state import JobState, ObservedJob, Slot, Stopping


class Verb(StrEnum):
    """What a controller can do."""

    RESERVE = "reserve"  # GPUs for all of these slots or for none; parked slots get theirs back
    START = "start"
    NOTIFY = "notify"
    TERM = "term"
    KILL = "kill"
    VOID = "void"
    RELEASE = "release"
    FREEZE = "freeze"
    PARK = "park"  # give the GPUs of frozen workers back
    THAW = "thaw"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. Doing it again has no further effect."""

    verb: Verb
    slots: tuple[Slot, ...]


def due_actions(state: JobState, observed: ObservedJob) -> list[Action]:
    """The actions that are due now, in order."""
    actions = _clean_up(state, observed)
    stopping = state.stopping
    keep = state.size if stopping is None else stopping.keep
    if stopping is not None:
        actions += _stop(state.slots, keep, stopping, observed)
    elif state.frozen:
        actions += _freeze(state.slots, observed)
    else:
        actions += _start(state.slots, observed)
    frozen = tuple(slot for slot in state.slots if observed.frozen(slot))
    if not state.frozen and all(slot in observed.allocated for slot in frozen):
        actions.append(Action(Verb.THAW, frozen))
    return [action for action in actions if action.slots]


def _clean_up(state: JobState, observed: ObservedJob) -> list[Action]:
    """Remove what belongs to no slot of the job, and the grants of closed slots."""
    ours = set(state.slots)
    strays = sorted(slot for slot in observed.slots if slot not in ours and observed.alive(slot))
    unused = sorted(
        slot for slot in observed.allocated if slot not in ours and slot not in observed.slots
    )
    over = sorted(slot for slot in observed.allocated | observed.parked if observed.closed(slot))
    return [
        Action(Verb.KILL, tuple(strays)),
        Action(Verb.VOID, tuple(unused)),
        Action(Verb.RELEASE, tuple(over)),
    ]


def _stop(
    slots: tuple[Slot, ...], keep: int, stopping: Stopping, observed: ObservedJob
) -> list[Action]:
    """Stop the workers above `keep`. A notice goes to every worker: live programs adjust to it."""
    stopped = slots[keep:]
    verb = {Stage.NOTICE: Verb.NOTIFY, Stage.TERM: Verb.TERM, Stage.KILL: Verb.KILL}[stopping.stage]
    addressed = slots if stopping.stage is Stage.NOTICE else stopped
    return [
        Action(Verb.VOID, tuple(slot for slot in stopped if slot not in observed.slots)),
        Action(verb, tuple(slot for slot in addressed if observed.alive(slot))),
    ]


def _start(slots: tuple[Slot, ...], observed: ObservedJob) -> list[Action]:
    """First reserve GPUs for all missing or frozen workers, then start the missing ones."""
    missing = tuple(slot for slot in slots if slot not in observed.slots)
    wanting = missing or tuple(slot for slot in slots if observed.frozen(slot))
    if any(slot not in observed.allocated for slot in wanting):
        return [Action(Verb.RESERVE, wanting)]
    return [Action(Verb.START, missing)]


def _freeze(slots: tuple[Slot, ...], observed: ObservedJob) -> list[Action]:
    """First freeze all workers, then give their GPUs back."""
    alive = [slot for slot in slots if observed.alive(slot)]
    if running := tuple(slot for slot in alive if not observed.stays_frozen(slot)):
        return [Action(Verb.FREEZE, running)]
    return [Action(Verb.PARK, tuple(slot for slot in alive if slot in observed.allocated))]
