"""The dead notes that a server in this process keeps for one keyspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from celery_sticky.slots import Slot
from celery_sticky.stores.notes import MAX_DEAD, MAX_DEAD_BYTES, DeadNote, FailedDelivery, Note


@dataclass(slots=True)
class MemoryDeadNotes:
    """Dead notes, oldest first."""

    notes: dict[str, DeadNote] = field(default_factory=dict)
    """By id."""
    last: int = 0
    """The number in the newest id."""

    def add(self, note: Note, slot: Slot, job_id: str, failed: FailedDelivery, now: float) -> None:
        """Add a note, and drop the oldest ones beyond the limits."""
        self.last += 1
        dead_id, size = f"{self.last:016d}", len(note.payload)
        self.notes[dead_id] = DeadNote(
            dead_id, note.name, note.key, slot, job_id, failed.delivery, failed.error, now, size, note.payload
        )
        while len(self.notes) > MAX_DEAD or sum(note.size for note in self.notes.values()) > MAX_DEAD_BYTES:
            del self.notes[next(iter(self.notes))]

    def page(self, after: str, limit: int) -> Sequence[DeadNote]:
        """See `DeadNoteStore.dead_notes`."""
        return [replace(note, payload=None) for dead_id, note in self.notes.items() if dead_id > after][:limit]

    def find(self, dead_id: str) -> DeadNote | None:
        """See `DeadNoteStore.dead_note`."""
        return self.notes.get(dead_id)

    def drop(self, dead_id: str) -> bool:
        """See `DeadNoteStore.drop_note`."""
        return self.notes.pop(dead_id, None) is not None
