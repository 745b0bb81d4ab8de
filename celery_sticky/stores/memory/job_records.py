"""What a server in this process has written down of the jobs of one keyspace, and what becomes of a record.

The verbs are in `memory_jobs`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import STOPPED, DispatchOutcome, JobRecord, JobState, NewJob, Note, Report, RunResult


@dataclass(slots=True)
class Dispatch:
    """What is remembered of a dispatch, beside its record."""

    job: NewJob
    outcome_ttl: float
    outcome: DispatchOutcome | None = None
    until: float = math.inf
    """How long the outcome is kept, by the monotonic clock."""


@dataclass(slots=True)
class SlotRecords:
    """One slot of a keyspace, or the place of a key."""

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
    """What a server has written down for one keyspace."""

    records: dict[str, JobRecord] = field(default_factory=dict)
    """By id."""
    slots: dict[Slot, SlotRecords] = field(default_factory=dict)
    places_revision: int = 0
    """The highest revision of a key's place there ever was."""
    dispatches: dict[str, Dispatch] = field(default_factory=dict)
    """By id."""
    ticks: dict[str, int] = field(default_factory=dict)
    closed: bool = False
    noted: int = 0
    """Notes so far."""

    def at(self, slot: Slot) -> SlotRecords:
        """Return what is written down for a slot; that of a key's place without records is not kept."""
        written = self.slots.get(slot) or SlotRecords()
        return written if isinstance(slot, str) else self.slots.setdefault(slot, written)

    def revise(self, slot: Slot) -> int:
        """Give a slot the next revision: the clock's, so that none comes twice where records were lost."""
        written = self.at(slot)
        # One counter for the places of keys: one that was forgotten may come again.
        last = self.places_revision if isinstance(slot, str) else written.revision
        written.revision = max(last + 1, time.time_ns() // 1000)
        if isinstance(slot, str):
            self.places_revision = written.revision
        return written.revision

    def forget_vacant(self, slot: Slot) -> None:
        """Forget this if it is the place of a key, and has no records."""
        if isinstance(slot, str) and not self.at(slot).ids:
            self.slots.pop(slot, None)

    def find(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        """Return the record of this name and key."""
        job_id = self.at(slot).ids.get((name, key))
        return None if job_id is None else self.records[job_id]

    def add(self, job: NewJob, outcome_ttl: float) -> None:
        """Write down a wanted job."""
        self.dispatches[job.id] = Dispatch(job, outcome_ttl)
        self.put(_queued(job))

    def put(self, record: JobRecord) -> None:
        """Write a record down, in the place of an older one of its id."""
        written = self.slots.setdefault(record.slot, SlotRecords())
        self.records[record.id] = replace(record, version=self.revise(record.slot))
        written.ids[record.name, record.key] = record.id

    def tell(self, job_id: str, error: str, ttl: float | None = None) -> None:
        """Write down how the start of a dispatched job went."""
        dispatch = self.dispatches[job_id]
        dispatch.outcome = DispatchOutcome(error)
        dispatch.until = time.monotonic() + (dispatch.outcome_ttl if ttl is None else ttl)

    def remove(self, record: JobRecord, error: str, ttl: float | None = None) -> None:
        """Let a record go: with this outcome if it is fresh. Then `SlotRecords.drop_notes`, `forget_vacant`."""
        if record.fresh:
            self.tell(record.id, error, ttl)
        del self.records[record.id], self.at(record.slot).ids[record.name, record.key]
        self.revise(record.slot)

    def stop(self, record: JobRecord) -> None:
        """Want a job no more."""
        if record.state is JobState.QUEUED:
            self.remove(record, STOPPED)
            self.at(record.slot).drop_notes()
        elif record.state is not JobState.STOPPING:
            self.put(replace(record, state=JobState.STOPPING))

    def settle(self, record: JobRecord, report: Report, ttl: float) -> None:
        """Write down what became of one run."""
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
        """Forget the dispatches whose record is gone and whose outcome need not be kept."""
        now = time.monotonic()
        for job_id in [i for i, d in self.dispatches.items() if d.until <= now and i not in self.records]:
            del self.dispatches[job_id]


def _queued(job: NewJob) -> JobRecord:
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
        created=time.time(),
        version=0,
    )
