"""Claims messages of ordinary queues for one consumer, and settles those that it has claimed.

A claim is a row; the row of the message is never updated. Every transaction locks the consumer's own row first, and an
eviction deletes that row together with the consumer's claims: so a consumer whose row is there has all of the claims
that it knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from celery_sticky.sql import Database, Transaction
from celery_sticky.sql.bell import queue_topic
from celery_sticky.sql.dialects.base import joined
from celery_sticky.sql.text import Place, chunks, values

BATCH = 100
"""Most messages of one queue that one trip claims."""
KEY = ("queue", "priority", "id")
UNCLAIMED = "NOT EXISTS (SELECT 1 FROM {claim} c WHERE c.queue = t.queue AND c.priority = t.priority AND c.id = t.id)"
FIRST = (
    f"SELECT t.queue, t.priority, t.id FROM {{message}} t WHERE t.queue = %s AND {UNCLAIMED} "
    "ORDER BY t.priority, t.id LIMIT %s"
)


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

    def look(self, queues: Collection[int]) -> set[int]:
        """Return those of the queues that have a message nobody has claimed."""
        found: set[int] = set()
        for some in chunks(sorted(queues)):
            table, said = self._dialect.table("w", ("queue",), [(queue,) for queue in some])
            statement = (
                # In order, and not with EXISTS: a planner may else read the messages of all queues.
                f"SELECT w.queue FROM {table} WHERE (SELECT 1 FROM {{message}} t WHERE t.queue = w.queue "
                f"AND {UNCLAIMED} ORDER BY t.priority, t.id LIMIT 1) = 1"
            )
            found |= {row[0] for row in self._database.rows(statement, said)}
        return found

    def trip(
        self, acked: Collection[Place], returned: Collection[Place], wants: Iterable[Want], rooms: dict[int, int]
    ) -> list[Claimed]:
        """Delete acknowledged messages, give others back, and claim as many as there is room for, in one transaction.

        `rooms` is lowered by what was claimed.

        Raises:
            Evicted: nothing was done.
        """
        with self._database.transaction() as inside:
            own = f"SELECT t.counter FROM {{consumer}} t WHERE t.consumer = %s{self._dialect.share}"
            if not inside.rows(own, [self.consumer]):
                raise Evicted
            ring = {queue_topic(place[0]) for place in returned}
            for table, places in (("{message}", acked), ("{claim}", {*acked, *returned})):
                for some in chunks(sorted(places)):
                    inside.run(*self._dialect.delete(table, KEY, some), ring=ring)
            found: list[Claimed] = []
            left = dict(rooms)
            for want in wants:
                if left[want.room] > 0:
                    claimed = self._claim(inside, want.queue, min(left[want.room], BATCH))
                    left[want.room] -= len(claimed)
                    found += claimed
        rooms.update(left)
        return found

    def _claim(self, inside: Transaction, queue: int, limit: int) -> list[Claimed]:
        found: list[Claimed] = []
        first: Sequence[Place] = [
            (row[0], row[1], row[2]) for row in inside.rows(FIRST + self._dialect.skip, [queue, limit])
        ]
        for some in chunks(first):
            # Another consumer may have claimed one since our snapshot began: what was inserted is read back.
            text, said = values([(*place, self.consumer) for place in some])
            columns = "queue, priority, id, consumer"
            inside.run(f"INSERT INTO {{claim}} ({columns}) VALUES {text}{self._dialect.or_nothing}", said)
            rows, said = joined(self._dialect, "{claim}", KEY, some)
            statement = (
                f"SELECT t.queue, t.priority, t.id, m.body FROM {rows} JOIN {{message}} m ON m.queue = t.queue "
                "AND m.priority = t.priority AND m.id = t.id WHERE t.consumer = %s ORDER BY t.priority, t.id"
            )
            for *place, body in inside.rows(statement, [*said, self.consumer]):
                found.append(Claimed((place[0], place[1], place[2]), bytes(body)))
        return found
