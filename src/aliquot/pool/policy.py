"""What an admin decides about a pool, in one TOML file: queues, limits, fair share.

`EXAMPLE` is such a file, with everything that it can say. The file is read again when it has
changed. An invalid file changes nothing: the error names the line of a syntax error, and otherwise
the key. It must belong to root, or to the pool's user, and be writable by nobody else.
"""

from __future__ import annotations

import math
import os
import stat
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aliquot.model import parse_amount
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.grant import OVERCOMMIT_MOST
from aliquot.model.idle import GRACE_SECONDS, IdleAction, IdleRule
from aliquot.model.job import DEFAULT_QUEUE
from aliquot.model.parking_rule import parse_parking_rule
from aliquot.model.request import SwapDefault
from aliquot.placement.core.demand import WHOLE_MILLI
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.placement.queues.users import HALF_LIFE_SECONDS
from aliquot.pool.access import ADMIN_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.model.parking_rule import ParkingRule
    from aliquot.pool.access import Caller

FILE = Path("/etc/aliquot/pool.toml")
EXAMPLE = Path(__file__).with_name("pool.toml")
DEFAULT_JOBS = 1000

E = TypeVar("E", bound=StrEnum)

_LARGEST_FILE = 1 << 20
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class UserQuota:
    """What one user may have at a time; None: no limit."""

    gpus: float | None = None
    memory_bytes: int | None = None
    compute_percent: int | None = None
    grants: int | None = None
    jobs: int | None = None

    @property
    def bound(self) -> Bound:
        """What counts in decisions about jobs."""
        milli = None if self.gpus is None else int(self.gpus * WHOLE_MILLI)
        return Bound(milli, self.memory_bytes)


@dataclass(frozen=True, slots=True)
class QueueUsers:
    """Who may use a queue: these users and groups; everybody if both are empty."""

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.users or self.groups)


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The content of the file, checked."""

    queues: Mapping[str, Queue] = field(default_factory=dict)
    queue_users: Mapping[str, QueueUsers] = field(default_factory=dict)
    everybody: UserQuota = UserQuota()
    users: Mapping[str, UserQuota] = field(default_factory=dict)
    groups: Mapping[str, UserQuota] = field(default_factory=dict)
    idle_rules: Mapping[str, IdleRule] = field(default_factory=dict)  # by queue
    swap_defaults: Mapping[str, SwapDefault] = field(default_factory=dict)  # by queue
    half_life_seconds: float = HALF_LIFE_SECONDS
    idle_weight: float = 1.0  # what an idle grant counts in fair share
    admin_groups: tuple[str, ...] = (ADMIN_GROUP,)
    worker_processes: int | None = None  # None: as `pool_cgroup` chooses
    host_bytes: int | None = None  # for memory that leaves GPUs; None: as the arbiter chooses
    overcommit: float | None = None  # of a GPU's memory, for slices in turn; None: as it was

    def quota_of(self, name: str, uid: int, groups: frozenset[str]) -> UserQuota:
        """The limits of a user: its own, else those of its first group in the file, else all's.

        `groups` are names and numbers.
        """
        if uid == 0:
            return UserQuota()
        if (own := self.users.get(name) or self.users.get(str(uid))) is not None:
            return own
        found = (quota for group, quota in self.groups.items() if group in groups)
        return next(found, self.everybody)

    def check_queue(self, queue: str, caller: Caller, groups: frozenset[str]) -> None:
        """Raise InvalidValueError unless the queue exists and the caller may use it."""
        named = list(self.queues) or [DEFAULT_QUEUE]  # the only one without queues in the file
        allowed = [name for name in named if self._may_use(name, caller, groups)]
        if queue in allowed:
            return
        problem = "is not for you" if queue in named else "does not exist"
        names = ", ".join(sorted(allowed)) or "none"
        raise InvalidValueError(f"queue {queue!r} {problem}", f"Your queues are: {names}.")

    def _may_use(self, queue: str, caller: Caller, groups: frozenset[str]) -> bool:
        listed = self.queue_users.get(queue, QueueUsers())
        names = {caller.owner.name, str(caller.owner.uid)}
        return caller.admin or not listed or bool(names & listed.users or groups & listed.groups)


class PolicyFile:
    """The file of a policy, read again when it changes."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._seen = self._signature()
        self.policy = PoolPolicy() if path is None else read_policy(path)

    def refresh(self, say: Callable[[str], None]) -> bool:
        """Read the file if it has changed; whether there is another policy now."""
        seen = self._signature()
        if self.path is None or seen == self._seen:
            return False
        self._seen = seen
        try:
            policy = read_policy(self.path)
        except AliquotError as error:
            say(f"{error.one_line} Nothing has changed.")
            return False
        say(f"read {self.path}")
        changed, self.policy = policy != self.policy, policy
        return changed

    def swap_default(self, queue: str) -> SwapDefault | None:
        """What a queue adds to requests now."""
        return self.policy.swap_defaults.get(queue)

    def _signature(self) -> tuple[int, ...]:
        if self.path is None:
            return ()
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_uid


def read_policy(path: Path) -> PoolPolicy:
    """The policy in a file; InvalidValueError names the line or the key that is invalid."""
    try:
        content = tomllib.loads(_read(path))
    except OSError as error:
        raise InvalidValueError(
            f"{path} cannot be read: {error.strerror}", "Give another file with --config."
        ) from error
    except ValueError as error:  # of TOML or of UTF-8
        last = f"at line {len(path.read_bytes().splitlines()) or 1}, the last"
        problem = str(error).replace("at end of document", last)
        raise InvalidValueError(f"{path} is not valid TOML: {problem}", _SEE) from error
    try:
        return _policy(_Table("", content))
    except _KeyError as error:
        raise InvalidValueError(f"{path}: {error}", _SEE) from error


_SEE = f"A complete example is in {EXAMPLE}."


def _read(path: Path) -> str:
    """The text of a file that nobody else can write."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_FILE:
            raise InvalidValueError(
                f"{path} is not a file, or is longer than {_LARGEST_FILE >> 10} KiB", _SEE
            )
        if found.st_uid not in {0, os.geteuid()} or found.st_mode & 0o022:
            raise InvalidValueError(
                f"{path} could be changed by others than root",
                f"Fix it with: chown root {path} && chmod go-w {path}",
            )
        return file.read().decode("utf-8")


class _KeyError(Exception):
    """A key and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the file, whose keys are taken one by one; what is left is unknown."""

    name: str
    left: dict[str, Any]

    def key(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name

    def fail(self, name: str, problem: str) -> _KeyError:
        return _KeyError(f"{self.key(name)}: {problem}")

    def table(self, name: str) -> _Table:
        found = self.left.pop(name, {})
        if not isinstance(found, dict):
            raise self.fail(name, "is not a table")
        return _Table(self.key(name), dict(found))

    def tables(self, name: str) -> dict[str, _Table]:
        inner = self.table(name)
        return {one: inner.table(one) for one in list(inner.left)}

    def number(self, name: str, least: float, *, whole: bool = False) -> float | None:
        found = self.left.pop(name, None)
        if found is None:
            return None
        kinds = (int,) if whole else (int, float)
        if isinstance(found, bool) or not isinstance(found, kinds) or not math.isfinite(found):
            raise self.fail(name, f"{found!r} is not a{' whole' if whole else ''} number")
        if found < least:
            raise self.fail(name, f"{found} is less than {least:g}")
        return float(found)

    def whole(self, name: str, most: int = 1 << 20, least: int = 0) -> int | None:
        found = self.number(name, least, whole=True)
        if found is not None and found > most:
            raise self.fail(name, f"{found:g} is more than {most}")
        return None if found is None else int(found)

    def texts(self, name: str) -> tuple[str, ...]:
        found = self.left.pop(name, [])
        if not isinstance(found, list) or not all(isinstance(one, str | int) for one in found):
            raise self.fail(name, f"{found!r} is not a list of names")
        return tuple(map(str, found))

    def memory(self, name: str) -> int | None:
        found = self.left.pop(name, None)
        if found is None:
            return None
        try:
            size = parse_amount(found).bytes if isinstance(found, str) else None
        except AliquotError as error:
            raise self.fail(name, error.one_line) from error
        if size is None:
            raise self.fail(name, f"{found!r} is not an amount of memory, for example 40GiB")
        return size

    def choice(self, name: str, choices: type[E]) -> E:
        """One of these; the first if the file has none."""
        found = self.left.pop(name, None)
        if found is not None and found not in list(choices):
            raise self.fail(name, f"{found!r} is not one of {', '.join(choices)}")
        return next(iter(choices)) if found is None else choices(found)

    def seconds(self, name: str, default: float) -> float:
        found = self.left.pop(name, None)
        if found is None:
            return default
        if isinstance(found, str) and found[-1:] in _UNITS:
            number = found[:-1].strip()
            if number.replace(".", "", 1).isdecimal() and float(number) > 0:
                return float(number) * _UNITS[found[-1]]
        raise self.fail(name, f"{found!r} is not a time, for example 12h or 7d")

    def switch(self, name: str) -> bool:
        found = self.left.pop(name, False)
        if not isinstance(found, bool):
            raise self.fail(name, f"{found!r} is not true or false")
        return found

    def parking_rule(self, name: str) -> ParkingRule | None:
        found = self.left.pop(name, None)
        if found is None:
            return None
        try:
            return parse_parking_rule(str(found))
        except AliquotError as error:
            raise self.fail(name, error.one_line) from error

    def end(self) -> None:
        for name in self.left:
            raise self.fail(name, "is unknown")


def _policy(content: _Table) -> PoolPolicy:
    queues, queue_users, idle_rules, swap_defaults = {}, {}, {}, {}
    for name, table in content.tables("queues").items():
        queue_users[name] = QueueUsers(
            frozenset(table.texts("users")), frozenset(table.texts("groups"))
        )
        queues[name] = _queue(name, table)
        if (rule := _idle_rule(table)) is not None:
            idle_rules[name] = rule
        if (default := _swap_default(table)) != SwapDefault():
            swap_defaults[name] = default
        table.end()
    limits = content.table("limits")
    found = PoolPolicy(
        queues,
        queue_users,
        everybody=_user_quota(limits.table("everybody")),
        users={name: _user_quota(one) for name, one in limits.tables("users").items()},
        groups={name: _user_quota(one) for name, one in limits.tables("groups").items()},
        idle_rules=idle_rules,
        swap_defaults=swap_defaults,
        half_life_seconds=(share := content.table("fair_share")).seconds(
            "half_life", HALF_LIFE_SECONDS
        ),
        idle_weight=1.0 if (weight := share.number("idle_weight", 0)) is None else weight,
        admin_groups=(admins := content.table("admins")).texts("groups") or (ADMIN_GROUP,),
        worker_processes=(workers := content.table("workers")).whole("processes", 1 << 22, least=1),
        host_bytes=(swap := content.table("swap")).memory("host_memory"),
        overcommit=_overcommit(swap),
    )
    for table in (limits, share, admins, workers, swap, content):
        table.end()
    return found


def _overcommit(swap: _Table) -> float | None:
    found = swap.number("overcommit", 1)
    if found is not None and found > OVERCOMMIT_MOST:
        raise swap.fail("overcommit", f"{found:g} is more than {OVERCOMMIT_MOST}")
    return found


def _queue(name: str, table: _Table) -> Queue:
    if not name or "/" in name:
        raise table.fail("", "is not a name of a queue")
    weight, quota, limit = (table.number(key, 0) for key in ("weight", "quota", "limit"))
    if weight == 0:
        raise table.fail("weight", "must be more than 0")
    return Queue(
        name,
        1.0 if weight is None else weight,
        Bound(0, 0) if quota is None else Bound(milli=int(quota * WHOLE_MILLI)),
        Bound() if limit is None else Bound(milli=int(limit * WHOLE_MILLI)),
    )


def _idle_rule(table: _Table) -> IdleRule | None:
    given = {"idle_after", "idle_action", "idle_grace"} & table.left.keys()
    if not given:
        return None
    if "idle_after" not in given:
        raise table.fail(min(given), 'needs idle_after, for example "30m"')
    after, action = table.seconds("idle_after", 0.0), table.choice("idle_action", IdleAction)
    if action is IdleAction.REPORT and "idle_grace" in given:
        raise table.fail("idle_grace", f'needs idle_action = "{IdleAction.END}"')
    return IdleRule(after, action, table.seconds("idle_grace", GRACE_SECONDS))


def _swap_default(table: _Table) -> SwapDefault:
    return SwapDefault(
        table.switch("swap"), table.parking_rule("park_after"), _overcommit(table) or 0.0
    )


def _user_quota(table: _Table) -> UserQuota:
    found = UserQuota(
        table.number("gpus", 0),
        table.memory("memory"),
        table.whole("compute", 1600),
        table.whole("grants", 1024),
        table.whole("jobs"),
    )
    table.end()
    return found
