"""The actions that bring the workers of a job to the state in its record. Pure.

The result depends only on the stored record and on the observed workers: an action that was lost is
returned again until its effect is observed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model.record import Action, Stage, Verb

if TYPE_CHECKING:
    from aliquot.model.record import Leaving, Record, Seen, Slot


def due(record: Record, seen: Seen) -> list[Action]:
    """The actions that are needed now."""
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
    """Actions for workers and GPUs that do not belong to the record."""
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
    """Reserve GPUs for all workers that are not running; start them only after that."""
    missing = tuple(slot for slot in slots if slot not in seen.slots)
    wanting = missing or tuple(slot for slot in slots if seen.frozen(slot))
    if any(slot not in seen.held for slot in wanting):
        return [Action(Verb.RESERVE, wanting)]
    return [Action(Verb.START, missing)]


def _bring_to_rest(slots: tuple[Slot, ...], seen: Seen) -> list[Action]:
    """Freeze all workers; free their GPUs only after that."""
    alive = [slot for slot in slots if seen.alive(slot)]
    if moving := tuple(slot for slot in alive if not seen.at_rest(slot)):
        return [Action(Verb.FREEZE, moving)]
    return [Action(Verb.PARK, tuple(slot for slot in alive if slot in seen.held))]
