"""Getting a grant for this process: from the arbiter or the pool, at once or after a wait.

`open_grant` is all of `aliquot run` before the exec. Root's pool admits all commands of the
machine. A user's own pool keeps the queue of those that wait.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.model import Isolation
from aliquot.model.errors import (
    AliquotError,
    InvalidValueError,
    NoCapacityError,
    WaitTimeoutError,
)
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.refusal import describe_place, explained, no_queue
from aliquot.pool.run_client import Granted, PoolGoneError, open_runs
from aliquot.pool.runs import Waiting
from aliquot.pool.wanted import wanted_slices
from aliquot.slices import control, instances, mps
from aliquot.slices.gpu_choice import find_gpus
from aliquot.slices.grant_creation import make_grant, without_grants
from aliquot.slices.named_gpus import with_named_gpus
from aliquot.slices.visible_devices import VISIBLE, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.devices import Driver, Shape
    from aliquot.model import Request
    from aliquot.pool.run_client import RunConnection
    from aliquot.slices import NewGrant, OpenGrant, StateDirectory

    Show = Callable[[str], None]

_ANSWER_SECONDS = 60.0  # within which a pool decides at once, also while its arbiter restarts
_LOOK_SECONDS = 1.0
_NO_POOL = "no pool is up: the first command that asks when GPUs are free gets them (aliquot up)"


@dataclass(frozen=True, slots=True)
class Wait:
    """How long to wait; None: without limit."""

    seconds: float | None = None


def _quiet(text: str) -> None:
    pass


def open_grant(  # noqa: PLR0913, PLR0917 - all of a run
    shape: Shape | None,
    request: Request,
    name: str | None,
    command: str,
    environment: Mapping[str, str],
    wait: Wait | None = None,
    show: Show = _quiet,
    queue: str | None = None,
) -> OpenGrant:
    """Make a grant of this machine, or of a simulated one, for programs with that environment.

    All checks come before the grant is made. Without a `name` it is named after the command. With
    `wait` it waits for its turn in that queue of the pool, and `show` is told how that goes.
    """
    state, driver = slices.check_machine(shape, name, environment)
    library = slices.prepare_library(driver)
    if request.isolation is Isolation.HARDWARE:
        _check_at_once(wait, queue)
        with instances.instance_for(state, driver, request) as whole:
            seeker = GrantSeeker(state, driver, whole, name, command)
            made = seeker.from_arbiter()
        inside = slices.tenant_environment(environment, library, driver, made.marked)
        return slices.OpenGrant(state, made, inside)
    seeker = GrantSeeker(state, driver, request, name, command, queue)
    made = seeker.get(wait, show)
    try:
        inside = slices.tenant_environment(environment, library, driver, made.marked)
        if request.isolation is Isolation.MPS:
            inside |= mps.join(state, driver, made.gpus[0].gpu.uuid, request.priority)
        return slices.OpenGrant(state, made, inside)
    except BaseException:  # this process may live on, as a notebook does
        seeker.end(made.name)
        raise


def _check_at_once(wait: Wait | None, queue: str | None) -> None:
    """Raise InvalidValueError for what a pool would have to do: it has no instances of GPUs."""
    for option, given in (("--wait", wait), ("--queue", queue)):
        if given is not None:
            raise InvalidValueError(
                f"{option} and --isolation hardware exclude each other: the pool does not make"
                " instances of a GPU",
                "Leave out one of the two.",
            )


@dataclass(frozen=True, slots=True)
class GrantSeeker:
    """Gets a grant for this process. `name` and `command` name it.

    `queue` is one of the pool's, which then has to decide; None: its default, if it decides.
    """

    state: StateDirectory
    driver: Driver
    request: Request
    name: str | None
    command: str
    queue: str | None = None

    def get(self, wait: Wait | None, show: Show) -> NewGrant:
        """The grant; without `wait`, NoCapacityError if it cannot be made at once.

        With `wait`, WaitTimeoutError after that time.
        """
        self._check_has_queue()
        if wait is None:
            try:
                return self._once(time.monotonic() + _ANSWER_SECONDS, _quiet, wait=False)
            except WaitTimeoutError as error:
                raise PoolGoneError("the pool does not answer", control.ASK_DOCTOR) from error
            except PoolGoneError:
                return self.from_arbiter()
            except NoCapacityError as error:
                raise self._explained(error) from error
        deadline = None if wait.seconds is None else time.monotonic() + wait.seconds
        while True:
            made = self._try(deadline, show)
            if made is not None:
                return made
            self._pause(deadline)

    def _check_has_queue(self) -> None:
        """Raise InvalidValueError if there is no pool for the queue that was named."""
        if self.queue is None:
            return
        if (connection := open_runs(self.state)) is None:
            raise no_queue(self.queue)
        connection.close()

    def _try(self, deadline: float | None, show: Show) -> NewGrant | None:
        """The grant; None if it is worth asking again."""
        try:
            return self._once(deadline, show, wait=True)
        except PoolGoneError:
            show("waiting for GPUs: the pool has ended, and the place in its queue with it")
        except NoCapacityError:
            self._check_can_ever_fit()
            show(f"waiting for GPUs: {_NO_POOL}")
        return None

    def _once(self, deadline: float | None, show: Show, *, wait: bool) -> NewGrant:
        connection = open_runs(self.state)
        if connection is None:
            return self.from_arbiter()
        try:
            if not wait and not connection.shared and self.queue is None:
                return self.from_arbiter()
            return self._from_pool(connection, deadline, show, wait=wait)
        finally:
            connection.close()

    def from_arbiter(self) -> NewGrant:
        """The grant, from the arbiter at once; NoCapacityError if it cannot be made."""
        if self.queue is not None:
            raise PoolGoneError("the pool has ended", "Start it again with: aliquot up")
        where = self.state.directory
        try:
            return make_grant(where, self.driver, self.request, self.name, self.command)
        except NoCapacityError:
            self._want()
            raise

    def _want(self) -> None:
        """Have idle grants give up their memory, if it fits then."""
        with suppress(AliquotError):
            status = control.status(self.state.directory)
            gpus = visible_gpus(status.gpus, os.environ.get(VISIBLE))
            request = with_named_gpus(self.request, [one.gpu for one in status.gpus])
            asked = request.of_owner(status.asker_uid, self.name)
            if wanted := wanted_slices(MachinePlan(tuple(gpus), status.grants), asked):
                control.want(self.state.directory, wanted)

    def _from_pool(
        self,
        connection: RunConnection,
        deadline: float | None,
        show: Show,
        *,
        wait: bool,
    ) -> NewGrant:
        connection.ask(
            self.request, name=self.name, command=self.command, queue=self.queue, wait=wait
        )
        granted = None
        try:
            granted = _answer(connection, deadline, show) or connection.leave(_ANSWER_SECONDS)
            made = None if granted is None else self._described(granted)
        except BaseException:
            if unused := granted or connection.leave(_ANSWER_SECONDS):
                self.end(unused.name)
            raise
        if made is None:
            raise self._timed_out()
        return made

    def _described(self, granted: Granted) -> NewGrant:
        status = control.status(self.state.directory)
        gpus = tuple(one for one in status.gpus if one.gpu.uuid in granted.gpus)
        return slices.NewGrant(granted.name, granted.marked, gpus)

    def end(self, name: str) -> None:
        """End a grant that this process does not use; if that fails, it ends with the process."""
        with suppress(AliquotError):
            slices.revive(self.state)
            control.end(self.state.directory, name)

    def _explained(self, error: NoCapacityError) -> NoCapacityError:
        status = control.status(self.state.directory)
        gpus = visible_gpus(status.gpus, os.environ.get(VISIBLE))
        request = self.request.of_owner(status.asker_uid, self.name)
        return explained(error, request, gpus, self.state, status, self.queue)

    def _check_can_ever_fit(self) -> None:
        """Raise NoCapacityError if the request does not even fit the empty machine."""
        gpus = control.status(self.state.directory).gpus
        find_gpus(self.request, without_grants(visible_gpus(gpus, os.environ.get(VISIBLE))), ())

    def _pause(self, deadline: float | None) -> None:
        left = _LOOK_SECONDS if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise self._timed_out()
        time.sleep(min(left, _LOOK_SECONDS))

    @staticmethod
    def _timed_out() -> WaitTimeoutError:
        return WaitTimeoutError(
            "the time to wait is over, and the GPUs are not free",
            "Wait longer with --wait=DURATION, or see who has them: aliquot ps",
        )


def _answer(connection: RunConnection, deadline: float | None, show: Show) -> Granted | None:
    """The grant; None if the pool has not made it by the deadline. Raises the pool's refusal.

    The pool's first answer is waited for also after the deadline: the GPUs may be free.
    """
    least = _ANSWER_SECONDS
    while True:
        left = None if deadline is None else max(least, deadline - time.monotonic())
        news, least = connection.news(left), 0.0
        if news is None or isinstance(news, Granted):
            return news
        if isinstance(news, Waiting):
            show(f"waiting for GPUs: {describe_place(news, time.time())}: {news.why}")
