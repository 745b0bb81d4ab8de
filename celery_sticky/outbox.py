"""`sticky.outbox(connection)`: the tasks sent in a block are rows of the caller's transaction, and exist if it commits.

Celery publishes every task by `app.amqp.send_task_message(producer, …)`. From the first outbox of an app on, that call
is passed the producer of the outbox that is open, if one is (Celery 5.5 to 5.7).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from celery_sticky.drivers import known_connection
from celery_sticky.errors import OutboxRefused
from celery_sticky.sql.callers import AsyncCaller, Caller, caller_of
from celery_sticky.transport.sql.outbox import BrokerDatabase, Direct, Kept, OutboxTransport
from celery_sticky.transport.sql.transport import Transport

_innermost: ContextVar[Outbox | None] = ContextVar("celery_sticky_outbox", default=None)

NO_TRANSACTION = (
    "the connection is in autocommit mode and has no transaction, so each task would be sent at once: begin a "
    "transaction around the outbox (psycopg: conn.transaction(), Django: transaction.atomic(), asyncpg: "
    "conn.transaction()), or turn autocommit off"
)


class Outboxes:
    """The outboxes of one app."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._broker: BrokerDatabase | None = None
        self._lock = threading.Lock()

    def open(self, connection: Any) -> Outbox:
        """See `Sticky.outbox`."""
        caller = caller_of(connection)
        self._install()
        return Outbox(self, caller)

    def broker(self, *, fresh: bool = False) -> BrokerDatabase:
        """Return the broker's database, as it was when it was first asked, or now.

        Raises:
            OutboxRefused: the broker is not a database.
            BrokerUnavailable: it does not answer.
        """
        if self._broker is None or fresh:
            self._broker = BrokerDatabase(self.client())
        return self._broker

    def client(self) -> Any:
        """Return a Kombu connection to the broker, which has not connected."""
        client = known_connection(self._app.connection_for_write)
        if not issubclass(client.get_transport_cls(), Transport):
            raise OutboxRefused(
                f"the broker is {client.as_uri()}: a task can be part of a transaction only if the broker is the "
                "database of that transaction. Set broker_url to sticky+postgresql://, sticky+mysql:// or "
                "sticky+sqlite:// with that database; else send after the commit, without an outbox"
            )
        return client

    def producer(self, writer: Direct | Kept) -> Any:
        """Return a producer that writes to the caller's connection."""
        transport = OutboxTransport(self.client(), writer, self._app.conf.event_exchange)
        return self._app.amqp.Producer(transport.create_channel(transport), auto_declare=False)

    def current(self) -> Outbox | None:
        """Return the innermost outbox of this app that this thread, greenlet or asyncio task has entered."""
        box = _innermost.get()
        while box is not None and box.outboxes is not self:
            box = box.outer
        return box if box is not None and box.owner == _here() else None

    def _install(self) -> None:
        with self._lock:
            inner = self._app.amqp.send_task_message
            if getattr(inner, "outboxes", None) is not self:
                self._app.amqp.send_task_message = _Sender(self._app, self, inner)


class _Sender:
    """Replaces `app.amqp.send_task_message`."""

    def __init__(self, app: Any, outboxes: Outboxes, inner: Callable[..., Any]) -> None:
        self._app, self.outboxes, self._inner = app, outboxes, inner

    def __call__(self, producer: Any, name: str, message: Any, *args: Any, **options: Any) -> Any:
        box = self.outboxes.current()
        if box is None or self._continues(message):
            return self._inner(producer, name, message, *args, **options)
        return self._inner(box.producer_for_message(), name, message, *args, **{**options, "retry": False})

    def _continues(self, message: Any) -> bool:
        """Return whether this is a retry of the task that runs here: it is sent even if the block rolls back."""
        task = self._app.current_worker_task
        return task is not None and message.properties.get("correlation_id") == task.request.id


class Outbox:
    """A block whose tasks are sent in the transaction of a connection. It may be entered again when it was left."""

    def __init__(self, outboxes: Outboxes, caller: Caller | AsyncCaller) -> None:
        self.outboxes, self._caller = outboxes, caller
        self.owner: tuple[int, object] | None = None
        """Who has entered the block; None if nobody has."""
        self.outer: Outbox | None = None
        """The outbox that was open when this one was entered."""
        self._token: Token[Outbox | None] | None = None
        self._producer: Any = None
        self._kept: Kept | None = None
        self._unwatch: Callable[[], None] | None = None
        self._to_ring: list[OutboxTransport] = []
        """What was sent over, and rings after the commit."""

    def producer_for_message(self) -> Any:
        """Return the producer for one message."""
        transport = self._producer.channel.connection
        if transport not in self._to_ring:
            self._to_ring.append(transport)
            self._caller.after_commit(self._committed)
        return self._producer

    # -- a connection that blocks --------------------------------------------------------------

    def __enter__(self) -> Self:
        caller = self._caller
        if not isinstance(caller, Caller):
            raise OutboxRefused("the connection is asynchronous: write `async with sticky.outbox(…)`")
        broker = self.outboxes.broker()
        _check_kind(broker, caller.kind)
        if not _leads_to(broker, found := caller.value(broker.query)):
            broker = self.outboxes.broker(fresh=True)  # it may have failed over
            _check_place(broker, caller.kind, found)
        if caller.autocommits():
            raise OutboxRefused(NO_TRANSACTION)
        self._begin(Direct(caller, broker))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    # -- a connection whose calls are awaited --------------------------------------------------

    async def __aenter__(self) -> Self:
        caller = self._caller
        if not isinstance(caller, AsyncCaller):
            raise OutboxRefused("the connection is not asynchronous: write `with sticky.outbox(…)`")
        broker = await asyncio.to_thread(self.outboxes.broker)
        _check_kind(broker, caller.kind)
        if not _leads_to(broker, found := await caller.value(broker.query)):
            broker = await asyncio.to_thread(self.outboxes.broker, fresh=True)
            _check_place(broker, caller.kind, found)
        if await caller.autocommits():
            raise OutboxRefused(NO_TRANSACTION)
        if (outer := _innermost.get()) is not None and outer.owner == _here():
            await outer.write()  # it may have the same connection: what was sent first comes first
        self._kept = Kept(caller, broker)
        self._begin(self._kept)
        self._unwatch = await caller.watch(self._kept.take)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.write()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"celery-sticky: the tasks that the block had sent were not written: {failure}")
        finally:
            if self._unwatch is not None:
                self._unwatch()
            self._end()

    async def write(self) -> None:
        """Run the statements that were kept."""
        if self._kept is None or not (statements := self._kept.take()):
            return
        assert isinstance(self._caller, AsyncCaller)
        if await self._caller.autocommits():
            raise OutboxRefused(f"the transaction ended before the outbox, and {len(statements)} tasks were not sent")
        await self._caller.run_all(statements)

    # -- both ----------------------------------------------------------------------------------

    def _begin(self, writer: Direct | Kept) -> None:
        if self.owner is not None:
            raise OutboxRefused("this outbox is open already: call `sticky.outbox(…)` for each block")
        self._producer, self.outer = self.outboxes.producer(writer), _innermost.get()
        self.owner, self._token = _here(), _innermost.set(self)

    def _end(self) -> None:
        owner, token = self.owner, self._token
        self.owner = self._token = self.outer = self._producer = self._kept = None
        if owner != _here():
            raise OutboxRefused(
                "the outbox was left by another thread or asyncio task than entered it, and tasks of others were sent "
                "at once: open it in the function that sends, not in a generator that a framework runs elsewhere"
            )
        if token is not None:
            _innermost.reset(token)

    def _committed(self) -> None:
        sent, self._to_ring = self._to_ring, []
        for transport in sent:
            try:  # an event loop must not wait for the database
                asyncio.get_running_loop().run_in_executor(None, transport.ring)
            except RuntimeError:  # there is none
                transport.ring()


def _here() -> tuple[int, object]:
    """Return the thread or greenlet that runs, and its asyncio task."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return threading.get_ident(), None


def _check_kind(broker: BrokerDatabase, kind: str) -> None:
    if broker.address.kind != kind:
        raise broker.refusal(f"a {kind} database")


def _leads_to(broker: BrokerDatabase, found: str) -> bool:
    return broker.read(found)[1] == broker.identity


def _check_place(broker: BrokerDatabase, kind: str, found: str) -> None:
    if not _leads_to(broker, found):
        raise broker.refusal(f"the {kind} database {broker.read(found)[0]}")
