"""The job records that a server in this process keeps for one keyspace, and their changes.

The verbs are in `memory_jobs`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import STOPPED, DispatchOutcome, JobRecord, JobState, NewJob, Note, Report, RunResult


@dataclass(slots=True)
class Dispatch:
    """What is kept of a dispatch, beside its record."""

    job: NewJob
    outcome_ttl: float
    outcome: DispatchOutcome | None = None
    until: float = math.inf
    """Until when the outcome is kept, by the monotonic clock."""


@dataclass(slots=True)
class SlotRecords:
    """The records of one slot, or of the place of a key."""

    epoch: int = 0
    revision: int = 0
    ids: dict[tuple[str, str], str] = field(default_factory=dict)
    """(name, key) -> id."""
    notes: list[Note] = field(default_factory=list)

    def drop_notes(self) -> None:
        """Drop the notes of jobs that are gone."""
        self.notes = [note for note in self.notes if (note.name, note.key) in self.ids]


@dataclass(slots=True)
class Keyspace:
    """Everything that a server stores for one keyspace."""

    clock: Callable[[], float]
    """Returns seconds since the Unix epoch."""
    records: dict[str, JobRecord] = field(default_factory=dict)
    """By id."""
    slots: dict[Slot, SlotRecords] = field(default_factory=dict)
    places_revision: int = 0
    """The highest revision that any key's place ever had."""
    dispatches: dict[str, Dispatch] = field(default_factory=dict)
    """By id."""
    ticks: dict[str, int] = field(default_factory=dict)
    closed: bool = False

    def at(self, slot: Slot) -> SlotRecords:
        """Return what is stored for a slot; for a key's place without records nothing is kept."""
        written = self.slots.get(slot) or SlotRecords()
        return written if isinstance(slot, str) else self.slots.setdefault(slot, written)

    def revise(self, slot: Slot) -> int:
        """Give a slot the next revision. It is taken from the clock, so that it stays unique when records are lost."""
        written = self.at(slot)
        # All places of keys share one counter, because a forgotten place may come back.
        last = self.places_revision if isinstance(slot, str) else written.revision
        written.revision = max(last + 1, int(self.clock() * 1e6))
        if isinstance(slot, str):
            self.places_revision = written.revision
        return written.revision

    def forget_vacant(self, slot: Slot) -> None:
        """Forget the slot if it is the place of a key and has no records."""
        if isinstance(slot, str) and not self.at(slot).ids:
            self.slots.pop(slot, None)

    def find(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        """Return the record of this name and key."""
        job_id = self.at(slot).ids.get((name, key))
        return None if job_id is None else self.records[job_id]

    def add(self, job: NewJob, outcome_ttl: float) -> None:
        """Store a wanted job."""
        self.dispatches[job.id] = Dispatch(job, outcome_ttl)
        self.put(_queued(job, self.clock()))

    def put(self, record: JobRecord) -> None:
        """Store a record, replacing an older one with its id."""
        written = self.slots.setdefault(record.slot, SlotRecords())
        self.records[record.id] = replace(record, version=self.revise(record.slot))
        written.ids[record.name, record.key] = record.id

    def tell(self, job_id: str, error: str, ttl: float | None = None) -> None:
        """Store the outcome of a dispatched job's start."""
        dispatch = self.dispatches[job_id]
        dispatch.outcome = DispatchOutcome(error)
        dispatch.until = time.monotonic() + (dispatch.outcome_ttl if ttl is None else ttl)

    def remove(self, record: JobRecord, error: str, ttl: float | None = None) -> None:
        """Remove a record, with this outcome if it is fresh. Call `SlotRecords.drop_notes` and `forget_vacant` next."""
        if record.fresh:
            self.tell(record.id, error, ttl)
        del self.records[record.id], self.at(record.slot).ids[record.name, record.key]
        self.revise(record.slot)

    def stop(self, record: JobRecord) -> None:
        """Mark a job as no longer wanted, or remove it if it has not begun."""
        if record.state is JobState.QUEUED:
            self.remove(record, STOPPED)
            self.at(record.slot).drop_notes()
        elif record.state is not JobState.STOPPING:
            self.put(replace(record, state=JobState.STOPPING))

    def settle(self, record: JobRecord, report: Report, ttl: float) -> None:
        """Store the result of one run."""
        if report.result is RunResult.STARTED:
            if record.fresh:
                self.tell(record.id, "", ttl)
            state = JobState.STOPPING if record.state is JobState.STOPPING else JobState.RUNNING
            self.put(replace(record, state=state, fresh=False, error=""))
        elif report.result is RunResult.ENDED or record.fresh or record.state is JobState.STOPPING:
            self.remove(record, report.error, ttl)
        else:
            self.put(replace(record, state=JobState.FAILING, error=report.error))

    def forget(self) -> None:
        """Forget the dispatches whose record is gone and whose outcome has expired."""
        now = time.monotonic()
        for job_id in [i for i, d in self.dispatches.items() if d.until <= now and i not in self.records]:
            del self.dispatches[job_id]


def _queued(job: NewJob, now: float) -> JobRecord:
    return JobRecord(
        name=job.name,
        key=job.key,
        slot=job.slot,
        id=job.id,
        payload=job.payload,
        state=JobState.QUEUED,
        fresh=True,
        attempt=0,
        epoch=0,
        worker="",
        error="",
        created=now,
        version=0,
    )
