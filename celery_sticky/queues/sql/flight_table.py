"""The table `flight`: what is in flight in a slot, and which records nobody needs any more."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from celery_sticky.errors import SlotBroken
from celery_sticky.queues.sql.fences import Fence, read_fences
from celery_sticky.queues.sql.flights import Entry, entries
from celery_sticky.sql import Database, Runner
from celery_sticky.sql.text import Place, as_bytes, chunks, marks

logger = logging.getLogger("celery_sticky.courier")

RecordKey = tuple[bytes, bytes]
"""Incarnation and name of a flight record."""
Records = dict[RecordKey, list[Entry]]


def read_records(runner: Runner, incarnations: Iterable[bytes]) -> Records:
    """Return the flight records of incarnations. One that cannot be read is the same as one that is lost."""
    found: Records = {}
    for some in chunks(sorted(set(incarnations))):
        statement = f"SELECT incarnation, trip, data FROM {{flight}} WHERE incarnation IN {marks(len(some))}"
        for incarnation, trip, data in runner.rows(statement, some):
            found[bytes(incarnation), bytes(trip)] = _entries(incarnation, trip, as_bytes(data))
    return found


def _entries(incarnation: bytes, trip: bytes, data: bytes) -> list[Entry]:
    try:
        return list(entries(data))
    except (ValueError, TypeError, IndexError) as error:
        logger.error(
            "table flight, row (%r, %r) cannot be read (%s): the messages that it named are in their queues, and come "
            "again; their starts so far are not counted",
            *(bytes(incarnation).decode(errors="replace"), bytes(trip).decode(errors="replace"), error),
        )
        return []


def in_flight(
    runner: Runner, database: Database, fences: Mapping[int, Fence], records: Records
) -> dict[int, list[Entry]]:
    """Return the deliveries in flight of these queues, whose messages are still there."""
    named = [
        entry
        for (incarnation, _), some in records.items()
        for entry in some
        if _is_live(fences.get(entry.queue), incarnation, entry)
    ]
    there = existing(runner, database, [(entry.queue, entry.priority, entry.id) for entry in named])
    found: dict[int, list[Entry]] = defaultdict(list)
    for entry in named:
        if (entry.queue, entry.priority, entry.id) in there:
            found[entry.queue].append(entry)
    return found


def existing(runner: Runner, database: Database, places: Sequence[Place]) -> set[Place]:
    """Return those of the messages that are still there."""
    found: set[Place] = set()
    for some in chunks(places):
        table, said = database.dialect.table("w", ("queue", "priority", "id"), some)
        statement = (
            f"SELECT m.queue, m.priority, m.id FROM {table} "
            "JOIN {message} m ON m.queue = w.queue AND m.priority = w.priority AND m.id = w.id"
        )
        found |= {(row[0], row[1], row[2]) for row in runner.rows(statement, said)}
    return found


def clean(database: Database, records: Records) -> None:
    """Delete those of the records of which no entry counts any more; once that is so, it stays so."""
    try:
        fences = read_fences(database, database.dialect, {entry.queue for some in records.values() for entry in some})
    except SlotBroken:
        return  # not ours to say whose records they are
    for (incarnation, trip), some in records.items():
        if not any(_is_live(fences.get(entry.queue), incarnation, entry) for entry in some):
            database.run("DELETE FROM {flight} WHERE incarnation = %s AND trip = %s", [incarnation, trip])


def _is_live(fence: Fence | None, incarnation: bytes, entry: Entry) -> bool:
    return fence is not None and (fence.opening, fence.incarnation) == (entry.opening, incarnation)
