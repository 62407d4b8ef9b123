"""What must be done for the world to become what a job's record says. Pure.

It looks only at the record as it was written and at the world: what was lost is said again until it
is seen to be done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model.status import Action, Stage, Verb

if TYPE_CHECKING:
    from aliquot.model.status import Leaving, Record, Seen, Slot


def due(record: Record, seen: Seen) -> list[Action]:
    """What must be done now for the world to become what the record says."""
    actions = _clear_up(record, seen)
    leaving = record.leaving
    keep = record.size if leaving is None else leaving.keep
    if leaving is not None:
        actions += _see_off(record.slots, keep, leaving, seen)
    elif record.still:
        actions += _bring_to_rest(record.slots, seen)
    else:
        actions += _bring_in(record.slots, seen)
    frozen = tuple(slot for slot in record.slots if seen.frozen(slot))
    if not record.still and all(slot in seen.held for slot in frozen):
        actions.append(Action(Verb.THAW, frozen))
    return [action for action in actions if action.slots]


def _clear_up(record: Record, seen: Seen) -> list[Action]:
    """Whatever is there and belongs to no worker of the record."""
    ours = set(record.slots)
    strays = sorted(slot for slot in seen.slots if slot not in ours and seen.alive(slot))
    unused = sorted(slot for slot in seen.held if slot not in ours and slot not in seen.slots)
    over = sorted(slot for slot in seen.held | seen.parked if seen.closed(slot))
    return [
        Action(Verb.KILL, tuple(strays)),
        Action(Verb.VOID, tuple(unused)),
        Action(Verb.RELEASE, tuple(over)),
    ]


def _see_off(slots: tuple[Slot, ...], keep: int, leaving: Leaving, seen: Seen) -> list[Action]:
    going = slots[keep:]
    verb = {Stage.NOTICE: Verb.NOTIFY, Stage.TERM: Verb.TERM, Stage.KILL: Verb.KILL}[leaving.stage]
    asked = slots if leaving.stage is Stage.NOTICE else going
    return [
        Action(Verb.VOID, tuple(slot for slot in going if slot not in seen.slots)),
        Action(verb, tuple(slot for slot in asked if seen.alive(slot))),
    ]


def _bring_in(slots: tuple[Slot, ...], seen: Seen) -> list[Action]:
    """GPUs for all that have not come yet; then, and only then, the workers."""
    missing = tuple(slot for slot in slots if slot not in seen.slots)
    wanting = missing or tuple(slot for slot in slots if seen.frozen(slot))
    if any(slot not in seen.held for slot in wanting):
        return [Action(Verb.RESERVE, wanting)]
    return [Action(Verb.START, missing)]


def _bring_to_rest(slots: tuple[Slot, ...], seen: Seen) -> list[Action]:
    """All stand still; then, and only then, their GPUs are given back."""
    alive = [slot for slot in slots if seen.alive(slot)]
    if moving := tuple(slot for slot in alive if not seen.at_rest(slot)):
        return [Action(Verb.FREEZE, moving)]
    return [Action(Verb.PARK, tuple(slot for slot in alive if slot in seen.held))]
