"""The jobs of a keyspace in a SQL database. Migration `m0004_jobs` lists the tables, and the order of locks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from celery_sticky.errors import StickyError
from celery_sticky.slots import Slot
from celery_sticky.sql import Database
from celery_sticky.sql.bell import JOBS, keyspace_topic
from celery_sticky.stores.jobs import (
    Admission,
    Checkpoint,
    DispatchOutcome,
    JobAddress,
    JobCounts,
    JobPlaces,
    JobRecord,
    NewJob,
    Report,
    Reserved,
    SlotJobs,
)
from celery_sticky.stores.notes import MAX_DEAD, DeadNote, FailedDelivery, Fate
from celery_sticky.stores.sql.jobs import ticks
from celery_sticky.stores.sql.jobs.admissions import Admissions
from celery_sticky.stores.sql.jobs.answers import Answers
from celery_sticky.stores.sql.jobs.controls import Controls
from celery_sticky.stores.sql.jobs.dead import DeadNotes
from celery_sticky.stores.sql.jobs.owners import Owners
from celery_sticky.stores.sql.jobs.seen import Seen
from celery_sticky.stores.sql.jobs.signals import JobSignals
from celery_sticky.stores.sql.jobs.survey import Survey
from celery_sticky.stores.sql.poller import Poller
from celery_sticky.stores.ticks import Tick, milliseconds


class SqlJobs:
    """See `celery_sticky.stores.jobs.JobStore`. `database` is its own, unless stores share a `poller` too."""

    def __init__(self, database: Database, keyspace: str, *, prefix: str, poller: Poller | None = None) -> None:
        scope = f"{prefix}.{keyspace}".encode()
        self._database, self._scope = database, scope
        self._answers = Answers(database, scope)
        self._admissions = Admissions(database, scope, self._answers)
        self._controls, self._owners = Controls(database, scope), Owners(database, scope)
        self._seen, self._survey = Seen(database, scope), Survey(database, scope)
        self._dead = DeadNotes(database, scope)
        self._signals = JobSignals(database, scope)
        self._poller = poller or Poller(database)

    def admit(self, job: NewJob, *, max_queued: int, outcome_ttl: float) -> tuple[Admission, DispatchOutcome | None]:
        """See `JobStore.admit`."""
        [answer] = self._admissions.admit_each([job], max_queued, outcome_ttl)
        return answer

    def admit_each(
        self, jobs: Sequence[NewJob], *, max_queued: int, outcome_ttl: float
    ) -> Sequence[Admission | StickyError]:
        """See `JobStore.admit_each`."""
        return [admission for admission, _ in self._admissions.admit_each(jobs, max_queued, outcome_ttl)]

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """See `JobStore.outcome`."""
        return self._answers.outcome(job_id, timeout)

    def stop(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.stop`."""
        [answer] = self._controls.stop_each([(slot, name, key)])
        return answer

    def stop_each(self, jobs: Sequence[JobAddress]) -> Sequence[str | StickyError | None]:
        """See `JobStore.stop_each`."""
        return self._controls.stop_each(jobs)

    def update(self, slot: Slot, name: str, key: str, payload: bytes | None, *, restart: bool) -> str | None:
        """See `JobStore.update`."""
        return self._controls.update(slot, name, key, payload, restart=restart)

    def pause(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.pause`."""
        return self._controls.pause(slot, name, key)

    def resume(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.resume`."""
        return self._controls.resume(slot, name, key)

    def ending(self) -> int:
        """See `JobStore.ending`."""
        return self._survey.ending()

    def stop_error(self, job_id: str) -> str:
        """See `JobStore.stop_error`."""
        return self._answers.stop_error(job_id)

    def notify(self, slot: Slot, name: str, key: str, payload: bytes, *, limit: int) -> Fate:
        """See `JobStore.notify`."""
        [fate] = self._controls.notify_each([((slot, name, key), payload)], limit)
        return fate

    def notify_each(self, notes: Sequence[tuple[JobAddress, bytes]], *, limit: int) -> Sequence[Fate | StickyError]:
        """See `JobStore.notify_each`."""
        return self._controls.notify_each(notes, limit)

    def dead_notes(self, *, after: str = "", limit: int = MAX_DEAD) -> Sequence[DeadNote]:
        """See `DeadNoteStore.dead_notes`."""
        return self._dead.page(after, limit)

    def dead_note(self, dead_id: str) -> DeadNote | None:
        """See `DeadNoteStore.dead_note`."""
        return self._dead.read(dead_id)

    def requeue_note(self, dead_id: str, *, limit: int) -> Fate:
        """See `DeadNoteStore.requeue_note`."""
        return self._dead.requeue(dead_id, limit)

    def drop_note(self, dead_id: str) -> bool:
        """See `DeadNoteStore.drop_note`."""
        return self._dead.drop(dead_id)

    def find(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        """See `JobStore.find`."""
        return self._survey.find(slot, name, key)

    def records(self, name: str | None = None, key: str | None = None, slot: Slot | None = None) -> Sequence[JobRecord]:
        """See `JobStore.records`."""
        return self._survey.records(name, key, slot)

    def counts(self) -> JobCounts:
        """See `JobStore.counts`."""
        return self._survey.counts()

    def keys(self, name: str) -> Mapping[str, str]:
        """See `JobStore.keys`."""
        return self._survey.keys(name)

    def close_keyspace(self, *, closed: bool) -> None:
        """See `JobStore.close_keyspace`."""
        self._admissions.close(closed=closed)

    def forget_places(self) -> int:
        """See `JobStore.forget_places`."""
        return self._admissions.forget_places()

    def claim_tick(self, name: str, every: float) -> Tick:
        """See `JobStore.claim_tick`."""
        return ticks.claim(self._database, self._scope, name, milliseconds(every))

    def open(self, slot: Slot, epoch: int) -> None:
        """See `JobStore.open`."""
        self._owners.open(slot, epoch)

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        """See `JobStore.look`."""
        return self._seen.look(known)

    def places(self, known: int) -> JobPlaces | None:
        """See `JobStore.places`."""
        return self._seen.places(known)

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], *, known: int = 0) -> Reserved:
        """See `JobStore.reserve`."""
        return self._owners.reserve(slot, epoch, worker, ids, known)

    def save(self, slot: Slot, epoch: int, checkpoints: Sequence[Checkpoint]) -> Collection[str]:
        """See `JobStore.save`."""
        return self._owners.save(slot, epoch, checkpoints)

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
        return self._owners.settle(slot, epoch, reports, notes, failed, outcome_ttl=outcome_ttl, known=known)

    def where(self, slot: Slot) -> str:
        """See `JobStore.where`."""
        return f"table {self._database.tables.name('job')}, scope {self._scope.decode()}, slot {slot}"

    def watch(self, timeout: float) -> Collection[Slot]:
        """See `JobStore.watch`."""
        return self._poller.watch(self, self._signals.look, [keyspace_topic(JOBS, self._scope)], timeout)

    def wake(self) -> None:
        """See `JobStore.wake`."""
        self._poller.wake()

    def close(self) -> None:
        """See `JobStore.close`."""
        self._poller.close()
        self._database.close()
