"""Notifications in a job store: those that wait for their job, and the dead ones, which their job could not handle.

A dead note stays until somebody drops it or puts it back, also when its job is gone. A keyspace keeps at most
`MAX_DEAD` of them, with payloads of at most `MAX_DEAD_BYTES` in total; the oldest are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from celery_sticky.slots import Slot

MAX_DEAD = 1000
"""Maximum number of dead notes in a keyspace."""
MAX_DEAD_BYTES = 32 * 1024 * 1024
"""Maximum total size of the payloads of a keyspace's dead notes, in bytes."""


class Fate(StrEnum):
    """The result of a notification."""

    SENT = "sent"
    NO_JOB = "no job"
    FULL = "full"
    GONE = "gone"
    """There is no such dead note any more."""


@dataclass(frozen=True, slots=True)
class Note:
    """A notification that waits for its job."""

    id: str
    """Assigned by the store; unique in this slot."""
    name: str
    key: str
    payload: bytes
    failed: int = 0
    """The number of its deliveries that failed."""


@dataclass(frozen=True, slots=True)
class FailedDelivery:
    """A note that its job did not handle."""

    note: str
    """The id of the note."""
    delivery: int
    """The number of the delivery, from 1. Reporting one again changes nothing."""
    error: str
    dead: bool
    """It was the last delivery: the note is dead."""


@dataclass(frozen=True, slots=True)
class DeadNote:
    """A note that is not delivered any more."""

    id: str
    """Assigned by the store; unique in this keyspace."""
    name: str
    key: str
    slot: Slot
    job_id: str
    """The dispatch of the job that could not handle it."""
    deliveries: int
    error: str
    """Why the last delivery failed."""
    died: float
    """When it died, in seconds since the Unix epoch, by the store's clock."""
    size: int
    """The size of its payload in bytes."""
    payload: bytes | None = None
    """None in a list."""


class DeadNoteStore(Protocol):
    """The verbs of a job store for the dead notes of its keyspace."""

    def dead_notes(self, *, after: str = "", limit: int = MAX_DEAD) -> Sequence[DeadNote]:
        """Return at most `limit` dead notes, oldest first, without payloads: those after the one with this id."""

    def dead_note(self, dead_id: str) -> DeadNote | None:
        """Return a dead note with its payload."""

    def requeue_note(self, dead_id: str, *, limit: int) -> Fate:
        """Put a dead note behind the other notes of the job that has its name and key now, as if it were new.

        FULL: `limit` notes already wait for this job. NO_JOB: as for `JobStore.notify`. Then the note stays dead.
        """

    def drop_note(self, dead_id: str) -> bool:
        """Delete a dead note; return False if there is no such note."""
