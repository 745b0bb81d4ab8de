"""The rows of consumers. Each one's counter grows; when it stands still, its claims are given back.

No clock of another machine is read: a consumer is dead when we have read the same counter for long enough. The time in
which we could not read, perhaps because the database was away for all, does not count.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from celery_sticky.sql import Database
from celery_sticky.sql.bell import queue_topic
from celery_sticky.sql.text import chunks, marks

logger = logging.getLogger("celery_sticky")

BEATS = 5
"""The counter grows this many times in the time after which a consumer that stands still is evicted."""


@dataclass(slots=True)
class _Seen:
    counter: int
    read: float
    still: float = 0.0
    """Seconds for which the counter was seen to stand still."""


class Consumers:
    """The row of one consumer, and what it sees of the others."""

    def __init__(
        self, database: Database, eviction_timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._timeout, self._clock = database, eviction_timeout, clock
        self.interval = eviction_timeout / BEATS
        """Seconds between two heartbeats."""
        self._others: dict[bytes, _Seen] = {}

    def register(self) -> bytes:
        """Insert a row for a new consumer, and return its name."""
        name = uuid.uuid4().hex.encode()
        about = f"{socket.gethostname()}:{os.getpid()}".encode()
        self._database.run("INSERT INTO {consumer} (consumer, counter, about) VALUES (%s, 0, %s)", [name, about])
        return name

    def beat(self, name: bytes) -> bool:
        """Add one to the consumer's counter; return False if its row is gone."""
        return bool(self._database.run("UPDATE {consumer} SET counter = counter + 1 WHERE consumer = %s", [name]))

    def leave(self, name: bytes) -> None:
        """Delete a consumer's row and all of its claims."""
        self._evict(name, None)

    def watch(self, name: bytes) -> int:
        """Look at the other consumers once; return how many were evicted."""
        now = self._clock()
        found = {bytes(other): counter for other, counter in self._database.rows(
            "SELECT consumer, counter FROM {consumer} WHERE consumer <> %s", [name]
        )}  # fmt: skip
        self._others = {other: self._seen(other, counter, now) for other, counter in found.items()}
        gone = [other for other, seen in self._others.items() if seen.still >= self._timeout]
        evicted = [other for other in gone if self._evict(other, self._others[other].counter)]
        return len(evicted) + self._sweep()

    def _seen(self, other: bytes, counter: int, now: float) -> _Seen:
        last = self._others.get(other)
        if last is None or last.counter != counter:
            return _Seen(counter, now)
        return _Seen(counter, now, last.still + min(now - last.read, 2 * self.interval))

    def _evict(self, name: bytes, counter: int | None) -> bool:
        """Delete a consumer's row and claims, unless its counter is not this one any more."""
        dialect = self._database.dialect
        with self._database.transaction() as inside:
            row = inside.rows(
                f"SELECT t.counter, t.about FROM {{consumer}} t WHERE t.consumer = %s{dialect.update}", [name]
            )
            if counter is not None and (not row or row[0][0] != counter):
                return False
            queues = inside.rows("SELECT DISTINCT queue FROM {claim} WHERE consumer = %s", [name])
            ring = [queue_topic(queue) for (queue,) in queues]
            held = inside.run("DELETE FROM {claim} WHERE consumer = %s", [name], ring=ring)
            inside.run("DELETE FROM {consumer} WHERE consumer = %s", [name])
        if counter is not None and held:
            logger.warning(
                "consumer %s has not sent a heartbeat for %g s; the %d messages that it held go back to their queues",
                bytes(row[0][1]).decode(),
                self._timeout,
                held,
            )
        return True

    def _sweep(self) -> int:
        """Delete claims of consumers that have no row; a consumer has its row before its first claim."""
        rows = self._database.rows(
            "SELECT DISTINCT c.consumer FROM {claim} c LEFT JOIN {consumer} k ON k.consumer = c.consumer "
            "WHERE k.consumer IS NULL"
        )
        names = [bytes(row[0]) for row in rows]
        return sum(
            self._database.run(f"DELETE FROM {{claim}} WHERE consumer IN {marks(len(some))}", some)
            for some in chunks(names)
        )
