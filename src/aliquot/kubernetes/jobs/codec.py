"""The status codec: turns a job's state into the field `status.controllerState` and back.

The controller writes it before it acts on it, and with the resource version that it read: if two
controllers write, the API server refuses one of them.
"""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.decode import decode_json
from aliquot.model.errors import StateError
from aliquot.model.job_state import JobState, Slot


class SavedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job's state, and facts that can only be read while a pod exists.

    - `finished`: slots whose workers ended with exit code 0; somebody may delete their pods.
    - `speeds`: samples per second that workers reported, by number of workers.
    - `disruptions`: how often in a row the job was restarted for reasons that are not its fault.
    """

    state: JobState
    finished: tuple[Slot, ...] = ()
    speeds: dict[int, float] = {}
    disruptions: int = 0


def encode_state(saved: SavedState) -> str:
    """The text for the status."""
    return msgspec.json.encode(saved).decode()


def decode_state(text: str, now: float) -> SavedState:
    """The state in the text; a new job's state if the text is empty. StateError if invalid."""
    if not text:
        return SavedState(JobState(since=now))
    try:
        return decode_json(text, SavedState)
    except msgspec.DecodeError as error:
        raise StateError(
            f"status.controllerState is invalid: {error}", "Delete the job and create it again."
        ) from error
