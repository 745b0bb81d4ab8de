"""Counts the messages of slot queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from celery_sticky.errors import SlotBroken
from celery_sticky.keys import SlotId
from celery_sticky.queues.inspection import Depth, sent_at
from celery_sticky.queues.sql.fences import read_fences
from celery_sticky.queues.sql.flight_table import in_flight, read_records
from celery_sticky.queues.sql.names import slot_number
from celery_sticky.sql import Database
from celery_sticky.sql.text import Place, as_bytes, at_places, chunks, marks

SMALL = 64 * 1024
"""Messages up to this many bytes are read to find their age."""


class Depths:
    """See `SlotQueues.depths`."""

    def __init__(self, database: Database, prefix: str) -> None:
        self._database, self._prefix = database, prefix

    def read(self, slots: Collection[SlotId]) -> dict[SlotId, Depth]:
        """Return the depths of slots. The counts are made one after the other: each is of a slightly later time."""
        try:
            return self._read(slots)
        except SlotBroken as error:
            if len(slots) == 1:
                return {slot: Depth(0, 0, 0, None, str(error)) for slot in slots}
        every = list(slots)
        half = len(every) // 2
        return self.read(every[:half]) | self.read(every[half:])

    def _read(self, slots: Collection[SlotId]) -> dict[SlotId, Depth]:
        numbers = {slot: slot_number(*slot, self._prefix) for slot in slots}
        flight = self._flight(numbers.values())
        messages, deferred = (self._count(table, list(numbers.values())) for table in ("{message}", "{deferred}"))
        waiting = {queue: max(count - len(flight.get(queue, ())), 0) for queue, count in messages.items()}
        sent = self._sent([queue for queue, count in waiting.items() if count], flight)
        return {
            slot: Depth(waiting.get(queue, 0), deferred.get(queue, 0), len(flight.get(queue, ())), sent.get(queue))
            for slot, queue in numbers.items()
        }

    def _count(self, table: str, queues: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for some in chunks(queues):
            statement = f"SELECT queue, COUNT(*) FROM {table} WHERE queue IN {marks(len(some))} GROUP BY queue"
            found |= {queue: int(count) for queue, count in self._database.rows(statement, some)}
        return found

    def _flight(self, queues: Iterable[int]) -> dict[int, set[Place]]:
        fences = read_fences(self._database, self._database.dialect, queues)
        records = read_records(self._database, {fence.incarnation for fence in fences.values()})
        found = in_flight(self._database, self._database, fences, records)
        return {queue: {(queue, one.priority, one.id) for one in some} for queue, some in found.items()}

    def _sent(self, queues: Sequence[int], flight: Mapping[int, set[Place]]) -> dict[int, float | None]:
        """Return when the next message of each of these queues was sent."""
        nexts = [place for queue in queues if (place := self._next(queue, flight.get(queue, set()))) is not None]
        found: dict[int, float | None] = {}
        for some in chunks(nexts):
            where, said = at_places(some, "t")
            statement = f"SELECT t.queue, t.body FROM {{message}} t WHERE ({where}) AND LENGTH(t.body) <= %s"
            found |= {queue: sent_at(as_bytes(body)) for queue, body in self._database.rows(statement, [*said, SMALL])}
        return found

    def _next(self, queue: int, flight: set[Place]) -> Place | None:
        """Return the first message of a queue that is not in flight."""
        statement = "SELECT priority, id FROM {message} WHERE queue = %s ORDER BY priority, id LIMIT %s"
        rows = self._database.rows(statement, [queue, len(flight) + 1])
        return next((place for row in rows if (place := (queue, row[0], row[1])) not in flight), None)
