"""A copy of the API server's objects of one kind, kept up to date by a list and a watch.

`run` lists, then watches from the list's version. A broken stream is taken up from the last version
that was seen, by an event or a bookmark; what comes a second time is not heard again. Where the
server no longer knows that version (410), or the stream says what cannot be understood, all is
listed again and compared with the copy. So whatever is lost, repeated or cut off on the way, the
copy comes to be what the server has, and the callback hears of every difference to it once.

The callback gets the old and the new object: (None, new) where it is new, (old, None) where it is
gone, else both, with the same UID. Another object of the same name is first gone, then new. The
copy is already as the callback is told. It runs in the event loop and must not block; what it
raises ends `run`.
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
from aliquot.kubernetes.api.objects import ApiObject, Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Resource

T = TypeVar("T", bound=ApiObject)

Key = tuple[str, str]  # namespace and name
OnChange = Callable[[T | None, T | None], None]

WATCH_SECONDS = 300
SILENCE = 150.0  # bookmarks come every minute: a longer silence is a dead connection
AT_ONCE = 200  # objects of a list that are told before others get the loop

_log = structlog.get_logger(__name__)


class _Happening(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: Meta


class _Trouble(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class _ListAgainError(Exception):
    """The copy cannot be brought up to date by this watch."""


class Watch(Generic[T]):
    """The copy of one kind of object, of one namespace or all, that the selectors leave.

    An object that is not to be kept is treated as if it were not there.
    """

    def __init__(  # noqa: PLR0913 - which objects, and who hears of them
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
        self._heard = 0.0
        self._backoff = Backoff()

    @property
    def objects(self) -> Mapping[Key, T]:
        """The copy, by namespace and name."""
        return self._objects

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object of this name, where the copy has it."""
        return self._objects.get((namespace, name))

    @property
    def synced(self) -> bool:
        """The first list is in the copy, and the callback has heard of all of it."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Until then."""
        await self._synced.wait()

    async def refresh(self) -> None:
        """Until all has been listed again: what the server had when this was called is heard."""
        listed = asyncio.Event()
        self._refreshes.append(listed)
        self._version = ""
        if self._stream is not None:
            self._stream.cancel()
        await listed.wait()

    @property
    def silence(self) -> float:
        """Seconds since the server was last heard."""
        return time.monotonic() - self._heard

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
        _log.debug("a watch begins again", of=self._of.plural, why=why, seconds=round(seconds, 3))
        await asyncio.sleep(seconds)

    async def _follow(self) -> None:
        """Watch, until the stream ends or `refresh` ends it."""
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
        self._heard = time.monotonic()
        self._synced.set()
        if not self._refreshes:  # else one was asked for while this was on its way
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
                self._hear(line)
                self._heard = time.monotonic()
                self._backoff.reset()
                quiet = False
        if quiet:
            raise ApiError(0, "Quiet", "the stream ended before anything came")

    def _hear(self, line: bytes) -> None:
        try:
            said = msgspec.json.decode(line, type=_Happening)
            if said.type == "BOOKMARK":
                mark = msgspec.json.decode(said.object, type=_Bookmark)
                self._version = mark.metadata.resource_version
                return
            if said.type == "ERROR":
                raise _trouble(msgspec.json.decode(said.object, type=_Trouble))
            one = msgspec.json.decode(said.object, type=self._of.type)
        except msgspec.DecodeError as error:
            raise _ListAgainError(f"a line of the watch cannot be read: {error}") from error
        if self._has_seen(one.metadata.resource_version):
            return
        if said.type == "DELETED" or not self._keep(one):
            self._remove(_key(one))
        elif said.type in {"ADDED", "MODIFIED"}:
            self._put(_key(one), one)
        else:
            raise _ListAgainError(f"a watch does not say {said.type!r}")
        self._version = one.metadata.resource_version

    def _has_seen(self, version: str) -> bool:
        """A stream is in the order of versions: one that is not newer comes a second time."""
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
        self._tell(old, one)

    def _remove(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._tell(old, None)

    def _tell(self, old: T | None, new: T | None) -> None:
        if self._on_change is not None:
            self._on_change(old, new)


def _key(one: ApiObject) -> Key:
    return one.metadata.namespace, one.metadata.name


def _trouble(said: _Trouble) -> ApiError:
    return ApiError(said.code or 500, said.reason, said.message or "the watch failed")
