"""Serving a program's metrics and probe pages over HTTP."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.applications import Starlette


class SignalFreeServer(uvicorn.Server):
    """A server that leaves signals to the program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve_pages(app: Starlette, host: str, port: int) -> None:
    """Serve until cancelled."""
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", lifespan="off", access_log=False
    )
    await SignalFreeServer(config).serve()
