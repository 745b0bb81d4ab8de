"""A database as the broker of the queue contract."""

from __future__ import annotations

from typing import Any

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.keys import queue_name
from celery_sticky.queues.sql import SqlQueues, publish
from celery_sticky.slots import Slot
from celery_sticky.sql import Address, Database

TABLES = ("message", "fence", "flight", "suspect", "deferred", "dead", "ledger")


class OnSql:
    """An empty broker in a database; `close` ends its own connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = self.connect()
        self.clear()

    def connect(self, timeout: float = 20.0) -> Database:
        """Return another connection."""
        return Database(Address.parse(self.url), timeout=timeout, unavailable=BrokerUnavailable)

    def clear(self) -> None:
        """Delete everything."""
        for table in TABLES:
            self.database.run(f"DELETE FROM {{{table}}}")

    def driver(self, socket_timeout: float = 20.0) -> SqlQueues:
        """Return a new driver."""
        return SqlQueues(self.connect(socket_timeout), prefix="sticky")

    def publish(self, keyspace: str, slot: Slot, body: bytes, priority: int = 0) -> None:
        """Add a message."""
        publish(self.database, queue_name(keyspace, slot), [body], priority)

    def publish_many(self, slot: Slot, bodies: list[bytes], priority: int = 0) -> None:
        """Add messages in one transaction."""
        publish(self.database, queue_name("default", slot), bodies, priority)

    def count(self, table: str) -> int:
        """Return the number of rows in a table."""
        return int(self.database.rows(f"SELECT COUNT(*) FROM {{{table}}}")[0][0])

    def value(self, statement: str, *said: Any) -> Any:
        """Return the first value of a statement's first row."""
        return self.database.rows(statement, said)[0][0]

    def close(self) -> None:
        """Close the connection."""
        self.database.close()
