"""Registration of all device plugins with the kubelet, for as long as it lives, and with the next.

A kubelet that starts deletes every socket in its folder and makes its own. Then the agent stops all
plugins, serves them anew and registers them, within 100 ms. It stops them first: the kubelet takes
the end of an old stream for the end of the new plugin. The same happens if the kubelet drops a
stream, or somebody deletes the plugins' sockets, also during a registration: a kubelet that is just
starting would look for them for 10 s.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import grpc
import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.kubelet import wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aliquot.kubernetes.node.deviceplugin.plugin import Plugin

KUBELET = "kubelet.sock"
FOLDER_SECONDS = 1.0

_CREATED, _MOVED_HERE, _DELETED, _MOVED_AWAY = 0x100, 0x80, 0x200, 0x40
_ONLY_FOLDER = 0x01000000
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16

_log = structlog.get_logger(__name__)


class Registrar:
    """Keeps all plugins registered."""

    def __init__(self, folder: Path, plugins: Sequence[Plugin]) -> None:
        self._folder = folder
        self._plugins = plugins
        self._backoff = Backoff(first=0.02, most=1.0)
        self.registrations = 0

    @property
    def registered(self) -> bool:
        """Whether the kubelet follows all plugins."""
        return all(plugin.followed for plugin in self._plugins)

    async def run(self) -> None:
        """Register, and register again whenever that ends, until cancelled."""
        while not self._folder.is_dir():
            await asyncio.sleep(FOLDER_SECONDS)
        try:
            with FolderWatch(self._folder) as folder:
                while True:
                    await self._once(folder)
                    await self._stop()
        finally:
            await self._stop()

    async def _once(self, folder: FolderWatch) -> None:
        """Register with the running kubelet; return when it is to be done again."""
        for plugin in self._plugins:
            plugin.socket.unlink(missing_ok=True)  # an agent that was killed leaves them
        folder.forget()  # these deletions are our own
        if not (self._folder / KUBELET).exists():
            await self._until_changed(folder)
            return
        changed = asyncio.create_task(self._until_changed(folder))
        registering = asyncio.create_task(self._register())
        try:
            await asyncio.wait([changed, registering], return_when=asyncio.FIRST_COMPLETED)
            if not changed.done():
                await self._until_ended(changed, registered=registering.result())
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
            _log.warning("the kubelet does not accept the plugins", why=why)
            return False
        finally:
            await channel.close()
        self.registrations += 1
        _log.info(
            "registered the device plugins", resources=[plugin.resource for plugin in self._plugins]
        )
        return True

    async def _until_ended(self, changed: asyncio.Task[None], *, registered: bool) -> None:
        """Wait for a new kubelet, a deleted socket or the end of a stream; or to try again."""
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
        _log.info("registering the device plugins again")

    async def _until_changed(self, folder: FolderWatch) -> None:
        ours = {plugin.socket.name for plugin in self._plugins}
        while True:
            for name, created in await folder.changes():
                if (name == KUBELET and created) or (name in ours and not created):
                    return

    async def _stop(self) -> None:
        await asyncio.gather(*(plugin.stop() for plugin in self._plugins))


class FolderWatch:
    """Watches a folder by inotify: which files are created in it and deleted from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), path)
        mask = _CREATED | _MOVED_HERE | _DELETED | _MOVED_AWAY | _ONLY_FOLDER
        try:
            _checked(libc.inotify_add_watch(self._fd, os.fsencode(path), mask), path)
        except OSError:
            os.close(self._fd)
            raise
        self._readable = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._readable.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def forget(self) -> None:
        """Drop the changes until now."""
        with suppress(BlockingIOError):
            while os.read(self._fd, _BUFFER):
                pass

    async def changes(self) -> list[tuple[str, bool]]:
        """Wait for changes since the last call: names, and whether each was created or deleted."""
        while True:
            self._readable.clear()
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                await self._readable.wait()
                continue
            return list(_parsed(data))


def _parsed(data: bytes) -> Iterator[tuple[str, bool]]:
    at = 0
    while at < len(data):
        _, mask, _, size = _EVENT.unpack_from(data, at)
        name = data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0")
        at += _EVENT.size + size
        yield os.fsdecode(name), bool(mask & (_CREATED | _MOVED_HERE))


def _checked(result: int, path: Path) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return result
