"""All device plugins, registered with the kubelet for as long as it lives, and with the next one.

A kubelet that starts deletes every socket in its folder and makes its own: then all plugins are
stopped, served anew and registered, within 100 ms. They are stopped first: the kubelet takes the
end of an old stream for the end of the new plugin. The same happens where the kubelet drops a
stream, or somebody deletes our sockets, also while they are being registered: a kubelet that was
just starting would look for them for 10 s.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.kubelet import wire
from aliquot.kubernetes.node.inotify import Folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aliquot.kubernetes.node.plugin import Plugin

KUBELET = "kubelet.sock"
FOLDER_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Registrar:
    """Keeps plugins registered, until cancelled."""

    def __init__(self, folder: Path, plugins: Sequence[Plugin]) -> None:
        self._folder = folder
        self._plugins = plugins
        self._backoff = Backoff(first=0.02, most=1.0)
        self.registrations = 0

    @property
    def registered(self) -> bool:
        """Whether the kubelet follows all plugins."""
        return all(plugin.listened for plugin in self._plugins)

    async def run(self) -> None:
        """Register, and again whenever that is over."""
        while not self._folder.is_dir():
            await asyncio.sleep(FOLDER_SECONDS)
        try:
            with Folder(self._folder) as folder:
                while True:
                    await self._once(folder)
                    await self._stop()
        finally:
            await self._stop()

    async def _once(self, folder: Folder) -> None:
        """Register with the kubelet that is there, and return when it is no longer that one."""
        for plugin in self._plugins:
            plugin.socket.unlink(missing_ok=True)  # an agent that was killed leaves them
        folder.forget()  # what we did to our sockets ourselves
        if not (self._folder / KUBELET).exists():
            await self._until_changed(folder)
            return
        changed = asyncio.create_task(self._until_changed(folder))
        registering = asyncio.create_task(self._register())
        try:
            await asyncio.wait([changed, registering], return_when=asyncio.FIRST_COMPLETED)
            if not changed.done():
                await self._until_over(changed, registered=registering.result())
        finally:
            for one in (changed, registering):
                one.cancel()
            await asyncio.wait([changed, registering])

    async def _register(self) -> bool:
        channel = wire.dial(self._folder / KUBELET)
        try:
            for plugin in self._plugins:
                await plugin.serve()
            await asyncio.gather(*(plugin.register(channel) for plugin in self._plugins))
        except (grpc.aio.AioRpcError, RuntimeError, OSError) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            _log.warning("the kubelet does not take the plugins", why=why)
            return False
        finally:
            await channel.close()
        self.registrations += 1
        _log.info("registered", resources=[plugin.resource for plugin in self._plugins])
        return True

    async def _until_over(self, changed: asyncio.Task[None], *, registered: bool) -> None:
        """Until a kubelet begins, our sockets are deleted, or a stream ends; or the next try."""
        if not registered:
            await asyncio.wait([changed], timeout=self._backoff.wait())
            return
        self._backoff.reset()
        lost = [asyncio.create_task(plugin.lost.wait()) for plugin in self._plugins]
        try:
            await asyncio.wait([changed, *lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in lost:
                one.cancel()
        _log.info("the kubelet is to be told of all plugins again")

    async def _until_changed(self, folder: Folder) -> None:
        ours = {plugin.socket.name for plugin in self._plugins}
        while True:
            for name, came in await folder.changes():
                if (name == KUBELET and came) or (name in ours and not came):
                    return

    async def _stop(self) -> None:
        await asyncio.gather(*(plugin.stop() for plugin in self._plugins))
