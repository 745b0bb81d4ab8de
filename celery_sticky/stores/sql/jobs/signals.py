"""The signals of jobs: the slots that were signalled since the last look."""

from __future__ import annotations

import time

from celery_sticky.slots import Slot
from celery_sticky.sql import Database
from celery_sticky.stores.sql.jobs.rows import slot_of

OVERLAP = 5.0
"""Seconds by which looks overlap: transactions that take longer than this are not heard, only seen by a poll."""


class JobSignals:
    """Looks at one keyspace. Times are those of the database; only durations are measured here."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope
        self._look = (
            "SELECT slot, signalled FROM {job_slot} WHERE scope = %s "
            f"AND signalled > (SELECT {database.dialect.clock}) - %s"
        )
        self._looked: float | None = None
        """When it was last looked, on the monotonic clock."""
        self._heard: dict[Slot, float] = {}
        """The signals that the last look has found."""

    def look(self) -> list[Slot]:
        """Return the slots that were signalled since the last look."""
        now = time.monotonic()
        passed = 0.0 if self._looked is None else now - self._looked
        rows = self._database.rows(self._look, [self._scope, passed + OVERLAP])
        found = {slot_of(name): float(signalled) for name, signalled in rows}
        new = [slot for slot, signalled in found.items() if self._heard.get(slot) != signalled]
        self._looked, self._heard = now, found
        return new
