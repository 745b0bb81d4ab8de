"""Burying notes, and the limits of what is buried. A transaction that buries has locked the common row of places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from celery_sticky.sql.text import chunks
from celery_sticky.stores.jobs import JobRecord
from celery_sticky.stores.notes import MAX_DEAD, MAX_DEAD_BYTES, FailedDelivery
from celery_sticky.stores.sql.jobs.changes import Changes
from celery_sticky.stores.sql.jobs.rows import slot_name

BURY = """INSERT INTO {{job_dead}} (scope, slot, name, job_key, job, deliveries, error, died, size, payload)
    SELECT w.scope, d.slot, d.name, d.job_key, w.job, d.deliveries, d.error, d.died, LENGTH(w.payload), w.payload
    FROM {table} JOIN {{job_note}} w ON w.scope = d.scope AND w.job = d.job AND w.revision = d.revision ORDER BY d.n"""
GIVEN = (
    *("n", "scope name", "job key", "revision", "slot slot", "name name", "job_key key"),
    *("deliveries", "error bytes", "died double"),
)


class Death(NamedTuple):
    """A note that dies."""

    revision: int
    """See `notes.NoteKey`."""
    record: JobRecord
    """Its job."""
    failed: FailedDelivery


def bury(changes: Changes, deaths: Sequence[Death]) -> None:
    """Add dead notes, whose waiting ones are still there, and drop the oldest ones beyond the limits."""
    scope, now = changes.scope, changes.slots.now if deaths else 0.0
    rows: list[tuple[object, ...]] = []
    for number, (revision, job, one) in enumerate(deaths):
        place = slot_name(job.slot), job.name.encode(), job.key.encode()
        rows.append((number, scope, job.id.encode(), revision, *place, one.delivery, one.error.encode(), now))
    for some in chunks(rows):
        table, said = changes.dialect.table("d", GIVEN, some)
        changes.inside.run(BURY.format(table=table), said)
    if rows:
        _trim(changes)


def _trim(changes: Changes) -> None:
    statement = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM {job_dead} WHERE scope = %s"
    [(count, size)] = changes.inside.rows(statement, [changes.scope])
    if count <= MAX_DEAD and size <= MAX_DEAD_BYTES:
        return
    surplus: list[tuple[int]] = []
    statement = "SELECT id, size FROM {job_dead} WHERE scope = %s ORDER BY id"
    for number, its_size in changes.inside.rows(statement, [changes.scope]):
        if count <= MAX_DEAD and size <= MAX_DEAD_BYTES:
            break
        surplus.append((number,))
        count, size = count - 1, size - its_size
    for some in chunks(surplus):
        # By the id alone: SQLite 3.40 finds no row by two values of an index of which one is the rowid.
        changes.inside.run(*changes.dialect.delete("{job_dead}", ("id",), some))
