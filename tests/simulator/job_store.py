"""The memory job store, which shows each change of a record to the witness."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import Admission, DispatchOutcome, JobRecord, NewJob, Report, Reserved
from celery_sticky.stores.memory.job_records import Keyspace
from celery_sticky.stores.memory.jobs import MemoryJobs, MemoryJobServer
from celery_sticky.stores.notes import FailedDelivery, Fate
from simulator.job_invariants import JobWitness
from simulator.terms import KEYSPACE


class WitnessedJobs(MemoryJobs):
    """A client of it: a keeper's, or one that dispatches."""

    def __init__(self, server: MemoryJobServer, witness: JobWitness) -> None:
        super().__init__(server, KEYSPACE)
        self._witness = witness

    @property
    def subscribed(self) -> bool:
        """Whether it gets signals."""
        return self._subscription is not None

    def subscribe(self) -> Collection[Slot]:
        """Subscribe; return nothing. A late repetition takes no signals."""
        return () if self.subscribed else self.watch(0.0)

    def admit(self, job: NewJob, *, max_queued: int, outcome_ttl: float) -> tuple[Admission, DispatchOutcome | None]:
        """Store a job."""
        old = self._record(job.slot, job.name, job.key)
        admission, outcome = super().admit(job, max_queued=max_queued, outcome_ttl=outcome_ttl)
        if admission is Admission.ADMITTED:
            self._witness.admits(job.id, old.id if old is not None else None)
        return admission, outcome

    def stop(self, slot: Slot, name: str, key: str) -> str | None:
        """Stop a job."""
        old = self._record(slot, name, key)
        stopped = super().stop(slot, name, key)
        if old is not None:
            self._witness.stops(old.id, gone=self._record(slot, name, key) is None)
        return stopped

    def notify(self, slot: Slot, name: str, key: str, payload: bytes, *, limit: int) -> Fate:
        """Leave a notification for a job."""
        fate = super().notify(slot, name, key, payload, limit=limit)
        if fate is Fate.SENT and (record := self._record(slot, name, key)) is not None:
            self._witness.notes(record.id, self._space().at(slot).notes[-1].id)
        return fate

    def open(self, slot: Slot, epoch: int) -> None:
        """Fence the records of a slot."""
        super().open(slot, epoch)
        if isinstance(slot, int):
            self._witness.opens(slot, epoch)

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], *, known: int = 0) -> Reserved:
        """Reserve starts."""
        reserved = super().reserve(slot, epoch, worker, ids, known=known)
        self._writes(slot, epoch)
        self._witness.reserves(reserved.attempts)
        return reserved

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
        """Store run results."""
        before = [record for report in reports if (record := self._space().records.get(report.id)) is not None]
        waiting = {note.id for note in self._space().at(slot).notes}
        revision = super().settle(slot, epoch, reports, notes, failed, outcome_ttl=outcome_ttl, known=known)
        self._writes(slot, epoch)
        self._witness.drops(waiting & set(notes))
        self._witness.buries(waiting & {one.note for one in failed if one.dead} - set(notes))
        self._witness.settles(reports, [record for record in before if record.id not in self._space().records])
        return revision

    def written(self) -> Keyspace:
        """Return all that is stored."""
        return self._space()

    def _writes(self, slot: Slot, epoch: int) -> None:
        if isinstance(slot, int):  # the fence of a place goes with its last record
            self._witness.writes(slot, epoch)

    def _record(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        return self._space().find(slot, name, key)
