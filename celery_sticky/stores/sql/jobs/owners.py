"""The verbs of a slot's owner. Each locks the slot's row first, and checks its fence."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from celery_sticky.slots import Slot
from celery_sticky.sql import Database
from celery_sticky.stores import job_rules
from celery_sticky.stores.jobs import Checkpoint, Report, Reserved
from celery_sticky.stores.notes import FailedDelivery
from celery_sticky.stores.sql.jobs.answers import STOP, Answer
from celery_sticky.stores.sql.jobs.changes import Changes, changes_in
from celery_sticky.stores.sql.jobs.notes import drop, fail, note_key


class Owners:
    """The verbs for one keyspace."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope

    def open(self, slot: Slot, epoch: int) -> None:
        """See `JobStore.open`."""
        with changes_in(self._database, self._scope) as changes:
            changes.slots.raise_fence(slot, epoch)

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], known: int) -> Reserved:
        """See `JobStore.reserve`."""
        with changes_in(self._database, self._scope, [slot]) as changes:
            changes.slots.check(slot, epoch)
            changes.read_ids(ids)
            attempts: dict[str, int] = {}
            for job_id in ids:
                job = changes.in_slot(slot, job_id)
                record = job_rules.reserved(job.record, worker, epoch) if job is not None else None
                if record is not None:
                    changes.put(record)
                    attempts[job_id] = record.attempt
        return Reserved(attempts, changes.slots.revision(slot, known))

    def save(self, slot: Slot, epoch: int, checkpoints: Sequence[Checkpoint]) -> Collection[str]:
        """See `JobStore.save`."""
        with changes_in(self._database, self._scope, [slot]) as changes:
            changes.slots.check(slot, epoch)
            changes.read_ids(one.id for one in checkpoints)
            found: set[str] = set()
            for one in checkpoints:
                job = changes.in_slot(slot, one.id)
                if job is None:
                    continue
                found.add(one.id)
                if (one.attempt, one.number) > job.saved_at:
                    changes.save(one.id, (one.attempt, one.number), one.saved)
            return found

    def settle(
        self,
        slot: Slot,
        epoch: int,
        reports: Sequence[Report],
        notes: Collection[str],
        failed: Sequence[FailedDelivery],
        *,
        outcome_ttl: float,
        known: int,
    ) -> int:
        """See `JobStore.settle`."""
        handled = [key for key in map(note_key, notes) if key is not None]
        named = [key for key in (note_key(one.note) for one in failed) if key is not None]
        with changes_in(self._database, self._scope) as changes:
            changes.slots.lock([slot], places=True if any(one.dead for one in failed) else None)
            changes.slots.check(slot, epoch)
            changes.read_ids([*(one.id for one in reports), *(job_id for _, job_id in (*handled, *named))])
            drop(changes, slot, handled)
            fail(changes, slot, failed)
            for report in reports:
                _settle(changes, slot, report, outcome_ttl)
        return changes.slots.revision(slot, known)


def _settle(changes: Changes, slot: Slot, report: Report, ttl: float) -> None:
    anywhere, job = changes.by_id(report.id), changes.in_slot(slot, report.id)
    if job_rules.tells_stop_error(report) and (job is not None or anywhere is None):
        changes.answer(Answer(STOP, report.id, "", report.error, ttl))
    if job is None:
        return
    after = job_rules.settled(job.record, report, changes.slots.now)
    if after is None:
        changes.remove(job.record, job_rules.outcome(report), ttl)
        return
    if not after.fresh:
        changes.tell(job.record, job_rules.outcome(report), ttl)
    changes.put(after)
