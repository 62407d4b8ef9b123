"""What the controller remembers of a job between two looks: one text in the job's status.

It is written with the version of the object that was read, so that of two controllers one is
refused, and before anything is done by it.
"""

from __future__ import annotations

import msgspec

from aliquot.model.errors import StateError
from aliquot.model.status import Record, Slot


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of the state machine, and what else is known only while a pod is there.

    `finished` are slots of the record whose workers have ended well: their pods may be taken away.
    `speeds` are what workers reported, by their number. `excuses`: how often in a row it was
    started again for what was no fault of its own.
    """

    record: Record
    finished: tuple[Slot, ...] = ()
    speeds: dict[int, float] = {}
    excuses: int = 0

    def encode(self) -> str:
        """As it stands in the status."""
        return msgspec.json.encode(self).decode()


def read_memory(text: str, now: float) -> Memory:
    """What was remembered; of a new job, that it has come."""
    if not text:
        return Memory(Record(since=now))
    try:
        return msgspec.json.decode(text, type=Memory)
    except msgspec.DecodeError as error:
        raise StateError(
            f"status.record cannot be read: {error}", "Delete the job and create it again."
        ) from error
