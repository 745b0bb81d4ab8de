"""A trip as short statements that MySQL, MariaDB and SQLite understand, in a transaction that holds the fences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from celery_sticky.queues.sql.flights import Fetch, record
from celery_sticky.queues.sql.ranges import ORDER, crowded, within
from celery_sticky.queues.sql.trip import BUDGET, MESSAGE_COST, Found, Haul, Trip
from celery_sticky.sql import Database, Transaction
from celery_sticky.sql.dialects.base import joined
from celery_sticky.sql.text import Place, as_bytes, chunks

Key = tuple[int, int, int, int]
"""Turn, priority, id, and bytes of the body."""


class Portable:
    """See `Carrier`."""

    alone = False

    def __init__(self, database: Database) -> None:
        self._database = database

    def carry(self, trip: Trip, inside: Transaction | None) -> Haul:
        """See `Carrier.carry`; the caller has locked the fences."""
        assert inside is not None
        self._delete(trip, inside)
        keys = self._keys(trip, inside)
        late = self._late(trip, inside)  # after the keys: what was committed before one of them is seen now
        limits = [0 if turn in late else wanted.limit for turn, wanted in enumerate(trip.wanted)]
        taken = _chosen(keys, limits)
        bodies = self._bodies(inside, [_place(trip, key) for key in taken])
        if bodies:
            self._record(trip, inside, [key for key in taken if _place(trip, key) in bodies])
        found = [Found(*key[:3], bodies.get(_place(trip, key))) for key in keys]
        return Haul({slot.queue for slot in trip.slots}, found, late)

    def _delete(self, trip: Trip, inside: Transaction) -> None:
        dialect = self._database.dialect
        for places in chunks(sorted(trip.places)):
            inside.run(*dialect.delete("{message}", ("queue", "priority", "id"), places))
        for names in chunks([(trip.incarnation, name.encode()) for name in trip.ended]):
            inside.run(*dialect.delete("{flight}", ("incarnation name", "trip name"), names))

    def _keys(self, trip: Trip, inside: Transaction) -> list[Key]:
        """Return the first messages of each want and one more, in order."""
        found: list[Key] = []
        parts = [(turn, trip.wanted[turn], part) for turn, part in trip.ranges()]
        for some in chunks(parts):
            selects, said = list[str](), list[Any]()
            for number, (turn, (slot, limit), part) in enumerate(some):
                where, bounds = within(self._database.dialect, part)
                selects.append(
                    f"SELECT * FROM (SELECT %s AS turn, t.priority, t.id, LENGTH(t.body) AS size FROM {{message}} t "
                    f"WHERE t.queue = %s AND {where}{ORDER} LIMIT %s) AS r{number}"
                )
                said += (turn, slot.queue, *bounds, limit + 1)
            rows = inside.rows(" UNION ALL ".join(selects), said)
            found += [(row[0], row[1], row[2], row[3]) for row in rows]
        return sorted(found)

    def _late(self, trip: Trip, inside: Transaction) -> set[int]:
        """Return the turns with more messages below a cursor than are known."""
        if not self._database.dialect.overlaps:
            return set()
        windows = trip.windows(settled=True)
        turns = [turn for turn, _ in windows]
        return {turns[number] for number in crowded(inside, self._database.dialect, [one for _, one in windows])}

    def _bodies(self, inside: Transaction, places: Sequence[Place]) -> dict[Place, bytes]:
        found: dict[Place, bytes] = {}
        for some in chunks(places):
            # MySQL and MariaDB would read the whole queue for a list of ids, and look up each row of a table of keys.
            rows, said = joined(self._database.dialect, "{message}", ("queue", "priority", "id"), some)
            for *place, body in inside.rows(f"SELECT t.queue, t.priority, t.id, t.body FROM {rows}", said):
                queue, priority, number = place
                found[queue, priority, number] = as_bytes(body)
        return found

    def _record(self, trip: Trip, inside: Transaction, taken: Sequence[Key]) -> None:
        data = record(trip.groups, [Fetch(*key[:3]) for key in taken])
        statement = "INSERT INTO {flight} (incarnation, trip, data) VALUES (%s, %s, %s)"
        inside.run(statement, [trip.incarnation, trip.record.encode(), data])


def _place(trip: Trip, key: Key) -> Place:
    return trip.wanted[key[0]].slot.queue, key[1], key[2]


def _chosen(keys: Sequence[Key], limits: Sequence[int]) -> list[Key]:
    """Return the messages that fit into the limit of their want and into the budget of the trip."""
    taken, spent, counts = list[Key](), 0, Counter[int]()
    for key in keys:
        if counts[key[0]] >= limits[key[0]] or spent >= BUDGET:
            continue
        taken.append(key)
        counts[key[0]] += 1
        spent += key[3] + MESSAGE_COST
    return taken
