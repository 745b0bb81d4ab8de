"""Messages for everyone who listens to an exchange: one row each, whatever the number of listeners."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from celery_sticky.sql import Database, Writer
from celery_sticky.sql.bell import BROADCAST
from celery_sticky.sql.text import chunks, marks

KEPT_SECONDS = 60.0
"""A listener that cannot read for so long misses messages."""
LATE_SECONDS = 5.0
"""A row that is committed so long after one with a higher id is still found."""
PRUNED = 500
"""Most rows deleted by one statement."""


class Broadcast(NamedTuple):
    """A row."""

    id: int
    exchange: str
    routing_key: str
    body: bytes


def broadcast(database: Writer, exchange: str, routing_key: str, body: bytes) -> None:
    """Send a message to all who listen to an exchange."""
    database.run(
        f"INSERT INTO {{broadcast}} (exchange, routing_key, at, body) VALUES (%s, %s, {database.clock}, %s)",
        [exchange.encode(), routing_key.encode(), body],
        ring=[BROADCAST],
    )


def newest(database: Database) -> int:
    """Return the highest id: who begins to listen now hears what comes after it."""
    return int(database.rows("SELECT COALESCE(MAX(id), 0) FROM {broadcast}")[0][0])


def prune(database: Database) -> None:
    """Delete messages that everyone has read by now."""
    old = f"SELECT id FROM {{broadcast}} WHERE at < {database.dialect.clock} - %s ORDER BY id LIMIT {PRUNED}"
    ids = [row[0] for row in database.rows(old, [KEPT_SECONDS])]
    for some in chunks(ids):
        database.run(f"DELETE FROM {{broadcast}} WHERE id IN {marks(len(some))}", some)


class Reader:
    """Reads on from where it began. Rows may be committed in another order than that of their ids."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._floor: int | None = None
        """Rows up to this id are not read any more."""
        self._known: set[int] = set()
        """Ids above the floor that were read."""
        self._history: deque[tuple[float, int]] = deque()
        """When the highest known id was which."""

    def start(self, floor: int) -> None:
        """Read messages after this id from now on, unless it reads already."""
        if self._floor is None:
            self._floor = floor

    def read(self) -> list[Broadcast]:
        """Return the messages that were not read before."""
        if self._floor is None:
            return []
        rows = self._database.rows("SELECT id FROM {broadcast} WHERE id > %s ORDER BY id", [self._floor])
        fresh = [row[0] for row in rows if row[0] not in self._known]
        found: list[Broadcast] = []
        for some in chunks(fresh):
            statement = (
                f"SELECT id, exchange, routing_key, body FROM {{broadcast}} WHERE id IN {marks(len(some))} ORDER BY id"
            )
            for number, exchange, routing_key, body in self._database.rows(statement, some):
                found.append(Broadcast(number, bytes(exchange).decode(), bytes(routing_key).decode(), bytes(body)))
        self._known.update(fresh)
        self._age(self._clock())
        return found

    def _age(self, now: float) -> None:
        """Raise the floor to what was the highest id `LATE_SECONDS` ago."""
        if self._known:
            self._history.append((now, max(self._known)))
        late = LATE_SECONDS if self._database.dialect.overlaps else 0.0
        while self._history and self._history[0][0] <= now - late:
            assert self._floor is not None
            self._floor = max(self._floor, self._history.popleft()[1])
        self._known = {number for number in self._known if number > (self._floor or 0)}
