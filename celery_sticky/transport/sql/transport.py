"""The transport: one Kombu connection to a database."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

from kombu.transport import virtual
from kombu.utils.url import maybe_sanitize_url

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.sql import Database, Writer
from celery_sticky.sql.address import LEAD, with_password, without_password
from celery_sticky.transport.sql.channel import Channel
from celery_sticky.transport.sql.events import Spared
from celery_sticky.transport.sql.inbox import Inbox
from celery_sticky.transport.sql.pump import Pump
from celery_sticky.transport.sql.senders import Senders, leave, senders_of
from celery_sticky.transport.sql.subscription import Topic

SOCKET_TIMEOUT = 5.0
EVICTION_TIMEOUT = 15.0
IN_A_ROW = 0.02
"""Seconds for which messages are delivered before the loop returns to its other duties."""


class Transport(virtual.Transport):
    """See `kombu.transport.virtual.Transport`. It is made without a connection, which comes with the first use.

    Options, in `broker_transport_options`: `table_prefix`, the beginning of the names of tables; `socket_timeout`, for
    how many seconds the database may take to answer; `eviction_timeout`, for how many seconds a consumer may be silent
    before others get its messages; `migrate`, whether to create and update tables; `notify`, whether to ring and to
    hear; `listen_url`, where to hear.
    """

    Channel = Channel
    can_parse_url = True
    polling_interval = None
    driver_type = "sticky"  # Celery sends no events to a transport of type "sql"
    driver_name = "celery-sticky"
    connection_errors = (*virtual.Transport.connection_errors, BrokerUnavailable)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        # Kombu shows the host of a connection to `inspect stats`, and never its password. Here the host is a URL.
        client.hostname, password = without_password(str(client.hostname or ""))
        client.password = client.password or password
        self.temporary: set[str] = set()
        """Queues that expire when nobody consumes from them."""
        self.topics: dict[str, list[Topic]] = {}
        """Queue -> the broadcasts that it gets."""
        self.bound: set[str] = set()
        """Queues that also have messages of their own."""
        self.events = Spared()
        """How events are sent."""
        self._options = dict(client.transport_options or {})
        self._key = (str(client.hostname), repr(sorted(self._options.items(), key=str)))
        self._pid, self._loop = os.getpid(), None

    # -- the database --------------------------------------------------------------------------

    def _database(self) -> Database:
        timeout = float(self._options.get("socket_timeout") or SOCKET_TIMEOUT)
        return Database.of(self.client, timeout=timeout, unavailable=BrokerUnavailable)

    @contextmanager
    def sending(self) -> Iterator[Database]:
        """Lend a connection to publish and declare."""
        with self._senders.lend() as database:
            yield database

    @property
    def _senders(self) -> Senders:
        return senders_of(self, self._key, self._database)

    def writing(self) -> AbstractContextManager[Writer]:
        """Lend the connection on which messages are inserted."""
        return self.sending()

    @cached_property
    def pump(self) -> Pump:
        """The thread that reads for the consumers of this connection. It starts with the first of them."""
        timeout = float(self._options.get("eviction_timeout") or EVICTION_TIMEOUT)
        return Pump(self._database(), self.inbox, lambda: self._senders.rest(), eviction_timeout=timeout)

    @cached_property
    def inbox(self) -> Inbox:
        """What the pump has brought."""
        return Inbox()

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL of the connection, whose host is `uri`; `mask` stands for the password."""
        url = LEAD + uri.removeprefix(LEAD)
        if self.client.password:
            url = with_password(url, self.client.password)
        return url if include_password else str(maybe_sanitize_url(url, mask))

    # -- Kombu's side --------------------------------------------------------------------------

    def establish_connection(self) -> Any:
        """Connect, so that a database that does not answer is told now."""
        with self.sending() as database:
            database.rows("SELECT 1")
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Give back what is not settled, and disconnect; in a forked child, leave the parent's connection alone."""
        parts, inherited = self.__dict__, self._pid != os.getpid()
        if not inherited:
            if self._loop is not None:
                self._loop.remove_reader(self.inbox.fileno())
            super().close_connection(connection)
        self._loop = None
        if (pump := parts.pop("pump", None)) is not None:
            if inherited:
                pump.abandon()
            else:
                pump.stop(timeout=2 * float(self._options.get("socket_timeout") or SOCKET_TIMEOUT) + 1)
        if (inbox := parts.pop("inbox", None)) is not None:
            inbox.close()
        leave(self, self._key)

    def _collect(self, connection: Any) -> None:
        """Close: Kombu calls this after a fork, and to connect again."""
        self.close_connection(connection)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have the loop deliver what the pump brings."""
        self._loop = loop
        loop.add_reader(self.inbox.fileno(), self._on_readable)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what there is, or wait for something.

        Raises:
            TimeoutError: nothing came in `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_some():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self.inbox.wait(left)

    def _on_readable(self) -> None:
        self._deliver_some()

    def _deliver_some(self) -> int:
        """Deliver messages for a moment; return how many."""
        self.inbox.quiet()
        until, count = time.monotonic() + IN_A_ROW, 0
        while (delivery := self.inbox.take()) is not None:
            count += 1
            callback = self._callbacks.get(delivery.queue)
            if callback is None:  # nobody consumes from the queue any more
                if delivery.tag is not None:
                    self.pump.settle(delivery.tag, back=True)
                continue
            if delivery.tag is not None:
                delivery.payload["properties"]["delivery_tag"] = delivery.tag
            callback(delivery.payload)
            if time.monotonic() >= until:
                self.inbox.wake()
                break
        return count
