"""The verbs that lock a keyspace's admissions: dispatches, and the end of all jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.sql import Database
from celery_sticky.sql.text import chunks, portions
from celery_sticky.stores import job_rules
from celery_sticky.stores.jobs import STOPPED, Admission, DispatchOutcome, NewJob, digest
from celery_sticky.stores.sql.jobs.answers import Answers, forget_outcomes, outcomes
from celery_sticky.stores.sql.jobs.changes import Changes, changes_in
from celery_sticky.stores.sql.jobs.controls import AT_ONCE, stop
from celery_sticky.stores.sql.jobs.rows import ENDING, FRESH, Stored, added, slot_of
from celery_sticky.stores.sql.jobs.slots import make_rows

Answer = tuple[Admission, DispatchOutcome | None]


class Known(NamedTuple):
    """What is known of the dispatch with an id."""

    identity: str
    outcome: DispatchOutcome | None
    """None: it is not known yet."""


class Admissions:
    """The verbs for one keyspace."""

    def __init__(self, database: Database, scope: bytes, answers: Answers) -> None:
        self._database, self._scope, self._answers = database, scope, answers
        self._made: set[Slot] = set()
        """Slots that have a row: it stays."""

    def admit_each(self, jobs: Sequence[NewJob], max_queued: int, outcome_ttl: float) -> list[Answer]:
        """See `JobStore.admit_each` and `JobStore.admit`."""
        answers: list[Answer] = []
        unknown = {job.slot for job in jobs if not isinstance(job.slot, KeyPlace)} - self._made
        make_rows(self._database, self._database.dialect, self._scope, unknown)
        self._made |= unknown
        for portion in portions(jobs, lambda job: len(job.payload)):
            for some in chunks(portion, AT_ONCE):
                answers += self._admit(some, max_queued, outcome_ttl)
        if jobs:
            self._answers.prune()
        return answers

    def close(self, *, closed: bool) -> None:
        """See `JobStore.close_keyspace`."""
        with changes_in(self._database, self._scope) as changes:
            changes.slots.lock_admissions()
            changes.slots.close(closed=closed)
        if not closed:
            return
        for page in self._pages(lambda slot: True):
            with self._locked(page) as (changes, jobs):
                if not changes.slots.lock_admissions():  # another client has opened it again
                    return
                for job in jobs:
                    stop(changes, job)

    def forget_places(self) -> int:
        """See `JobStore.forget_places`."""
        count = 0
        for page in self._pages(lambda slot: isinstance(slot, KeyPlace)):
            with self._locked(page) as (changes, jobs):
                for job in jobs:
                    changes.remove(job.record, STOPPED)
                count += len(jobs)
        return count

    def _admit(self, jobs: Sequence[NewJob], max_queued: int, outcome_ttl: float) -> list[Answer]:
        with changes_in(self._database, self._scope) as changes:
            if changes.slots.lock_admissions():
                return [(Admission.CLOSED, None)] * len(jobs)
            slots = {job.slot for job in jobs}
            changes.slots.lock(slots, places=any(isinstance(slot, KeyPlace) for slot in slots))
            ids = {job.id for job in jobs}
            changes.read_ids(ids)
            # Behind the records: one that is removed meanwhile has its outcome then.
            told = outcomes(changes.inside, changes.dialect, self._scope, ids)
            changes.read_addresses([(job.slot, job.name, job.key) for job in jobs])
            queue = _Queue(changes, told, max_queued, outcome_ttl)
            answers = [queue.admit(job) for job in jobs]
            forget_outcomes(changes.inside, changes.dialect, self._scope, queue.admitted & told.keys())
            return answers

    def _pages(self, wanted: Callable[[Slot], bool]) -> Iterator[dict[str, Slot]]:
        """Yield the jobs in wanted slots, a page at a time: id and slot."""
        last: bytes | None = b""
        while last is not None:
            statement = "SELECT id, slot FROM {job} WHERE scope = %s AND id > %s ORDER BY id LIMIT %s"
            rows = self._database.rows(statement, [self._scope, last, AT_ONCE])
            page = {bytes(job_id).decode(): slot_of(slot) for job_id, slot in rows}
            if chosen := {job_id: slot for job_id, slot in page.items() if wanted(slot)}:
                yield chosen
            last = bytes(rows[-1][0]) if len(rows) == AT_ONCE else None

    @contextmanager
    def _locked(self, page: dict[str, Slot]) -> Iterator[tuple[Changes, list[Stored]]]:
        """Begin a transaction that has admissions and the slots of a page for itself; yield the jobs that are left."""
        with changes_in(self._database, self._scope) as changes:
            changes.slots.lock_admissions()
            changes.slots.lock(set(page.values()))
            changes.read_ids(page)
            yield changes, changes.jobs()


class _Queue:
    """Admits jobs one after the other, in a transaction."""

    def __init__(
        self,
        changes: Changes,
        told: dict[str, tuple[str, DispatchOutcome | None]],
        max_queued: int,
        outcome_ttl: float,
    ) -> None:
        self.admitted: set[str] = set()
        self._changes, self._told = changes, told
        self._max_queued, self._outcome_ttl = max_queued, outcome_ttl
        # `waits` is FRESH, or FRESH and ENDING.
        statement = "SELECT COUNT(*) FROM (SELECT 1 FROM {job} WHERE scope = %s AND waits IN (%s, %s) LIMIT %s) w"
        said = [changes.scope, FRESH, FRESH | ENDING, max(max_queued, 0)]
        self._fresh = int(changes.inside.rows(statement, said)[0][0])

    def admit(self, job: NewJob) -> Answer:
        """Admit one job."""
        changes = self._changes
        if (known := self._known(job.id)) is not None:
            same = known.identity == digest(job.name, job.key, job.payload)
            return (Admission.REPEATED, known.outcome) if same else (Admission.CONFLICT, None)
        old = changes.at((job.slot, job.name, job.key))
        there = old.record if old is not None else None
        refused = job_rules.refused(there, self._fresh, self._max_queued)
        if refused is not None:
            return refused, None
        if there is not None:
            self._fresh -= there.fresh
            changes.remove(there, STOPPED)
        changes.add(added(job_rules.queued(job, changes.slots.now, there), self._outcome_ttl))
        changes.slots.signal(job.slot)
        self._fresh += 1
        self.admitted.add(job.id)
        return Admission.ADMITTED, None

    def _known(self, job_id: str) -> Known | None:
        job, (identity, outcome) = self._changes.by_id(job_id), self._told.get(job_id, ("", None))
        if job is not None:
            started = outcome or DispatchOutcome()
            return Known(job.identity, None if job.record.fresh else started)
        return Known(identity, outcome) if outcome is not None else None
