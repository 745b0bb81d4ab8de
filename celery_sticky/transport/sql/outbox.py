"""Publishes on a connection of the caller, inside of the caller's transaction: the transport without a connection.

The statements are those of `Channel`. Nothing is looked up and nothing declared: the number of a queue is a hash of its
name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NoReturn

from kombu.transport.virtual.base import queue_declare_ok_t

from celery_sticky.errors import BrokerUnavailable, OutboxRefused
from celery_sticky.sql import Address, Database, Writer
from celery_sticky.sql.bell import Topic
from celery_sticky.sql.callers import AsyncCaller, Caller
from celery_sticky.sql.callers.base import Said, Statements
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.dialects.sqlite_file import identity
from celery_sticky.sql.tables import Tables
from celery_sticky.transport.sql.channel import Channel
from celery_sticky.transport.sql.transport import SOCKET_TIMEOUT, Transport


class BrokerDatabase:
    """The database of the broker: how statements look there, and whether a connection of a caller leads to it."""

    def __init__(self, client: Any) -> None:
        """Read which database it is, on a connection of its own; its tables are created if they are missing.

        Raises:
            BrokerUnavailable: it does not answer.
        """
        self.address = Address.of(client)
        timeout = float((client.transport_options or {}).get("socket_timeout") or SOCKET_TIMEOUT)
        database = Database.of(client, timeout=timeout, unavailable=BrokerUnavailable)
        self.dialect: Dialect = database.dialect
        self.tables: Tables = database.tables
        self.query = self.tables.fill(self.dialect.here)
        try:
            self.name, self.identity = self.read(str(database.rows(self.query)[0][0]))
        finally:
            database.close()

    def read(self, value: str) -> tuple[str, str]:
        """Return name and identity of a database, from the value of `query`."""
        if self.address.kind == "sqlite":
            return value or "a database in memory", identity(value) if value and os.path.exists(value) else ""
        name, _, found = value.partition("\n")
        return name, found

    def refusal(self, other: str) -> OutboxRefused:
        """Return the error for a connection to another database."""
        return OutboxRefused(
            f"the connection leads to {other}, the broker is {self.address.shown} ({self.name}): a task "
            "is part of a transaction only in the broker's own database. Pass a connection to that one, or name this "
            "database in broker_url; else send after the commit, without an outbox"
        )


class Direct:
    """Inserts at once."""

    def __init__(self, caller: Caller, broker: BrokerDatabase) -> None:
        self.clock = broker.dialect.portable_clock
        self.topics: dict[Topic, None] = {}
        """What to ring after the commit."""
        self._caller, self._tables = caller, broker.tables

    def run(self, statement: str, said: Any = (), *, ring: Collection[Topic] = ()) -> int:
        """See `Writer.run`."""
        self.topics.update(dict.fromkeys(ring))
        self._caller.run(self._tables.fill(statement), said)
        return 1


class Kept:
    """Keeps what is to be inserted, for a connection whose calls are awaited."""

    def __init__(self, caller: AsyncCaller, broker: BrokerDatabase) -> None:
        self.clock = broker.dialect.portable_clock
        self._tables = broker.tables
        self._statements: list[tuple[str, Said]] = []
        self.topics: dict[Topic, None] = {}
        """What to ring after the commit."""

    def run(self, statement: str, said: Any = (), *, ring: Collection[Topic] = ()) -> int:
        """See `Writer.run`."""
        self.topics.update(dict.fromkeys(ring))
        self._statements.append((self._tables.fill(statement), said))
        return 1

    def take(self) -> Statements:
        """Return what was kept, and forget it."""
        taken: Sequence[tuple[str, Said]] = self._statements
        self._statements = []
        return taken


class OutboxChannel(Channel):
    """A channel that can publish to queues, and to all who listen to an exchange."""

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish a message. An event goes to those who listen; queues bound to topics would have to be looked up."""
        if exchange and exchange == self.connection.event_exchange:
            self._inplace_augment_message(message, exchange, routing_key)
            self._put_fanout(exchange, message, routing_key)
        else:
            super().basic_publish(message, exchange, routing_key, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Declare nothing: a row can be in a queue that nobody has declared."""
        return queue_declare_ok_t(queue, 0, 0)

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", **options: Any) -> None:
        """Bind nothing."""

    def get_table(self, exchange: str) -> NoReturn:
        """Refuse: the bindings of an exchange are in the database.

        Raises:
            OutboxRefused: always.
        """
        raise OutboxRefused(
            f"exchange {exchange!r} does not name the queue of its messages, and an outbox looks up no bindings: send "
            "to a queue (queue=…) whose exchange is of type direct, or outside of the outbox"
        )


class OutboxTransport(Transport):
    """A transport that writes to a connection of the caller."""

    Channel = OutboxChannel

    def __init__(self, client: Any, writer: Direct | Kept, events: str) -> None:
        """`events`: the exchange of Celery's events."""
        super().__init__(client)
        self.event_exchange, self._writer = events, writer

    def writing(self) -> AbstractContextManager[Writer]:
        """See `Transport.writing`."""
        return nullcontext(self._writer)

    def ring(self) -> None:
        """Ring, after the commit, for what was sent. If that fails, consumers notice the messages a little later."""
        topics = list(self._writer.topics)
        self._writer.topics.clear()
        with suppress(BrokerUnavailable), self.sending() as database:
            database.ring(topics)
