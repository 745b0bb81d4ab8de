"""The dead notes of a keyspace, as people see them."""

from __future__ import annotations

from collections.abc import Sequence

from celery_sticky.sql import Database
from celery_sticky.sql.link import Row
from celery_sticky.stores.notes import DeadNote, Fate
from celery_sticky.stores.sql.jobs.changes import changes_in
from celery_sticky.stores.sql.jobs.notes import Inboxes
from celery_sticky.stores.sql.jobs.rows import slot_of

COLUMNS = "id, name, job_key, slot, job, deliveries, error, died, size"


class DeadNotes:
    """See `celery_sticky.stores.notes.DeadNoteStore`."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope

    def page(self, after: str, limit: int) -> Sequence[DeadNote]:
        """See `DeadNoteStore.dead_notes`."""
        last = _number(after) if after else 0
        if last is None:
            return []
        statement = f"SELECT {COLUMNS} FROM {{job_dead}} WHERE scope = %s AND id > %s ORDER BY id LIMIT %s"
        return [_dead(row) for row in self._database.rows(statement, [self._scope, last, limit])]

    def read(self, dead_id: str) -> DeadNote | None:
        """See `DeadNoteStore.dead_note`."""
        statement = f"SELECT {COLUMNS}, payload FROM {{job_dead}} WHERE scope = %s AND id = %s"
        number = _number(dead_id)
        rows = self._database.rows(statement, [self._scope, number]) if number is not None else []
        return _dead(rows[0]) if rows else None

    def drop(self, dead_id: str) -> bool:
        """See `DeadNoteStore.drop_note`."""
        statement, number = "DELETE FROM {job_dead} WHERE scope = %s AND id = %s", _number(dead_id)
        return number is not None and self._database.run(statement, [self._scope, number]) == 1

    def requeue(self, dead_id: str, limit: int) -> Fate:
        """See `DeadNoteStore.requeue_note`."""
        number, found = _number(dead_id), list[Row]()
        one = [self._scope, number]
        if number is not None:
            statement = "SELECT slot, name, job_key FROM {job_dead} WHERE scope = %s AND id = %s"
            found = self._database.rows(statement, one)
        if not found:
            return Fate.GONE
        slot, name, key = slot_of(found[0][0]), bytes(found[0][1]).decode(), bytes(found[0][2]).decode()
        with changes_in(self._database, self._scope, [slot]) as changes:
            lock = f"SELECT t.id FROM {{job_dead}} t WHERE t.scope = %s AND t.id = %s{changes.dialect.update}"
            if not changes.inside.rows(lock, one):
                return Fate.GONE
            changes.read_addresses([(slot, name, key)])
            fate, job_id = Inboxes(changes, limit).room((slot, name, key))
            if fate is Fate.SENT:
                changes.inside.run(
                    "INSERT INTO {job_note} (scope, job, revision, failed, payload) "
                    "SELECT scope, %s, %s, 0, payload FROM {job_dead} WHERE scope = %s AND id = %s",
                    [job_id.encode(), changes.slots.revise(slot), *one],
                )
                changes.inside.run("DELETE FROM {job_dead} WHERE scope = %s AND id = %s", one)
                changes.slots.signal(slot)
            return fate


def _number(dead_id: str) -> int | None:
    """Return the number in the id of a dead note, or None if no dead note has this id."""
    number = int(dead_id) if dead_id.isascii() and dead_id.isdigit() and len(dead_id) < 19 else 0
    return number if str(number) == dead_id else None


def _dead(row: Row) -> DeadNote:
    number, name, key, slot, job_id, deliveries, error, died, size, *payload = row
    return DeadNote(
        id=str(number),
        name=bytes(name).decode(),
        key=bytes(key).decode(),
        slot=slot_of(slot),
        job_id=bytes(job_id).decode(),
        deliveries=deliveries,
        error=bytes(error).decode(),
        died=died,
        size=size,
        payload=bytes(payload[0]) if payload else None,
    )
