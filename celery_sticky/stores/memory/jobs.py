"""The job store in this process: the reference for every driver, and a test double.

`MemoryJobServer` plays the server; `MemoryJobs` is a client of it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from celery_sticky.errors import Fenced, StickyError
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.in_process import Client, Server
from celery_sticky.stores.jobs import (
    SEEN_RECORDS,
    STOPPED,
    UNWANTED,
    Admission,
    Checkpoint,
    DispatchOutcome,
    JobAddress,
    JobCounts,
    JobPlaces,
    JobRecord,
    JobState,
    NewJob,
    Report,
    Reserved,
    SlotJobs,
    digest,
)
from celery_sticky.stores.memory.job_records import Keyspace, seen
from celery_sticky.stores.notes import MAX_DEAD, DeadNote, FailedDelivery, Fate, Note
from celery_sticky.stores.ticks import Tick, milliseconds

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
                # The slot only follows from the key, and who waits for the start may differ.
                same = replace(known.job, slot=job.slot, durable=job.durable) == job
                return (Admission.REPEATED, known.outcome) if same else (Admission.CONFLICT, None)
            old = space.find(job.slot, job.name, job.key)
            if old is not None and old.state is not JobState.STOPPING:
                return Admission.EXISTS, None
            if sum(record.fresh for record in space.records.values()) >= max_queued:
                return Admission.FULL, None
            if old is not None:
                space.remove(old, STOPPED)
                space.at(job.slot).drop_notes()
            space.add(job, outcome_ttl, old)
            self._server.signal(self._keyspace, job.slot)
            return Admission.ADMITTED, None

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """See `JobStore.outcome`."""

        def known() -> DispatchOutcome | None:
            dispatch = self._space().dispatches.get(job_id)
            return dispatch.outcome if dispatch is not None and dispatch.until > time.monotonic() else None

        with self._server.changed:
            return self._server.changed.wait_for(known, timeout)

    def stop(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.stop`."""
        with self._server.changed:
            space = self._space()
            record = space.find(slot, name, key)
            if record is None:
                return None
            space.stop(record)
            space.forget_vacant(slot)
            self._server.signal(self._keyspace, slot)
            return record.id

    def update(self, slot: Slot, name: str, key: str, payload: bytes | None, *, restart: bool) -> str | None:
        """See `JobStore.update`."""
        return self._change(slot, name, key, lambda record: self._space().update(record, payload, restart=restart))

    def pause(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.pause`."""
        return self._change(slot, name, key, lambda record: self._space().pause(record))

    def resume(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.resume`."""
        return self._change(slot, name, key, lambda record: self._space().resume(record))

    def _change(self, slot: Slot, name: str, key: str, change: Callable[[JobRecord], JobRecord]) -> str | None:
        with self._server.changed:
            record = self._space().find(slot, name, key)
            if record is None or record.state is JobState.STOPPING:
                return None
            if (changed := change(record)) != record:
                self._space().put(changed)
                self._server.signal(self._keyspace, slot)
            return record.id

    def ending(self) -> int:
        """See `JobStore.ending`."""
        with self._server.changed:
            found = self._space().records.values()
            return sum(record.state is JobState.STOPPING or record.replaces for record in found)

    def stop_error(self, job_id: str) -> str:
        """See `JobStore.stop_error`."""
        with self._server.changed:
            error, until = self._space().stop_errors.get(job_id, ("", 0.0))
            return error if until > time.monotonic() else ""

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

    def dead_notes(self, *, after: str = "", limit: int = MAX_DEAD) -> Sequence[DeadNote]:
        """See `DeadNoteStore.dead_notes`."""
        with self._server.changed:
            return self._space().dead.page(after, limit)

    def dead_note(self, dead_id: str) -> DeadNote | None:
        """See `DeadNoteStore.dead_note`."""
        with self._server.changed:
            return self._space().dead.find(dead_id)

    def requeue_note(self, dead_id: str, *, limit: int) -> Fate:
        """See `DeadNoteStore.requeue_note`."""
        with self._server.changed:
            dead = self._space().dead.find(dead_id)
            if dead is None:
                return Fate.GONE
            fate = self.notify(dead.slot, dead.name, dead.key, dead.payload or b"", limit=limit)
            if fate is Fate.SENT:
                self._space().dead.drop(dead_id)
            return fate

    def drop_note(self, dead_id: str) -> bool:
        """See `DeadNoteStore.drop_note`."""
        with self._server.changed:
            return self._space().dead.drop(dead_id)

    def admit_each(
        self, jobs: Sequence[NewJob], *, max_queued: int, outcome_ttl: float
    ) -> Sequence[Admission | StickyError]:
        """See `JobStore.admit_each`."""
        return [self.admit(job, max_queued=max_queued, outcome_ttl=outcome_ttl)[0] for job in jobs]

    def stop_each(self, jobs: Sequence[JobAddress]) -> Sequence[str | StickyError | None]:
        """See `JobStore.stop_each`."""
        return [self.stop(*job) for job in jobs]

    def notify_each(self, notes: Sequence[tuple[JobAddress, bytes]], *, limit: int) -> Sequence[Fate | StickyError]:
        """See `JobStore.notify_each`."""
        return [self.notify(*job, payload, limit=limit) for job, payload in notes]

    def find(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        """See `JobStore.find`."""
        with self._server.changed:
            return self._space().find(slot, name, key)

    def records(self, name: str | None = None, key: str | None = None, slot: Slot | None = None) -> Sequence[JobRecord]:
        """See `JobStore.records`."""
        with self._server.changed:
            return [
                record
                for record in self._space().records.values()
                if name in (None, record.name) and key in (None, record.key) and slot in (None, record.slot)
            ]

    def counts(self) -> JobCounts:
        """See `JobStore.counts`."""
        with self._server.changed:
            return self._space().counts()

    def keys(self, name: str) -> Mapping[str, str]:
        """See `JobStore.keys`."""
        found = [record for record in self.records(name) if record.state is not JobState.STOPPING]
        return {record.key: digest(name, record.key, record.payload) for record in found}

    def close_keyspace(self, *, closed: bool) -> None:
        """See `JobStore.close_keyspace`."""
        with self._server.changed:
            space = self._space()
            space.closed = closed
            for record in list(space.records.values()) if closed else ():
                space.stop(record)
                space.forget_vacant(record.slot)
                self._server.signal(self._keyspace, record.slot)

    def forget_places(self) -> int:
        """See `JobStore.forget_places`."""
        with self._server.changed:
            return self._space().forget_places()

    def claim_tick(self, name: str, every: float) -> Tick:
        """See `JobStore.claim_tick`."""
        with self._server.changed:
            return self._space().claim_tick(name, milliseconds(every))

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
            count = 0
            for slot, revision in known.items():
                if count < SEEN_RECORDS and (written := space.at(slot)).revision != revision:
                    found[slot] = seen(space, written)
                    count += len(written.ids)
            return found

    def places(self, known: int) -> JobPlaces | None:
        """See `JobStore.places`."""
        with self._server.changed:
            space = self._space()
            if space.places_revision == known:
                return None
            places = space.slots.items()
            return JobPlaces(space.places_revision, {p: at.revision for p, at in places if isinstance(p, KeyPlace)})

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], *, known: int = 0) -> Reserved:
        """See `JobStore.reserve`."""
        with self._server.changed:
            space = self._fenced(slot, epoch)
            before = space.at(slot).revision
            wanted = [space.records[i] for i in ids if i in space.records and space.records[i].slot == slot]
            wanted = [record for record in wanted if record.state not in UNWANTED]
            for record in wanted:
                attempt = record.attempt + 1
                space.put(replace(record, state=JobState.STARTING, attempt=attempt, epoch=epoch, worker=worker))
            attempts = {record.id: record.attempt + 1 for record in wanted}
            return Reserved(attempts, space.at(slot).revision if before == known else 0)

    def save(self, slot: Slot, epoch: int, checkpoints: Sequence[Checkpoint]) -> Collection[str]:
        """See `JobStore.save`."""
        with self._server.changed:
            space = self._fenced(slot, epoch)
            found: dict[str, None] = {}
            for checkpoint in checkpoints:
                record = space.records.get(checkpoint.id)
                if record is not None and record.slot == slot:
                    space.save(record, checkpoint)
                    found[record.id] = None
            return found

    def settle(
        self,
        slot: Slot,
        epoch: int,
        reports: Sequence[Report],
        notes: Collection[str],
        failed: Sequence[FailedDelivery] = (),
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
            space.fail_deliveries(slot, failed)
            for report in reports:
                record = space.records.get(report.id)
                if record is None or record.slot == slot:
                    space.keep_stop_error(report, outcome_ttl)
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
