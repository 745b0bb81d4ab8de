"""The job store in this process: the reference for every driver, and a test double.

`MemoryJobServer` plays the server; `MemoryJobs` is a client of it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from celery_sticky.errors import Fenced
from celery_sticky.keys import Slot
from celery_sticky.stores.in_process import Client, Server
from celery_sticky.stores.jobs import (
    SEEN_NOTES,
    SEEN_RECORDS,
    STOPPED,
    Admission,
    DispatchOutcome,
    Fate,
    JobPlaces,
    JobRecord,
    JobState,
    NewJob,
    Note,
    Report,
    Reserved,
    SlotJobs,
)
from celery_sticky.stores.memory.job_records import Keyspace, SlotRecords

Keyspaces = defaultdict[str, Keyspace]


class MemoryJobServer(Server[Keyspaces, Slot]):
    """The state that the job stores of one process share."""

    def __init__(self) -> None:
        super().__init__(lambda: defaultdict(lambda: Keyspace(lambda: self.clock())))


_servers: dict[tuple[str, str], MemoryJobServer] = {}


def memory_job_server(name: str, prefix: str) -> MemoryJobServer:
    """Return the server of this name and key prefix in this process."""
    return _servers.setdefault((name, prefix), MemoryJobServer())  # one step, because several threads may ask at once


class MemoryJobs(Client[Keyspaces, Slot]):
    """A client of a `MemoryJobServer`, for one keyspace: see `celery_sticky.stores.jobs.JobStore`."""

    def admit(self, job: NewJob, *, max_queued: int, outcome_ttl: float) -> tuple[Admission, DispatchOutcome | None]:
        """See `JobStore.admit`."""
        with self._server.changed:
            space = self._space()
            if space.closed:
                return Admission.CLOSED, None
            space.forget()
            if (known := space.dispatches.get(job.id)) is not None:
                same = replace(known.job, slot=job.slot) == job  # the slot only follows from the key
                return (Admission.REPEATED, known.outcome) if same else (Admission.CONFLICT, None)
            old = space.find(job.slot, job.name, job.key)
            if old is not None and old.state is not JobState.STOPPING:
                return Admission.EXISTS, None
            if sum(record.fresh for record in space.records.values()) >= max_queued:
                return Admission.FULL, None
            if old is not None:
                space.remove(old, STOPPED)
                space.at(job.slot).drop_notes()
            space.add(job, outcome_ttl)
            self._server.signal(self._keyspace, job.slot)
            return Admission.ADMITTED, None

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """See `JobStore.outcome`."""

        def known() -> DispatchOutcome | None:
            dispatch = self._space().dispatches.get(job_id)
            return dispatch.outcome if dispatch is not None and dispatch.until > time.monotonic() else None

        with self._server.changed:
            return self._server.changed.wait_for(known, timeout)

    def stop(self, slot: Slot, name: str, key: str) -> bool:
        """See `JobStore.stop`."""
        with self._server.changed:
            space = self._space()
            record = space.find(slot, name, key)
            if record is None:
                return False
            space.stop(record)
            space.forget_vacant(slot)
            self._server.signal(self._keyspace, slot)
            return True

    def notify(self, slot: Slot, name: str, key: str, payload: bytes, *, limit: int) -> Fate:
        """See `JobStore.notify`."""
        with self._server.changed:
            space = self._space()
            record = space.find(slot, name, key)
            if record is None or record.state is JobState.STOPPING:
                return Fate.NO_JOB
            written = space.at(slot)
            if len([note for note in written.notes if (note.name, note.key) == (name, key)]) >= limit:
                return Fate.FULL
            written.notes.append(Note(f"{space.revise(slot):016d}", name, key, payload))
            self._server.signal(self._keyspace, slot)
            return Fate.SENT

    def records(self, name: str | None = None, key: str | None = None, slot: Slot | None = None) -> Sequence[JobRecord]:
        """See `JobStore.records`."""
        with self._server.changed:
            return [
                record
                for record in self._space().records.values()
                if name in (None, record.name) and key in (None, record.key) and slot in (None, record.slot)
            ]

    def keys(self, name: str) -> Collection[str]:
        """See `JobStore.keys`."""
        return {record.key for record in self.records(name) if record.state is not JobState.STOPPING}

    def close_keyspace(self, *, closed: bool) -> None:
        """See `JobStore.close_keyspace`."""
        with self._server.changed:
            space = self._space()
            space.closed = closed
            for record in list(space.records.values()) if closed else ():
                space.stop(record)
                space.forget_vacant(record.slot)
                self._server.signal(self._keyspace, record.slot)

    def claim_tick(self, name: str, number: int) -> bool:
        """See `JobStore.claim_tick`."""
        with self._server.changed:
            ticks = self._space().ticks
            if name in ticks and number <= ticks[name]:
                return False
            ticks[name] = number
            return True

    def open(self, slot: Slot, epoch: int) -> None:
        """See `JobStore.open`."""
        with self._server.changed:
            written = self._space().at(slot)
            if written.epoch > epoch:
                raise Fenced(written.epoch, "")
            written.epoch = epoch

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        """See `JobStore.look`."""
        with self._server.changed:
            space = self._space()
            found: dict[Slot, SlotJobs] = {}
            seen = 0
            for slot, revision in known.items():
                if seen < SEEN_RECORDS and (written := space.at(slot)).revision != revision:
                    found[slot] = _seen(space, written)
                    seen += len(written.ids)
            return found

    def places(self, known: int) -> JobPlaces | None:
        """See `JobStore.places`."""
        with self._server.changed:
            space = self._space()
            if space.places_revision == known:
                return None
            places = space.slots.items()
            return JobPlaces(space.places_revision, {p: at.revision for p, at in places if isinstance(p, str)})

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], *, known: int = 0) -> Reserved:
        """See `JobStore.reserve`."""
        with self._server.changed:
            space = self._fenced(slot, epoch)
            before = space.at(slot).revision
            wanted = [space.records[i] for i in ids if i in space.records and space.records[i].slot == slot]
            wanted = [record for record in wanted if record.state is not JobState.STOPPING]
            for record in wanted:
                attempt = record.attempt + 1
                space.put(replace(record, state=JobState.STARTING, attempt=attempt, epoch=epoch, worker=worker))
            attempts = {record.id: record.attempt + 1 for record in wanted}
            return Reserved(attempts, space.at(slot).revision if before == known else 0)

    def settle(
        self,
        slot: Slot,
        epoch: int,
        reports: Sequence[Report],
        notes: Collection[str],
        *,
        outcome_ttl: float,
        known: int = 0,
    ) -> int:
        """See `JobStore.settle`."""
        with self._server.changed:
            space = self._fenced(slot, epoch)
            written = space.at(slot)
            before, dropped = written.revision, set(notes)
            if any(note.id in dropped for note in written.notes):
                written.notes = [note for note in written.notes if note.id not in dropped]
                space.revise(slot)
            for report in reports:
                record = space.records.get(report.id)
                if record is not None and record.slot == slot:
                    space.settle(record, report, outcome_ttl)
            written.drop_notes()
            space.forget_vacant(slot)
            self._server.changed.notify_all()
            return space.at(slot).revision if before == known else 0

    def where(self, slot: Slot) -> str:
        """See `JobStore.where`."""
        return f"memory, {self._keyspace}, {slot}"

    def _space(self) -> Keyspace:
        return self._records()[self._keyspace]

    def _fenced(self, slot: Slot, epoch: int) -> Keyspace:
        space = self._space()
        written = space.at(slot)
        if written.epoch != epoch and (isinstance(slot, int) or written.ids):
            raise Fenced(written.epoch, "")
        return space


def _seen(space: Keyspace, written: SlotRecords) -> SlotJobs:
    records = tuple(space.records[job_id] for job_id in written.ids.values())
    count = Counter((note.name, note.key) for note in written.notes)
    share, seen, notes = max(1, SEEN_NOTES // max(1, len(count))), Counter[tuple[str, str]](), []
    for note in written.notes:
        seen[note.name, note.key] += 1
        if seen[note.name, note.key] <= share:
            notes.append(note)
    return SlotJobs(written.revision, records, tuple(notes), len(notes) < len(written.notes))
