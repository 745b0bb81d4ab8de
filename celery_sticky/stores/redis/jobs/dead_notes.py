"""The dead notes of a keyspace in Redis: the part of the job store that is about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from celery_sticky.slots import Slot, parse_slot
from celery_sticky.stores.notes import MAX_DEAD, DeadNote, Fate
from celery_sticky.stores.redis.client import Client

VERBS = ("dead_notes", "requeue_note", "drop_note")


class RedisDeadNotes(Client[Slot]):
    """See `celery_sticky.stores.notes.DeadNoteStore`."""

    def dead_notes(self, *, after: str = "", limit: int = MAX_DEAD) -> Sequence[DeadNote]:
        """See `DeadNoteStore.dead_notes`."""
        if after and not _is_entry(after):
            return []
        return [_dead(*found) for found in self._ask("dead_notes", f"({after}" if after else "-", "+", limit, 0)]

    def dead_note(self, dead_id: str) -> DeadNote | None:
        """See `DeadNoteStore.dead_note`."""
        found = self._ask("dead_notes", dead_id, dead_id, 1, 1) if _is_entry(dead_id) else ()
        return _dead(*found[0]) if found else None

    def requeue_note(self, dead_id: str, *, limit: int) -> Fate:
        """See `DeadNoteStore.requeue_note`."""
        if not _is_entry(dead_id):
            return Fate.GONE
        return Fate(self._ask("requeue_note", self._channel, dead_id, limit).decode())

    def drop_note(self, dead_id: str) -> bool:
        """See `DeadNoteStore.drop_note`."""
        return _is_entry(dead_id) and self._ask("drop_note", dead_id) == 1

    def _ask(self, verb: str, *args: Any) -> Any:
        raise NotImplementedError


def _is_entry(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,18}-[0-9]{1,18}", text, re.ASCII) is not None


def _dead(entry: bytes, fields: Sequence[bytes], payload: bytes | None) -> DeadNote:
    name, key, slot, job_id, deliveries, error, size = fields[1::2]
    where = parse_slot(slot.decode())
    assert where is not None
    return DeadNote(
        id=entry.decode(),
        name=name.decode(),
        key=key.decode(),
        slot=where,
        job_id=job_id.decode(),
        deliveries=int(deliveries),
        error=error.decode(),
        died=int(entry.partition(b"-")[0]) / 1000,
        size=int(size),
        payload=payload,
    )
