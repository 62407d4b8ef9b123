"""The names of grants and labels."""

from __future__ import annotations

import re

from aliquot.model.errors import InvalidValueError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def checked_name(name: str, wrong: str) -> str:
    """The name, unchanged; InvalidValueError with that message if it is not valid."""
    if _NAME.fullmatch(name) is None:
        raise InvalidValueError(
            wrong,
            "A name has 1 to 63 characters of A-Z a-z 0-9 . _ - and begins with a letter or digit.",
        )
    return name
