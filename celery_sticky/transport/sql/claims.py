"""Claims messages of ordinary queues for one consumer, and settles those that it has claimed.

A claim is a row; the row of the message is never updated. Every transaction locks the consumer's own row first, and an
eviction deletes that row together with the consumer's claims: so a consumer whose row is there has all of the claims
that it knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.queues.sql.ranges import ORDER, filled, within
from celery_sticky.sql import Database, Transaction
from celery_sticky.sql.bell import queue_topic
from celery_sticky.sql.dialects.base import joined
from celery_sticky.sql.text import Place, as_bytes, chunks, values
from celery_sticky.transport.sql.floors import Floors

BATCH = 100
"""Most messages of one queue that one trip claims."""
KEY = ("queue", "priority", "id")
SAME = "c.queue = t.queue AND c.priority = t.priority AND c.id = t.id"
# NOT EXISTS may become a join with all claims, or with a copy of them; and for IS NULL PostgreSQL expects few rows.
UNCLAIMED = f"(SELECT 1 = 1 FROM {{claim}} c WHERE {SAME}) IS NOT TRUE"


class Evicted(Exception):
    """The consumer's row is gone, and its claims with it: other consumers get its messages."""


class Claimed(NamedTuple):
    """A message."""

    place: Place
    body: bytes


class Want(NamedTuple):
    """A queue to claim from."""

    queue: int
    room: int
    """Whose room the messages take: the id of a channel."""


class Claims:
    """The claims of one consumer, whose row exists."""

    def __init__(self, database: Database, consumer: bytes) -> None:
        self.consumer = consumer
        self._database, self._dialect = database, database.dialect
        self.floors = Floors()

    def look(self, queues: Collection[int]) -> set[int]:
        """Return those of the queues that have a message nobody has claimed: see `floors`."""
        front = self.floors.turn()
        if front is not None:
            self.floors.fall_behind(queues)
        parts = [(queue, part) for queue in sorted(queues) for part in self.floors.ranges(queue)]
        with self._careful():
            found = filled(self._database, self._dialect, parts, UNCLAIMED)
        if front is not None:
            self.floors.looked(front)
        self.floors.caught_up(set(queues) - found)
        return found

    def trip(
        self, acked: Collection[Place], returned: Collection[Place], wants: Sequence[Want], rooms: dict[int, int]
    ) -> list[Claimed]:
        """Delete acknowledged messages, give others back, and claim as many as there is room for, in one transaction.

        `rooms` is lowered by what was claimed.

        Raises:
            Evicted: nothing was done.
        """
        self.floors.give_back(returned)
        front = self.floors.turn() if wants else None
        if front is not None:
            self.floors.fall_behind(want.queue for want in wants)
        with self._careful(), self._database.transaction() as inside:
            self._settle(inside, acked, returned)
            found: list[Claimed] = []
            left = dict(rooms)
            for want in wants:
                if left[want.room] > 0:
                    claimed = self._claim(inside, want.queue, min(left[want.room], BATCH))
                    left[want.room] -= len(claimed)
                    found += claimed
        if front is not None:
            self.floors.looked(front)
        rooms.update(left)
        return found

    @contextmanager
    def _careful(self) -> Iterator[None]:
        """Forget the floors if the database is lost: it may come back with an older copy, in which ids begin lower."""
        try:
            yield
        except BrokerUnavailable:
            self.floors.forget()
            raise

    def _settle(self, inside: Transaction, acked: Collection[Place], returned: Collection[Place]) -> None:
        own = f"SELECT {self._dialect.ordered} FROM {{consumer}} t WHERE t.consumer = %s{self._dialect.share}"
        if not inside.rows(own, [self.consumer]):
            raise Evicted
        ring = {queue_topic(place[0]) for place in returned}
        for table, places in (("{message}", acked), ("{claim}", {*acked, *returned})):
            for some in chunks(sorted(places)):
                inside.run(*self._dialect.delete(table, KEY, some), ring=ring)

    def _claim(self, inside: Transaction, queue: int, limit: int) -> list[Claimed]:
        found: list[Claimed] = []
        first = self._first(inside, queue, limit)
        self.floors.found(queue, first, limit)
        for some in chunks(first):
            # Another consumer may have claimed one since our snapshot began: what was inserted is read back.
            text, said = values([(*place, self.consumer) for place in some])
            columns = "queue, priority, id, consumer"
            inside.run(f"INSERT INTO {{claim}} ({columns}) VALUES {text}{self._dialect.or_nothing}", said)
            rows, said = joined(self._dialect, "{message}", KEY, some)
            statement = (
                f"SELECT t.queue, t.priority, t.id, t.body FROM {rows} "
                f"WHERE (SELECT c.consumer FROM {{claim}} c WHERE {SAME}) = %s"
            )
            for *place, body in inside.rows(statement, [*said, self.consumer]):
                found.append(Claimed((place[0], place[1], place[2]), as_bytes(body)))
        return sorted(found)

    def _first(self, inside: Transaction, queue: int, limit: int) -> list[Place]:
        """Return the first unclaimed messages above the floor of a queue, and lock them."""
        found: list[Place] = []
        for part in self.floors.ranges(queue):
            where, bounds = within(self._dialect, part)
            statement = (
                f"SELECT t.priority, t.id FROM {{message}} t WHERE t.queue = %s AND {where} AND {UNCLAIMED}{ORDER} "
                f"LIMIT %s{self._dialect.skip}"
            )
            rows = inside.rows(statement, [queue, *bounds, limit - len(found)])
            found += [(queue, row[0], row[1]) for row in rows]
            if len(found) >= limit:
                break
        return found
