"""A copy of the API server's objects of one kind, kept up to date by a list and a watch.

`run` lists, then watches from the list's version. A broken stream is resumed from the last version
seen, in an event or a bookmark; repeated events are skipped. If the server no longer knows that
version (410), or sends what cannot be decoded, all objects are listed again and compared with the
copy. So whatever is lost, repeated or cut off on the way, the copy converges to what the server
has, and the callback is called once for every difference.

The callback gets the old and the new object: (None, new) for a new one, (old, None) for a deleted
one, else both, with the same UID. If another object takes the same name, the callback gets the
deletion first, then the new one. The copy is already up to date when the callback is called. The
callback runs in the event loop and must not block; an exception from it ends `run`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.decode import decode_json
from aliquot.kubernetes.api.objects import ApiObject, Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Resource

T = TypeVar("T", bound=ApiObject)

Key = tuple[str, str]  # namespace and name
OnChange = Callable[[T | None, T | None], None]

WATCH_SECONDS = 300
SILENCE = 150.0  # seconds: bookmarks come every minute, so the connection is dead then
AT_ONCE = 200  # objects of a list that are processed before other tasks run

_log = structlog.get_logger(__name__)


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: Meta


class _WatchStatus(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class _ListAgainError(Exception):
    """The copy cannot be brought up to date by this watch."""


class Watch(Generic[T]):
    """A copy of the objects of one kind, of one namespace or all, that match the selectors.

    Objects for which `keep` is False are left out.
    """

    def __init__(  # noqa: PLR0913 - which objects, and the callback
        self,
        client: Client,
        of: Resource[T],
        on_change: OnChange[T] | None = None,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        keep: Callable[[T], bool] = lambda _: True,
    ) -> None:
        self._client = client
        self._of = of
        self._on_change = on_change
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._keep = keep
        self._objects: dict[Key, T] = {}
        self._version = ""
        self._synced = asyncio.Event()
        self._refreshes: list[asyncio.Event] = []
        self._stream: asyncio.Task[None] | None = None
        self._received = 0.0
        self._backoff = Backoff()

    @property
    def objects(self) -> Mapping[Key, T]:
        """The copy, by namespace and name."""
        return self._objects

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object of this name; None if the copy has none."""
        return self._objects.get((namespace, name))

    @property
    def synced(self) -> bool:
        """Whether the first list is in the copy, and the callback was called for all of it."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until `synced`."""
        await self._synced.wait()

    async def refresh(self) -> None:
        """List all objects again: the copy then has at least what the server had at the call."""
        listed = asyncio.Event()
        self._refreshes.append(listed)
        self._version = ""
        if self._stream is not None:
            self._stream.cancel()
        await listed.wait()

    @property
    def silence(self) -> float:
        """Seconds since the server last sent anything."""
        return time.monotonic() - self._received

    async def run(self) -> None:
        """Keep the copy up to date, until cancelled."""
        while True:
            try:
                while not self._version:
                    await self._list()
                await self._follow()
            except ApiError as error:
                if error.expired:
                    self._version = ""
                elif not error.passing:
                    _log.warning("a watch is refused", of=self._of.plural, why=error.message)
                await self._wait(error.message)
            except _ListAgainError as error:
                self._version = ""
                await self._wait(str(error))

    async def _wait(self, why: str) -> None:
        seconds = self._backoff.wait()
        _log.debug("restarting a watch", of=self._of.plural, why=why, seconds=round(seconds, 3))
        await asyncio.sleep(seconds)

    async def _follow(self) -> None:
        """Watch until the stream ends, or until `refresh` ends it."""
        self._stream = asyncio.create_task(self._watch())
        try:
            await asyncio.wait([self._stream])
        finally:
            self._stream.cancel()
            await asyncio.wait([self._stream])
        if not self._stream.cancelled():
            self._stream.result()

    async def _list(self) -> None:
        refreshes, self._refreshes = self._refreshes, []
        try:
            await self._list_and_compare()
        except ApiError:
            self._refreshes += refreshes
            raise
        for listed in refreshes:
            listed.set()

    async def _list_and_compare(self) -> None:
        found = await self._client.list(
            self._of, self._namespace, labels=self._labels, fields=self._fields
        )
        now = {_key(one): one for one in found.items if self._keep(one)}
        for key in [key for key in self._objects if key not in now]:
            self._remove(key)
        for number, (key, one) in enumerate(now.items()):
            self._put(key, one)
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        self._received = time.monotonic()
        self._synced.set()
        if not self._refreshes:  # else another list was requested meanwhile
            self._version = found.version

    async def _watch(self) -> None:
        query: dict[str, str | int] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": int(WATCH_SECONDS * random.uniform(0.8, 1.2)),  # noqa: S311
        }
        selectors = {"labelSelector": self._labels, "fieldSelector": self._fields}
        query |= {name: value for name, value in selectors.items() if value}
        path = self._of.path(self._namespace)
        async with self._client.stream(path, query, SILENCE) as lines:
            quiet = True
            async for line in lines:
                self._process(line)
                self._received = time.monotonic()
                self._backoff.reset()
                quiet = False
        if quiet:
            raise ApiError(0, "Quiet", "the stream ended before anything came")

    def _process(self, line: bytes) -> None:
        try:
            event = decode_json(line, _WatchEvent)
            if event.type == "BOOKMARK":
                mark = decode_json(event.object, _Bookmark)
                self._version = mark.metadata.resource_version
                return
            if event.type == "ERROR":
                raise _error_of(decode_json(event.object, _WatchStatus))
            one = decode_json(event.object, self._of.type)
        except msgspec.DecodeError as error:
            raise _ListAgainError(f"a line of the watch cannot be read: {error}") from error
        if self._has_seen(one.metadata.resource_version):
            return
        if event.type == "DELETED" or not self._keep(one):
            self._remove(_key(one))
        elif event.type in {"ADDED", "MODIFIED"}:
            self._put(_key(one), one)
        else:
            raise _ListAgainError(f"the watch sent an event of unknown type {event.type!r}")
        self._version = one.metadata.resource_version

    def _has_seen(self, version: str) -> bool:
        """Whether an event is a repetition: a stream is in the order of versions."""
        ours = self._version
        return version.isdecimal() and ours.isdecimal() and int(version) <= int(ours)

    def _put(self, key: Key, one: T) -> None:
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != one.metadata.uid:
            self._remove(key)
            old = None
        if old is not None and old.metadata.resource_version == one.metadata.resource_version:
            return
        self._objects[key] = one
        self._call(old, one)

    def _remove(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._call(old, None)

    def _call(self, old: T | None, new: T | None) -> None:
        if self._on_change is not None:
            self._on_change(old, new)


def _key(one: ApiObject) -> Key:
    return one.metadata.namespace, one.metadata.name


def _error_of(said: _WatchStatus) -> ApiError:
    return ApiError(said.code or 500, said.reason, said.message or "the watch failed")
