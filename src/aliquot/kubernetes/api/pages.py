"""A small HTTP server for the pages of a process: health and metrics."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_pages(app: ASGIApp, host: str, port: int) -> None:
    """Serve, until cancelled."""
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", lifespan="off", access_log=False
    )
    await _Server(config).serve()
