"""The console of one machine as an ASGI application."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aliquot.console import openapi
from aliquot.console.assembly import assemble
from aliquot.console.endpoints import ConsoleApi
from aliquot.console.guard import Guard, MachineEntrance, Site
from aliquot.console.snapshots import LiveSnapshots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.types import ASGIApp

    from aliquot.console.sign_in import SignIn
    from aliquot.console.snapshots import Machine


def make_application(machine: Machine, sign_in: SignIn, site: Site) -> ASGIApp:
    """The console of one machine."""
    snapshots = LiveSnapshots(machine)
    endpoints = ConsoleApi(snapshots, sign_in, site)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        reading = asyncio.create_task(snapshots.run())
        yield
        reading.cancel()
        await asyncio.to_thread(machine.store.close)

    app = assemble(endpoints, openapi.OPERATIONS, site, lifespan)
    app.state.end = snapshots.end
    return Guard(app, site, MachineEntrance(sign_in))
