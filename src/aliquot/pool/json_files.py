"""Files of one JSON object each, replaced atomically."""

from __future__ import annotations

import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from aliquot.pool.user_files import open_in

if TYPE_CHECKING:
    from pathlib import Path


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if the file is missing or invalid."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: Path, content: dict[str, Any], uid: int | None = None) -> None:
    """Replace a file atomically: a reader sees all of the old or all of the new object.

    Only its owner can read it: this process's user or, if root says so, the user `uid`. Nobody else
    may be able to write to the folder, nor, with `uid`, to list it. Until the file is whole it is
    this process's user's, and nobody can guess its name: `uid` cannot mount anything over it.
    """
    text = json.dumps(content)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    handle = open_in(path.parent, temporary.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if uid is not None and os.geteuid() == 0:
                os.fchown(handle, uid, -1)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
