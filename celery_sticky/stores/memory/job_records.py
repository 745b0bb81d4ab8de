"""The job records that a server in this process keeps for one keyspace, and their changes.

The verbs are in `memory_jobs`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.jobs import (
    REPEATED,
    SEEN_NOTES,
    STOPPED,
    UNWANTED,
    Checkpoint,
    DispatchOutcome,
    JobCounts,
    JobGroup,
    JobRecord,
    JobState,
    NewJob,
    Report,
    RunResult,
    SlotJobs,
)
from celery_sticky.stores.memory.dead_notes import MemoryDeadNotes
from celery_sticky.stores.notes import FailedDelivery, Note
from celery_sticky.stores.ticks import Tick


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
    saved_at: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Id -> attempt and number of the last checkpoint."""
    stop_errors: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Id -> the error that its stop raised, and until when it is kept, by the monotonic clock."""
    ticks: dict[str, int] = field(default_factory=dict)
    """Ticker -> start of the last claimed period, in milliseconds since the Unix epoch."""
    closed: bool = False
    dead: MemoryDeadNotes = field(default_factory=MemoryDeadNotes)

    def at(self, slot: Slot) -> SlotRecords:
        """Return what is stored for a slot; for a key's place without records nothing is kept."""
        written = self.slots.get(slot) or SlotRecords()
        return written if isinstance(slot, KeyPlace) else self.slots.setdefault(slot, written)

    def revise(self, slot: Slot) -> int:
        """Give a slot the next revision. It is taken from the clock, so that it stays unique when records are lost."""
        written = self.at(slot)
        # All places of keys share one counter, because a forgotten place may come back.
        last = self.places_revision if isinstance(slot, KeyPlace) else written.revision
        written.revision = max(last + 1, int(self.clock() * 1e6))
        if isinstance(slot, KeyPlace):
            self.places_revision = written.revision
        return written.revision

    def forget_vacant(self, slot: Slot) -> None:
        """Forget the slot if it is the place of a key and has no records."""
        if isinstance(slot, KeyPlace) and not self.at(slot).ids:
            self.slots.pop(slot, None)

    def find(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        """Return the record of this name and key."""
        job_id = self.at(slot).ids.get((name, key))
        return None if job_id is None else self.records[job_id]

    def add(self, job: NewJob, outcome_ttl: float, old: JobRecord | None) -> None:
        """Store a wanted job; `old` is the record that it replaces."""
        self.dispatches[job.id] = Dispatch(job, outcome_ttl)
        record = _queued(job, self.clock())
        self.put(replace(record, epoch=old.epoch, worker=old.worker) if old is not None else record)

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
        self.saved_at.pop(record.id, None)
        del self.records[record.id], self.at(record.slot).ids[record.name, record.key]
        self.revise(record.slot)

    def stop(self, record: JobRecord) -> None:
        """Mark a job as no longer wanted, or remove it if it has not begun."""
        waits = record.state in (JobState.QUEUED, JobState.PAUSED) and not record.epoch
        if waits or record.state is JobState.FAILED:
            self.remove(record, STOPPED)
            self.at(record.slot).drop_notes()
        elif record.state is not JobState.STOPPING:
            self.put(replace(record, state=JobState.STOPPING))

    def update(self, record: JobRecord, payload: bytes | None, *, restart: bool) -> JobRecord:
        """Return the record of a job with another payload, perhaps of the next generation."""
        payload = record.payload if payload is None else payload
        if restart and record.state is JobState.FAILED:
            record = replace(record, state=JobState.QUEUED, error="", failures=0, epoch=0, worker="")
        return replace(record, payload=payload, generation=record.generation + restart)

    def pause(self, record: JobRecord) -> JobRecord:
        """Return the record of a job that is to be paused."""
        if record.state is JobState.QUEUED and not record.epoch:
            return replace(record, state=JobState.PAUSED)
        return record if record.state is JobState.PAUSED else replace(record, state=JobState.PAUSING)

    def resume(self, record: JobRecord) -> JobRecord:
        """Return the record of a job that is to start again."""
        if record.state is JobState.PAUSING:
            return replace(record, state=JobState.QUEUED, generation=record.generation + 1)
        return replace(record, state=JobState.QUEUED) if record.state is JobState.PAUSED else record

    def save(self, record: JobRecord, checkpoint: Checkpoint) -> None:
        """Store a checkpoint, unless there is a later one."""
        at = checkpoint.attempt, checkpoint.number
        if at > self.saved_at.get(record.id, (0, 0)):
            self.saved_at[record.id] = at
            self.records[record.id] = replace(record, saved=checkpoint.saved)

    def keep_stop_error(self, report: Report, ttl: float) -> None:
        """Keep the error of a stop for those who wait for the end of the job."""
        if report.result is RunResult.UNCLEAN and report.error:
            self.stop_errors[report.id] = report.error, time.monotonic() + ttl

    def settle(self, record: JobRecord, report: Report, ttl: float) -> None:
        """Store the result of one run."""
        match report.result:
            case RunResult.WITHDRAWN:
                if record.fresh and record.attempt:
                    state = _unless_unwanted(record, JobState.QUEUED)
                    self.put(replace(record, state=state, attempt=record.attempt - 1, epoch=0, worker=""))
            case RunResult.STARTED:
                if record.fresh:
                    self.tell(record.id, "", ttl)
                self.put(replace(record, state=_unless_unwanted(record, JobState.RUNNING), fresh=False))
            case RunResult.SETTLED:
                self.put(replace(record, error="", failures=0, apart=False))
            case RunResult.PAUSED:
                if record.state is JobState.PAUSING:
                    self.put(replace(record, state=JobState.PAUSED, epoch=0, worker=""))
            case RunResult.FAILED | RunResult.GIVEN_UP if _stays(record):
                if record.fresh:
                    self.tell(record.id, report.error, ttl)
                self.put(_failed(record, report, self.clock()))
            case _:
                self.remove(record, report.error, ttl)

    def fail_deliveries(self, slot: Slot, failed: Sequence[FailedDelivery]) -> None:
        """Count failed deliveries of a slot's notes, and bury those that are dead."""
        written, by_id = self.at(slot), {one.note: one for one in failed}
        kept = []
        for note in written.notes:
            one = by_id.get(note.id)
            if one is not None and one.dead:
                job_id = written.ids[note.name, note.key]
                self.dead.add(note, slot, job_id, one, self.clock())
            else:
                kept.append(note if one is None else replace(note, failed=max(note.failed, one.delivery)))
        if kept != written.notes:
            written.notes = kept
            self.revise(slot)

    def counts(self) -> JobCounts:
        """See `JobStore.counts`."""
        groups: dict[object, JobGroup] = {}
        for record in self.records.values():
            slot, epoch = (record.slot, record.epoch) if isinstance(record.slot, int) else (None, 0)
            said = (slot, record.state, record.worker, epoch, min(record.failures, REPEATED), record.apart)
            one = groups.setdefault(said, JobGroup(0, *said, record.name, record.key))
            groups[said] = replace(one, count=one.count + 1)
        return JobCounts(tuple(groups.values()), len(self.dead.notes))

    def forget_places(self) -> int:
        """Remove every record of a key's place; return their number."""
        found = [record for record in self.records.values() if isinstance(record.slot, KeyPlace)]
        for record in found:
            self.remove(record, STOPPED)
            self.forget_vacant(record.slot)
        return len(found)

    def claim_tick(self, name: str, every: int) -> Tick:
        """Claim the current period of a ticker; `every` is its length in milliseconds."""
        now = int(self.clock() * 1000)
        begins, last = now - now % every, self.ticks.get(name)
        future = last is not None and last > now
        if new := last is None or last < begins or future:
            self.ticks[name] = begins
        return Tick(new and not future, (begins + every - now) / 1000)

    def forget(self) -> None:
        """Forget the dispatches whose record is gone and whose outcome has expired, and the old errors of stops."""
        now = time.monotonic()
        self.stop_errors = {job_id: kept for job_id, kept in self.stop_errors.items() if kept[1] > now}
        for job_id in [i for i, d in self.dispatches.items() if d.until <= now and i not in self.records]:
            del self.dispatches[job_id]


def _unless_unwanted(record: JobRecord, state: JobState) -> JobState:
    return record.state if record.state in UNWANTED else state


def _stays(record: JobRecord) -> bool:
    """Return whether a record stays if its job fails."""
    return record.state is not JobState.STOPPING and (record.durable or not record.fresh)


def _failed(record: JobRecord, report: Report, now: float) -> JobRecord:
    given_up = report.result is RunResult.GIVEN_UP
    return replace(
        record,
        state=_unless_unwanted(record, JobState.FAILED if given_up else JobState.FAILING),
        fresh=False,
        error=report.error,
        failures=report.failures,
        strikes=report.strikes,
        apart=report.apart,
        retry_at=now + report.pause,
    )


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
        durable=job.durable,
    )


def seen(space: Keyspace, written: SlotRecords) -> SlotJobs:
    """Return what is stored for a slot, as `JobStore.look` does."""
    records = tuple(space.records[job_id] for job_id in written.ids.values())
    count = Counter((note.name, note.key) for note in written.notes)
    share, found, notes = max(1, SEEN_NOTES // max(1, len(count))), Counter[tuple[str, str]](), []
    for note in written.notes:
        found[note.name, note.key] += 1
        if found[note.name, note.key] <= share:
            notes.append(note)
    return SlotJobs(written.revision, records, tuple(notes), len(notes) < len(written.notes))
