"""`Sticky(app)`: the entry point that connects a Celery app to all parts of the package."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from celery_sticky import router
from celery_sticky.errors import InvalidSettings, NotAMember, NotPinned, NoWorker, StickyError
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.declared import DeclaredJobs
from celery_sticky.jobs.retry import Retry
from celery_sticky.keyed import KeyedTasks
from celery_sticky.keys import DEFAULT_KEYSPACE, Key, check_keyspace, key_text, queue_for, queue_name, slot_for
from celery_sticky.keyspace import Keyspace
from celery_sticky.outbox import Outbox
from celery_sticky.placement.pin import Pin
from celery_sticky.settings import Settings
from celery_sticky.wiring import Wiring, take_part

_ATTRIBUTE = "sticky_wiring"

_Handler = TypeVar("_Handler")
_Function = TypeVar("_Function")


class Sticky:
    """Sticky routing for a Celery app.

    ```python
    app = Celery("shop", broker="redis://localhost:6379/0")
    sticky = Sticky(app)
    ```

    In an app factory, create `sticky = Sticky()` and call `sticky.init_app(app)` later. An app is wired once; all
    `Sticky` objects for one app are equivalent.
    """

    def __init__(self, app: Any = None) -> None:
        self._wired: Wiring | None = None
        self._declared = DeclaredJobs()
        self._keyspaces: list[Keyspace] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Any) -> None:
        """Wire an app, unless it is wired already. This does not read the app's configuration."""
        wired = getattr(app, _ATTRIBUTE, None)
        if wired is None:
            wired = Wiring(app)
            setattr(app, _ATTRIBUTE, wired)
            router.install(app, wired.tasks, lambda: wired.settings, wired.lookup.of)
            # Celery calls an app's fixups whenever it creates the app, also when it unpickles it. So an app that is
            # sent to a spawned process is wired there too.
            app.fixups = {*app.fixups, f"{__name__}:{Sticky.__name__}"}
            take_part(app)
        wired.declared.add(self._declared)
        wired.declare(self._keyspaces)
        self._keyspaces = []
        self._wired, self._declared = wired, wired.declared

    @classmethod
    def of(cls, app: Any) -> Self:
        """Return the `Sticky` of a wired app.

        Raises:
            StickyError: the app is not wired.
        """
        if getattr(app, _ATTRIBUTE, None) is None:
            raise StickyError(f"{app!r} does not use celery-sticky: add `sticky = Sticky(app)` where the app is made")
        return cls(app)

    @property
    def wiring(self) -> Wiring:
        """The app's settings, tasks, jobs and clients.

        Raises:
            StickyError: `init_app` was not called yet.
        """
        if self._wired is None:
            raise StickyError("this Sticky object has no app: call `sticky.init_app(app)` first")
        return self._wired

    @property
    def app(self) -> Any:
        """The Celery app."""
        return self.wiring.app

    @property
    def tasks(self) -> KeyedTasks:
        """The key specs of the app's tasks."""
        return self.wiring.tasks

    @property
    def settings(self) -> Settings:
        """The app's settings, read from `app.conf` on first access.

        Raises:
            InvalidSettings: a setting is unknown or invalid.
        """
        return self.wiring.settings

    # -- sending -------------------------------------------------------------------------------

    def outbox(self, connection: Any) -> Outbox:
        """Return a block whose tasks are sent in the transaction of `connection`, to the broker's database.

        ```python
        with Session(engine) as session, session.begin(), sticky.outbox(session):
            session.add(order)
            send_invoice.delay(order.number)
        ```

        The tasks exist exactly if the transaction commits. `connection` is a session or connection of SQLAlchemy, a
        connection of Django, psycopg, psycopg2, PyMySQL, mysqlclient or sqlite3; `async with` takes an asynchronous
        one of SQLAlchemy or psycopg, or one of asyncpg.

        Raises:
            OutboxRefused: here, it is none of these; at the block, the broker is not a database, the connection leads
                to another one or has no transaction.
            BrokerUnavailable: at the first block of a process, the broker does not answer.
        """
        return self.wiring.outboxes.open(connection)

    # -- jobs ----------------------------------------------------------------------------------

    @property
    def jobs(self) -> Jobs:
        """The client that dispatches, stops and lists jobs. It works in any process."""
        return self.wiring.jobs

    def job(
        self,
        name: str,
        *,
        keyspace: str = DEFAULT_KEYSPACE,
        max_starts: int | None = None,
        retry_backoff: float = 1.0,
        retry_backoff_max: float = 60.0,
        max_notes: int | None = None,
        max_deliveries: int | None = None,
        isolated: bool = False,
    ) -> Callable[[_Handler], _Handler]:
        """Declare a job: a coroutine function that takes a `Job`, a `def` that takes a `ThreadJob`, or a `JobHandler`.

        This works before `init_app` too. A start or run that fails is followed by the next start after `retry_backoff`
        seconds; the pause doubles up to `retry_backoff_max`. After `max_starts` failures, one after the other, the job
        is given up: it is `failed` until `sticky.jobs.restart` (None: it is never given up). After a minute without a
        failure the count begins again.

        At most `max_notes` notifications wait for a job (None: the sender's setting `sticky_job_max_notes`). A
        notification that the job cannot handle is delivered at most `max_deliveries` times (None: the setting
        `sticky_job_max_deliveries`), and is then dead. `isolated`: each job has a process of its own.

        Raises:
            InvalidJob: the handler is none of these, the name is taken, empty or too long, or an option is invalid.
        """
        retry = Retry(max_starts, retry_backoff, retry_backoff_max)

        def declare(handler: _Handler) -> _Handler:
            options = {"retry": retry, "max_notes": max_notes, "max_deliveries": max_deliveries, "isolated": isolated}
            self._declared.job(name, keyspace, handler, **options)
            return handler

        return declare

    def schedule(
        self,
        name: str,
        *,
        every: float,
        job: str | None = None,
        keyspace: str | None = None,
        allow_empty: bool = False,
    ) -> Callable[[_Function], _Function]:
        """Declare a function that returns the keys that should have a job. One worker calls it every `every` seconds.

        The function returns keys, a mapping of key to payload, or a `Plan`. `job` is the name of the job; the default
        is the schedule's name. A result without keys is not applied if it would stop two jobs or more, unless
        `allow_empty` is true: the function may have read an empty table by mistake.

        Raises:
            InvalidJob: the name is taken, the job has another schedule in this keyspace, or the interval is not a
                number of seconds of at least 0.1.
        """

        def declare(function: _Function) -> _Function:
            self._declared.schedule(name, job or name, keyspace, every, function, allow_empty=allow_empty)
            return function

        return declare

    def ticker(self, name: str, *, every: float, keyspace: str = DEFAULT_KEYSPACE) -> Callable[[_Function], _Function]:
        """Declare a function that one worker of the keyspace calls once in each period of `every` seconds.

        Periods are those of the store's clock, in whole milliseconds.

        Raises:
            InvalidJob: the name is taken, or the interval is not a number of seconds of at least 0.1.
        """

        def declare(function: _Function) -> _Function:
            self._declared.ticker(name, keyspace, every, function)
            return function

        return declare

    # -- placed keyspaces ----------------------------------------------------------------------

    def keyspace(self, keyspace: Keyspace) -> Keyspace:
        """Declare a keyspace with options of its own, and return it. This works before `init_app` too."""
        if self._wired is None:
            self._keyspaces.append(keyspace)
        else:
            self._wired.declare([keyspace])
        return keyspace

    def pin(self, key: Key, keyspace: str = DEFAULT_KEYSPACE, *, take: bool = False) -> Pin:
        """Send the tasks and jobs of a key to this worker until the pin is released, or the worker loses its lease.

        Call this only inside a worker: in its main process, a pool child or the job host. It may be called again, by
        any process of the worker: the newest pin holds the key, and releasing an older one changes nothing.

        Raises:
            PinnedElsewhere: another live worker has pinned the key. With `take` the pin is taken from that worker.
            NotAMember: this process does not belong to a worker that takes part in the keyspace now.
            InvalidSettings: the keyspace does not allow pins.
            StoreUnavailable: the key may or may not be pinned.
        """
        wiring, text = self.wiring, key_text(key)
        placed = self.settings.placed_keyspace(check_keyspace(keyspace))
        if wiring.lease is not None and not wiring.lease.trusted(keyspace):
            raise NotAMember(f"this worker has no lease in keyspace {keyspace!r} now")
        return wiring.lookup.pin(placed, wiring.worker, text, take=take)

    def unpin(self, key: Key, keyspace: str = DEFAULT_KEYSPACE) -> bool:
        """Remove whichever pin this worker has of a key; return False if it has none.

        Prefer `Pin.release`: this also ends a pin that another connection or process of this worker has set since.

        Raises:
            InvalidSettings: the keyspace does not allow pins.
            StoreUnavailable: the key may or may not be pinned.
        """
        placed = self.settings.placed_keyspace(check_keyspace(keyspace))
        return self.wiring.lookup.unpin(placed, self.wiring.worker, key_text(key))

    def worker_for(self, key: Key, keyspace: str) -> str | None:
        """Return the node name of the worker that a key of a placed keyspace belongs to now, as a sender sees it.

        Return None if the key belongs to a slot without an owner.

        Raises:
            InvalidSettings: the keyspace is not a placed keyspace.
            StoreUnavailable, NoWorker, NotPinned, AssignmentFailed: see `apply_async`.
        """
        placed = self.settings.placed_keyspace(check_keyspace(keyspace))
        if placed is None:
            raise InvalidSettings(f"keyspace {keyspace!r} is not a placed keyspace: its keys belong to slots")
        return self.wiring.lookup.worker_for(placed, key_text(key))

    # -- keys ----------------------------------------------------------------------------------

    def owns(self, key: Key, keyspace: str = DEFAULT_KEYSPACE) -> bool:
        """Return True if this worker owns the key now: its slot is open here and the lease is trusted.

        In a placed keyspace: the key is placed on this worker. Outside a worker the answer is False.

        Raises:
            InvalidKey: the value cannot be a key.
            StoreUnavailable, AssignmentFailed: in a placed keyspace, the placement of the key is not known.
        """
        lease, placed = self.wiring.lease, self.settings.placed_keyspace(keyspace)
        if placed is not None:
            with suppress(NotPinned, NoWorker):
                mine = self.wiring.lookup.worker_for(placed, key_text(key)) == self.wiring.worker
                return mine and lease is not None and lease.trusted(keyspace)
            return False
        return lease is not None and lease.owns(keyspace, self.slot_for(key, keyspace))

    def slot_for(self, key: Key, keyspace: str = DEFAULT_KEYSPACE) -> int:
        """Return the slot of a key in this app's keyspace.

        Raises:
            InvalidKey: the value cannot be a key.
        """
        return slot_for(key, self.settings.slots_of(keyspace))

    def queue_for(self, key: Key, keyspace: str = DEFAULT_KEYSPACE) -> str:
        """Return the name of the queue that this app sends a key's tasks to.

        Raises:
            InvalidKey: the value cannot be a key, or the keyspace's name is invalid.
        """
        if (placed := self.settings.placed_keyspace(keyspace)) is not None:
            return queue_name(keyspace, self.wiring.lookup.of(placed, key_text(key)), self.settings.key_prefix)
        return queue_for(key, keyspace, self.settings.slots_of(keyspace), self.settings.key_prefix)
